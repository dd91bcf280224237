"""Speed on one GPU: our attacks, the bare model and the authors' code in one run; how the cost grows; a full sAA.

    python benchmarks/speed.py side-by-side --model zoo:NAME --data images.npz --official path/to/sPGD \
        --out benchmarks/results/speed-NAME.json
    python benchmarks/speed.py growth --model zoo:NAME --data ... --out benchmarks/results/growth-NAME.json
    python benchmarks/speed.py saa --model zoo:NAME --data ... --out benchmarks/results/saa-NAME.json
    python benchmarks/speed.py ratio --model zoo:NAME --data ... --out benchmarks/results/ratio-NAME.json
    python benchmarks/speed.py large -n 166 --k 200 --steps 150 --out benchmarks/results/large-resnet34.json
    python benchmarks/speed.py profile -n 83 --k 200 --steps 60 --out benchmarks/results/profile-resnet34.json
    python benchmarks/speed.py epoch --data cifar10.npz --out benchmarks/results/epoch-prn18.json

`spgd bench` does the same as `side-by-side` for any model; here sPGD runs on all images and Sparse-RS on half of them.
`ratio` is the cost of a step as a multiple of the bare model's. `large` is the same for a ResNet-34 with random
weights, 1,000 classes and images of 224x224; `profile` lists the time of its kernels. `epoch` trains by
recipes/quick/cifar10-strades.toml, ten steps of sPGD for each batch, on the training images of the file.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from inputs import DATA, MODEL, load_images, load_network
from provenance import MADE, ROOT, add_arguments, head, write_record
from torch import Tensor, nn
from torch.nn import functional as F

import sparsepgd as sp
from sparsepgd.problem.compiled import wait_for_compilations
from sparsepgd.problem.engine import Engine, Meter, metered
from sparsepgd.problem.oracle import borrowed
from sparsepgd.search.graphs import SMALL, Recorded
from sparsepgd.sources import load_data
from sparsepgd.speed import bench, rivals
from sparsepgd.training import recipes
from sparsepgd.zoo import resnet
from sparsepgd.zoo.networks import preact_resnet18

RECIPE = ROOT / "recipes" / "quick" / "cifar10-strades.toml"
EPOCHS = 4  # of training; the first one compiles and is not counted
CALLS = 60  # of the bare model on a CPU
REPEATS = 3  # of each timing of `ratio`
LONGEST = 40  # kernels of `profile`


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=tuple(WORKS))
    parser.add_argument("--model", help=MODEL)
    parser.add_argument("--name", help="of the model, for the record")
    parser.add_argument("--data", type=Path, help=DATA)
    parser.add_argument("--official", type=Path)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--official-seeds", type=int, default=3, help="fewer, because the authors' code takes long")
    parser.add_argument(
        "--rivals", nargs="+", default=["spgd", "sparse-rs"], help="parts of the names of those that are run: saa, rs"
    )
    parser.add_argument("--batch-size", type=int, help="of ratio and large; default: that of the attack")
    parser.add_argument("--side", type=int, default=224, help="of the images of large")
    parser.add_argument("--stem", choices=("7x7", "3x3"), default="7x7", help="of large: with pooling, or without")
    parser.add_argument("--precision", help="default: fp16 on a GPU, as for an attack")
    add_arguments(parser)
    args = parser.parse_args()
    if args.work in ("large", "profile"):
        args.name, args.data_name = f"resnet34, {args.stem} stem, random weights", MADE
    elif args.work == "epoch" and args.data:
        args.name = "preact_resnet18"
    elif not (args.model and args.data):
        parser.error(f"{args.work} needs --model and --data")
    args.precision = args.precision or ("fp16" if args.device == "cuda" else "fp32")
    return args


def load(args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    return load_network(args.model).to(args.device), *load_images(args.data, args.n).to(args.device)


def made(args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """ResNet-34 with random weights, noisy images of squares, and its predictions as labels. One pass in training mode
    sets the statistics of the BatchNorm layers. Of twice as many images, those with the largest margins are kept."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet.resnet34(1000)
        if args.stem == "7x7":  # that of torchvision; the ReLU after it changes nothing
            model.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
            model.bn1 = nn.Sequential(model.bn1, nn.ReLU(), nn.MaxPool2d(3, 2, 1))  # type: ignore[assignment]
        coarse = F.interpolate(torch.rand(2 * args.n, 3, 8, 8), args.side, mode="nearest")
        x = (0.8 * coarse + 0.2 * torch.rand(2 * args.n, 3, args.side, args.side)).to(args.device)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.to(args.device).train()
    with torch.no_grad():
        model(x[:16])
        first, second = torch.cat([model.eval()(part) for part in x.split(50)]).topk(2).values.unbind(1)
    x = x[(first - second).topk(args.n).indices]
    return model, x, model_says(model, x)


