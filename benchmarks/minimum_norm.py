"""Minimum-norm l0 attacks at equal passes: how few pixels or features each attack needs.

    python benchmarks/minimum_norm.py run zoo:small-plain small_preact_resnet=small-linf.safetensors --data images.npz \
        -n 100 --passes 300 --out benchmarks/results/minimum-norm-small-300.json
    python benchmarks/minimum_norm.py run preact_resnet18=A-0.safetensors,A-1.safetensors --processes 6 --seconds 500
    python benchmarks/minimum_norm.py run zoo:small-plain --attacks sparse-anneal --again --out ...  # at a newer commit

The attacks are those of minimum_norm_attacks.py; their passes are counted by a wrapper around the model. Every image
that they return is clamped to [0, 1] and checked by the verifier of this package. The record is written after each run;
the same command resumes it, with only the runs that are missing or failed. With --again, runs of these attacks from
another commit are replaced; every run states its commit. The error of an attack that fails is recorded. adv-lib and
foolbox must be importable.
"""

import argparse
import importlib.metadata
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from inputs import DATA, MODEL, correct, load_images, load_network
from minimum_norm_attacks import ATTACKS, PATTERNS, Attack, Task, groups
from minimum_norm_numbers import CUT, Record, finish
from pool import begin, stopped
from provenance import add_arguments, commit, head
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import first_line
from sparsepgd.problem.oracle import Oracle
from sparsepgd.problem.precision import full_precision
from sparsepgd.problem.verify import measure, verify
from sparsepgd.runs.identity import model_digest

PACKAGES = ("adv-lib", "foolbox", "eagerpy", "numba", "numpy")
ALIKE = ("hardware", "torch", "sha256", "images", "passes", "seed", "batch size")  # to resume a record
Job = tuple[str, str, str]  # the model as in the command, the attack, what it counts
MEANT = {
    "pass": "one forward and one backward of an image; a forward alone is half a pass. `passes` of an attack: (images "
    "forward + images backward) / 2 / images, counted around the model, checks of the attack's own included. "
    "AttackBench counts forwards and backwards as one query each: two queries are a pass",
    "size": "pixels or features of x_adv that are not bit for bit those of x, if the verifier finds that the model is "
    "wrong about x_adv, clamped to [0, 1], in float32 without TF32; null: it is not. An attack that counts features "
    "alone is measured in pixels on the same x_adv",
    "mean": f"of sizes cut at {CUT}, which is also what an image that is not fooled counts for",
    "within": "share of images not fooled within k",
    "optimality": "AttackBench (Cina et al., AAAI 2025, arXiv 2404.19460, equations 4 and 5), by the smallest size of "
    "each image that any attack of the table found; global: the mean over the models",
    "seconds": "of one run, imports included, while as many as there are processes share the device",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_subparsers(dest="work", required=True)
    run = work.add_parser("run")
    run.add_argument("models", nargs="+", help=MODEL)
    run.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME")
    run.add_argument("--again", action="store_true", help="replace the runs of these attacks that are of other commits")
    run.add_argument("--data", type=Path, help=DATA)
    run.add_argument("-n", type=int, default=100, help="images")
    run.add_argument("--passes", type=int, default=1000)
    run.add_argument("--batch-size", type=int, default=500)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--processes", type=int, default=1, help="runs at a time")
    run.add_argument("--seconds", type=float, help="after which what is under way is stopped; default: no limit")
    add_arguments(run)
    return parser.parse_args()


# One run


class Counting(nn.Module):
    """A wrapper that counts the images in forward and backward passes of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._count_back)
        return logits

    def _count_back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def measured(attack: Attack, counts: str, model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Record:
    """Measure one attack on one model; an error is recorded."""
    try:
        counting, x_adv, seconds = attacked(attack, counts, model, x, y, args)
        found = judged(model, x, y, x_adv, args.batch_size)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {first_line(error)}"}
    forwards, backwards = counting.forwards / len(x), counting.backwards / len(x)
    return {
        "forwards": forwards,
        "backwards": backwards,
        "passes": (forwards + backwards) / 2,
        "seconds": round(seconds, 3),
        **found,
    }


def attacked(
    attack: Attack, counts: str, model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace
) -> tuple[Counting, Tensor, float]:
    random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002
    torch.manual_seed(args.seed)
    counting, found = Counting(model), []
    start = time.perf_counter()
    with full_precision():
        for part in batches(len(x), args.batch_size):
            task = Task(counting, x[part].clone(), y[part].clone(), args.passes, PATTERNS[counts], args.seed)
            found.append(attack.run(task).detach())
    x_adv = torch.cat(found).cpu()  # waits for the device
    return counting, x_adv, time.perf_counter() - start


def judged(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor, batch_size: int) -> Record:
    """The sizes of successful perturbations, in pixels and in features, and how far images were out of range."""
    if x_adv.shape != x.shape:
        raise ValueError(f"{tuple(x_adv.shape)} for images {tuple(x.shape)}")
    x_adv = x_adv.to(x)
    x_adv = torch.where(x_adv.isfinite(), x_adv, x)
    beyond = torch.maximum(x_adv - 1, -x_adv).flatten(1).amax(1)
    x_adv = x_adv.clamp(0, 1)
    budgets = {counts: sp.Budget(groups(x, pattern), pattern) for counts, pattern in PATTERNS.items()}
    fooled = verify(Oracle(model), budgets["pixels"], x, x_adv, y, y, batch_size=batch_size).reached.tolist()
    sizes = {counts: measure(budget, x, x_adv).groups.tolist() for counts, budget in budgets.items()}
    return {
        "out of range": {"images": int((beyond > 0).sum()), "by": float(beyond.amax().clamp(min=0).abs())},
        "sizes": {
            counts: [size if hit else None for size, hit in zip(each, fooled, strict=True)]
            for counts, each in sizes.items()
        },
    }


def batches(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


# All runs


def about(given: str, model: nn.Module) -> Record:
    """The name of a model, its digest and, if a card NAME.json is beside its weights, how it was trained. Weights in
    several files have names such as NAME-0.safetensors or NAME-a.safetensors."""
    _, equals, files = given.partition("=")
    if not equals:
        return {"model": given.removeprefix("zoo:"), "sha256": model_digest(model)}
    paths = [Path(file) for file in files.split(",")]
    name = re.sub(r"-(\d+|[a-z])$", "", paths[0].stem) if len(paths) > 1 else paths[0].stem
    card = paths[0].with_name(f"{name}.json")
    trained = {"trained by": json.loads(card.read_text())["command"]} if card.is_file() else {}
    return {"model": name, "sha256": model_digest(model), **trained}


def described(given: str, x: Tensor, y: Tensor, args: argparse.Namespace) -> Record:
    """The entry of a model in the record, before the first attack."""
    model = load_network(given).to(args.device)
    return {**about(given, model), "right": int(correct(model, x, y, args.batch_size).sum()), "runs": []}


def work(job: Job, args: argparse.Namespace) -> Record:
    """One job, in a process of its own."""
    given, attack, counts = job
    model = load_network(given).to(args.device).requires_grad_(False)
    x, y = load_images(args.data, args.n).to(args.device)
    kept = correct(model, x, y, args.batch_size)
    run = measured(ATTACKS[attack], counts, model, x[kept], y[kept], args)
    return {"attack": attack, "counts": counts, "commit": args.commit, **run}


def begun(args: argparse.Namespace, x: Tensor, y: Tensor) -> Record:
    """A new record, or the one to resume."""
    record: Record = {
        **head(args, x, y),
        "seed": args.seed,
        "passes": args.passes,
        "batch size": args.batch_size,
        "processes": args.processes,
        "packages": dict(versions()),
        "meant": MEANT,
        "attacks": {},
        "models": [],
    }
    if not args.out.is_file():
        return record
    before: Record = json.loads(args.out.read_text())
    alike = ALIKE if args.again else ("commit", *ALIKE)
    if differ := [f"{key} was {before.get(key)}, is {record[key]}" for key in alike if before.get(key) != record[key]]:
        raise SystemExit(
            f"{args.out} holds another measurement ({'; '.join(differ)}): use another file for --out, or, if only the "
            "commit differs, --again"
        )
    if record["command"] not in before["command"]:
        before["command"] += f" && {record['command']}"
    return before


def versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Attack by attack, so that an unfinished record compares the same attacks on all models."""
    for name in args.attacks:
        for counts in ATTACKS[name].counts:
            yield from ((given, name, counts) for given in args.models)


def measure_all(args: argparse.Namespace) -> None:
    """Run all jobs and write the record after each."""
    start = time.monotonic()
    x, y = load_images(args.data, args.n).to(args.device)
    args.commit = args.commit or commit()  # the same for all runs, even if there are commits meanwhile
    record = begun(args, x, y)
    places = {given: placed(record["models"], described(given, x, y, args)) for given in args.models}
    missing = [job for job in jobs(args) if not any(done(job, run, args) for run in places[job[0]]["runs"])]
    record["attacks"] |= {name: ATTACKS[name].about for name in args.attacks}
    left = None if args.seconds is None else args.seconds - (time.monotonic() - start)
    with ProcessPoolExecutor(args.processes, get_context("spawn"), begin, max_tasks_per_child=1) as pool:
        futures = {pool.submit(partial(work, args=args), job): job for job in missing}
        try:
            for future in as_completed(futures, left):
                model, run = places[futures[future][0]], future.result()
                model["runs"] = ordered([*model["runs"], run])
                write(args.out, finish(record))
                print(line(model["model"], run), flush=True)
        except TimeoutError:
            print("the time is over", flush=True)
            stopped(pool)


def placed(models: list[Record], model: Record) -> Record:
    """The entry of a model in the record; a new one is appended."""
    if known := [one for one in models if one["sha256"] == model["sha256"]]:
        return known[0]
    models.append(model)
    return model


def done(job: Job, run: Record, args: argparse.Namespace) -> bool:
    current = not args.again or run["commit"] == args.commit
    return (run["attack"], run["counts"]) == job[1:] and "error" not in run and current


def ordered(runs: Sequence[Record]) -> list[Record]:
    """The runs in the order of ATTACKS; a later run replaces an earlier one of the same attack."""
    last = {(run["attack"], run["counts"]): run for run in runs}
    order = list(ATTACKS)
    return sorted(last.values(), key=lambda run: (order.index(run["attack"]), list(PATTERNS).index(run["counts"])))


def line(model: str, run: Record) -> str:
    what = f"{model}: {run['attack']}, {run['counts']}:"
    if "error" in run:
        return f"{what} {run['error']}"
    found = run["numbers"][run["counts"]]
    return (
        f"{what} median {found['median']}, mean {found['mean']:.1f}, {run['passes']:.1f} passes, {run['seconds']:.1f} s"
    )


def write(file: Path, record: Record) -> None:
    """Write the record, with each list of numbers on one line."""
    text = json.dumps(record, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r'\[[^][{}"]*\]', lambda found: " ".join(found[0].split()), text) + "\n")


def main() -> None:
    measure_all(arguments())


if __name__ == "__main__":
    main()