def untrained(args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with random weights, and the training images."""
    return preact_resnet18().to(args.device), *load_data(f"npz:{args.data}", part="train")


def show(row: Any) -> None:
    values = {name: value for name, value in dataclasses.asdict(row).items() if value is not None}
    print({name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}, flush=True)


def side_by_side(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    budget, half, seeds = sp.Budget(k=args.k), len(x) // 2, range(args.seeds)
    theirs = rivals.official(args.official, args.k, args.steps, args.queries) if args.official else {}
    full = bench.Bench(model, x, y, budget, args.steps, args.queries, seeds, min(512, len(x)))
    part = dataclasses.replace(full, x=x[:half], y=y[:half])
    how: Any = [(args.precision, False)]
    record = {
        "first call": first_call(full),
        "spgd": bench.measure(full, how, {}, names=bench.ATTACKS[:2], on_row=show),
        "sparse-rs": bench.measure(part, how, {}, names=("sparse-rs",), on_row=show),
    }
    wanted = {name: rival for name, rival in theirs.items() if any(word in name for word in args.rivals)}
    for name, rival in wanted.items():
        job, into = (part, "sparse-rs") if "rs" in name else (full, "spgd")
        row = dataclasses.replace(job, seeds=range(args.official_seeds)).theirs(name, rival)
        show(row)
        record[into]["attacks"].append(dataclasses.asdict(row))
    return record


def first_call(job: bench.Bench) -> dict[str, Any]:
    """The first call of sPGD in a process: without warm-up, and with the defaults of the attack."""
    result, seconds = job.once(job.attack("spgd-unprojected"), Engine(), 0)
    found = {"seconds": seconds, "robust": int(result.robust.sum())}
    print("first call", found, flush=True)
    return found


def growth(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Seconds of sPGD, 100 steps, against one quantity at a time; each measured after a warm-up."""
    compiled = args.device == "cuda"
    rows: list[dict[str, Any]] = []

    def timed(what: str, value: int, x: Tensor, y: Tensor, k: int = args.k, batch_size: int | None = None) -> None:
        attack = sp.SparsePGD(sp.Budget(k=k), 100 if args.device == "cuda" else 3, early_stop=False)
        for _ in range(2):
            result, seconds, meter, memory = once(model, x, y, attack, Engine(args.precision, compiled), batch_size)
            wait_for_compilations()
        us = 1e6 * seconds / max(int(result.forwards.sum()), 1)
        rows.append({"what": what, "value": value, "seconds": seconds, "us": us, "memory": memory})
        print({**rows[-1], "meter": dataclasses.asdict(meter)}, flush=True)

    many = [100, 300, 1000, 3000, 10_000] if args.device == "cuda" else [4, 8]
    for count in many:
        times = -(-count // len(x))
        timed("images", count, x.repeat(times, 1, 1, 1)[:count], y.repeat(times)[:count])
    for k in (1, 10, 100, 500):
        timed("k", k, x, y, k=k)
    for size in (64, 256, 1024):
        timed("batch size", size, x, y, batch_size=size)
    for side in (32, 64, 224):
        count = min(len(x), 1000 if side == 32 else 250 if side == 64 else 60)
        larger = F.interpolate(x[:count], side, mode="nearest")
        timed("image side", side, larger, model_says(model, larger))
    return {"rows": rows, "precision": args.precision, "compiled": compiled, "steps": 100}


@torch.no_grad()
def model_says(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(1) for part in x.split(50)])


def saa(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The cascade from a cold start, warm-up included."""
    attack = sp.SparseAutoAttack(sp.Budget(k=args.k), args.steps, args.queries)
    start = time.perf_counter()
    with metered() as meter:
        result = attack(model, x, y)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "accuracy": attack.history(result),
        "steps": args.steps,
        "queries": args.queries,
        "meter": dataclasses.asdict(meter),
    }


def ratio(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Microseconds per step and image of each attack, against the bare model in the same precision and batch size.

    Changes by a millionth fool no model, and the labels are the model's predictions, so no image is left out and every
    slot is in use to the end. The images must fill whole batches, because a smaller one costs more per image. The cost
    of a step comes from the additional time of a run with twice as many steps. The bare model is timed between the two
    runs. Results are medians of three repetitions. On a CPU, processor time is measured, which other work affects less.
    """
    y, rows = model_says(model, x), []
    for make in attacks(args):
        engine, gradient = Engine(args.precision), make(args.steps).needs_gradient
        once(model, x, y, make(args.steps), engine, args.batch_size)  # warms up
        found = []
        for _ in range(REPEATS):
            _, short, before, _ = once(model, x, y, make(args.steps), engine, args.batch_size)
            batch, rest = divmod(before.slot_steps, before.steps)
            if rest:
                raise SystemExit(f"{len(x)} images do not fill whole batches; use another -n, or --batch-size")
            alone = bare(args, model, x[:batch], gradient)
            result, long, meter, memory = once(model, x, y, make(2 * args.steps), engine, args.batch_size)
            found.append((1e6 * (long - short) / (meter.slot_steps - before.slot_steps), alone))
        us, alone = (median(each) for each in zip(*found, strict=True))
        work = "input gradient" if gradient else "forward"
        row = {"attack": make(args.steps).name, "us": us, "bare": work, "bare us": alone, "ratio": us / alone}
        row["each"] = [one / other for one, other in found]
        left = int(result.robust.sum())
        rows.append({**row, "batch": batch, "memory": memory, "left": left, "meter": dataclasses.asdict(meter)})
        print(rows[-1], flush=True)
    return {"rows": rows, "precision": args.precision, "steps": args.steps, "shape": list(x.shape[1:])}


def attacks(args: argparse.Namespace) -> list[Callable[[int], Any]]:
    """Attacks that fool no image, from their number of steps."""
    budget = sp.Budget(k=args.k, eps=1e-6)
    kinds = (sp.SparseAnneal, sp.SparsePGD, sp.SparseRS, sp.ClusterRS)
    return [partial(kind, budget) for kind in kinds]


def profile(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Microseconds per step of each kernel, those of the model included, in a run of each attack."""
    y, rows = model_says(model, x), []
    for make in attacks(args):
        attack = make(args.steps)
        once(model, x, y, attack, Engine(args.precision), len(x))  # warms up
        kinds = [torch.profiler.ProfilerActivity.CUDA if x.is_cuda else torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as seen:
            _, seconds, meter, _ = once(model, x, y, attack, Engine(args.precision), len(x))
        kernels = [
            {"kernel": one.key, "calls": one.count / meter.steps, "us": time_of(one) / meter.steps}
            for one in sorted(seen.key_averages(), key=time_of, reverse=True)[:LONGEST]
        ]
        rows.append({"attack": attack.name, "us": 1e6 * seconds / meter.steps, "batch": len(x), "kernels": kernels})
        print(attack.name, kernels[:3], flush=True)
    return {"rows": rows, "precision": args.precision, "steps": args.steps, "shape": list(x.shape[1:])}


def time_of(kernel: Any) -> float:
    return kernel.self_device_time_total or kernel.self_cpu_time_total


def epoch(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Seconds of an epoch of adversarial training."""
    recipe = {name: value for name, value in recipes.read(RECIPE).items() if name not in recipes.SOURCES}
    settings = {**recipe, "epochs": EPOCHS, "watch_every": 2 * EPOCHS}
    each = sp.train(model, (x, y), budget=sp.Budget(k=args.k), **settings).curves["seconds"]
    print(each, flush=True)
    return {"epochs": EPOCHS, "seconds an epoch": median(each[1:]), "each": each, "settings": settings}


def once(
    model: nn.Module, x: Tensor, y: Tensor, attack: Any, engine: Engine, batch_size: int | None
) -> tuple[Any, float, Meter, int | None]:
    """The result, the seconds (on a CPU processor time), the counters of the loop, and the peak of memory in bytes."""
    clock = time.perf_counter if x.is_cuda else time.process_time
    if x.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = clock()
    with metered() as meter:
        result = attack(model, x, y, engine=engine, batch_size=batch_size)
    if x.is_cuda:
        torch.cuda.synchronize()
    seconds = clock() - start
    return result, seconds, meter, torch.cuda.max_memory_allocated() if x.is_cuda else None


def bare(args: argparse.Namespace, model: nn.Module, x: Tensor, gradient: bool) -> float:
    """Microseconds of the model per image, as an attack runs it: a lean copy, recorded if the batch is small."""
    device = x.device
    engine = Engine(args.precision).decided(model, x, device)
    with borrowed(model, device), engine.running(model, device) as run:

        def work(x: Tensor) -> Tensor:
            with torch.set_grad_enabled(gradient):
                point = x.detach().requires_grad_(gradient)
                logits: Tensor = run(point)
                return torch.autograd.grad(logits.float().sum() * engine.scale, point)[0] if gradient else logits

        quick = Recorded(work) if engine.graphs and x.numel() <= SMALL else work
        if device.type == "cuda":
            return bench._timed(lambda: quick(x), device) / len(x)
        quick(x)
        start = time.process_time()
        for _ in range(CALLS):
            quick(x)
        return 1e6 * (time.process_time() - start) / CALLS / len(x)


WORKS = {
    "side-by-side": side_by_side, "growth": growth, "saa": saa, "ratio": ratio, "large": ratio, "profile": profile,
    "epoch": epoch,
}  # fmt: skip
LOADS = {"large": made, "profile": made, "epoch": untrained}  # for works that do not use `load`


def main() -> None:
    args, start = arguments(), time.perf_counter()
    model, x, y = LOADS.get(args.work, load)(args)
    name = args.name or args.model.removeprefix("zoo:")
    record = {**head(args, x, y), "model": name, "k": args.k, **WORKS[args.work](args, model, x, y)}
    seeds = list(range(args.seeds if args.work == "side-by-side" else 1))
    record = {"seeds": seeds, "seconds": time.perf_counter() - start, **record}
    write_record(args.out, record)


if __name__ == "__main__":
    main()
