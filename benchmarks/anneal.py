"""Robust accuracy against passes and seconds: SparseAnneal beside the other attacks, on one model.

    python benchmarks/anneal.py run --model zoo:prn18-fast-ls --data images.npz --run anneal:6000 --run sparse-rs:300 \
        --official path/to/sPGD --out benchmarks/results/anneal-prn18-fast-ls.json
    python benchmarks/anneal.py ablation --model zoo:prn18-fast-ls --data heldout.npz --steps 400 --out ...
    python benchmarks/anneal.py structures --model zoo:small-plain --steps 300 --out ...

A pass is one forward pass, with or without the backward pass that belongs to it. The curves come from the attacks
themselves: the number of robust images against the passes for each image, and against the seconds of the run.
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from inputs import DATA, MODEL, correct, load_images, load_network
from provenance import add_arguments, head
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.analysis.curves import accuracy_over_queries
from sparsepgd.search import anneal
from sparsepgd.speed import rivals
from sparsepgd.speed.bench import Bench

Make = Callable[[sp.Budget, int], Any]
ATTACKS: dict[str, Make] = {
    "anneal": sp.SparseAnneal,
    "spgd-unprojected": lambda budget, steps: sp.SparsePGD(budget, steps, "unprojected"),
    "spgd-projected": lambda budget, steps: sp.SparsePGD(budget, steps, "projected"),
    "sparse-rs": sp.SparseRS,
    "cluster-rs": sp.ClusterRS,
    "saa": lambda budget, steps: sp.SparseAutoAttack(budget, steps, steps),
    "saa+": lambda budget, steps: sp.SparseAutoAttack(budget, steps, steps, version="standard"),
    "sigma-zero": baselines.SigmaZero,
    "l1-apgd": lambda budget, passes: baselines.L1APGD(budget, passes // 2, targets=0),
    "cw-l0": lambda budget, steps: baselines.CWL0.quick(budget),
}
PATTERNS: dict[str, sp.Budget] = {
    "one row": sp.Budget(k=1, pattern=sp.Rows()),
    "one 5x5 patch": sp.Budget(k=1, pattern=sp.Patches(5)),
    "two 3x3 patches": sp.Budget(k=2, pattern=sp.Patches(3)),
    "a heart of 8x8": sp.Budget(k=1, pattern=sp.Shape.heart(8)),
    "a watermark: a disc of 18x18 within 16/255": sp.Budget(k=1, pattern=sp.Shape.circle(18), eps=16 / 255),
}
PACES = {"paper": (0.0125, 50), "0.1": (0.1, 8)}  # alpha and beta, tolerance
# Each without one ingredient, or with another choice: fields of anneal.CycleSettings, or keys of `changed` in capitals.
ABLATION: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no annealing: k groups from the first step on": {"widths": (1.0, 1.0)},
    "at most 20 k groups": {"widths": (3.0, 20.0)},
    "restarts instead of cycles from the best point": {"RESTART": True},
    "one start instead of three": {"starts": 1},
    "one step size": {"starts": 1, "span": 1.0},
    "one start, with steps of 0.5": {"starts": 1, "size": 0.5},
    "steps shrink to a fifth": {"decay": 0.2},
    "cycles of 5 steps": {"length": 5},
    "cycles of 20 steps": {"length": 20},
    "what is clipped is forgotten": {"CLIP": True},
    "no groups barred": {"barred": 0.0},
    "no noise": {"noise": 0.0},
    "the sign of the gradient": {"DIRECTION": lambda threat, g: g.sign()},
    "no local search": {"local": 0.0},
    "local search alone, after the first ascents": {"local": 1.0},
    "the margin alone": {"LOSS": 1},
    "the cross-entropy alone": {"LOSS": 0},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_subparsers(dest="work", required=True)
    for name in ("run", "ablation", "structures"):
        one = work.add_parser(name)
        one.add_argument("--model", required=True, help=MODEL)
        one.add_argument("--name", help="of the model, for the record")
        one.add_argument("--data", type=Path, help=DATA)
        one.add_argument("-n", type=int, default=1000)
        one.add_argument("--k", type=int, default=20)
        one.add_argument("--seeds", type=int, default=3)
        add_arguments(one)
    work.choices["run"].add_argument("--run", action="append", default=[], metavar="ATTACK:LENGTH[:SEEDS[:IMAGES]]")
    work.choices["run"].add_argument("--official", type=Path, help="a checkout of the authors' code")
    work.choices["run"].add_argument("--official-steps", type=int, default=300)
    work.choices["ablation"].add_argument("--steps", type=int, default=400)
    work.choices["structures"].add_argument("--steps", type=int, default=300)
    return parser.parse_args()


def timed(attack: Any, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """One run: the robust images, over passes and over seconds."""
    fooled: list[tuple[float, int]] = []
    start = time.perf_counter()

    def progress(done: int, total: int, count: int) -> None:
        fooled.append((time.perf_counter() - start, count))

    result = attack(model, x, y, seed=seed, progress=progress)
    seconds, right = time.perf_counter() - start, int(result.clean_correct.sum())
    passes, accuracy = accuracy_over_queries(result)
    left = [round(value * len(x)) for value in accuracy.tolist()]
    clock = [(round(when, 3), right - count) for when, count in fooled]
    return {
        "seed": seed,
        "seconds": round(seconds, 3),
        "right": right,
        "left": int(result.robust.sum()),
        "passes": thinned(list(zip(passes.tolist(), left, strict=True))),
        "clock": thinned(clock),
        "forwards": int(result.forwards.sum()),
        "backwards": int(result.backwards.sum()),
        "broken by": {name: result.broken_by.count(name) for name in sorted(set(result.broken_by) - {None})},
    }


def thinned(curve: list[tuple[float, int]], most: int = 60) -> list[tuple[float, int]]:
    """The points where the curve falls, or a selection if there are many; both ends are kept."""
    falls = [one for i, one in enumerate(curve) if i in (0, len(curve) - 1) or one[1] < curve[i - 1][1]]
    every = math.ceil(len(falls) / most)
    return [one for i, one in enumerate(falls) if i % every == 0 or i == len(falls) - 1]


def run(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[dict[str, Any]]:
    budget = sp.Budget(k=args.k)
    for words in args.run:
        name, length, *more = words.split(":")
        seeds, images = (*map(int, more), *(args.seeds, len(x))[len(more) :])
        attack = ATTACKS[name](budget, int(length))
        for seed in range(seeds):
            found = timed(attack, model, x[:images], y[:images], seed)
            yield {"attack": name, "length": int(length), "images": min(images, len(x)), **found}
    if args.official:
        bench, steps = Bench(model, x, y, budget, batch_size=500), args.official_steps
        right = int(correct(model, x, y).sum())
        for name, rival in rivals.official(args.official, args.k, steps, steps).items():
            if "spgd" in name:
                official = bench.theirs(name, rival)
                found = {"seconds": round(official.seconds[0], 3), "right": right, "left": official.robust[0]}
                yield {"attack": name, "length": steps, "images": len(x), "seed": 0, **found}


@contextmanager
def changed(other: dict[str, Any]) -> Iterator[None]:
    """Change search/anneal.py temporarily: fields of its cycle settings, or choices that are not settings."""
    attack: Any = sp.SparseAnneal
    before = anneal.ANNEALED, anneal.direction, attack.aim, attack._disturb, attack._ascend
    try:
        anneal.ANNEALED = dataclasses.replace(before[0], **{key: other[key] for key in other if key.islower()})
        anneal.direction = other.get("DIRECTION", anneal.direction)
        if "LOSS" in other:
            attack.aim = lambda self, state: dataclasses.replace(
                before[2](self, state), along=torch.full_like(state.limit, other["LOSS"])
            )
        if "RESTART" in other:
            attack._disturb = lambda self, threat, images, *_: anneal._clean(threat, images)
        if "CLIP" in other:

            def clipped(self: Any, threat: Any, images: Any, *rest: Any) -> anneal.Point:
                point: anneal.Point = before[4](self, threat, images, *rest)
                return dataclasses.replace(point, delta=images.clip(point.delta))

            attack._ascend = clipped
        yield
    finally:
        anneal.ANNEALED, anneal.direction, attack.aim, attack._disturb, attack._ascend = before


def ablation(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[dict[str, Any]]:
    for name, other in ABLATION.items():
        with changed(other):
            for seed in range(args.seeds):
                found = timed(sp.SparseAnneal(sp.Budget(k=args.k), args.steps), model, x, y, seed)
                yield {"variant": name, "steps": args.steps, **found}


def structures(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor) -> Iterator[dict[str, Any]]:
    """SparseAnneal beside sPGD at two paces and Sparse-RS, which gets two queries per step of the others."""
    for pattern, budget in PATTERNS.items():
        attacks: dict[str, Any] = {"anneal": sp.SparseAnneal(budget, args.steps)}
        for gradient in ("unprojected", "projected"):
            for pace, (alpha, tolerance) in PACES.items():
                attacks[f"spgd-{gradient}, pace {pace}"] = sp.SparsePGD(
                    budget, args.steps - 1, gradient, alpha=alpha, beta=alpha, tolerance=tolerance
                )
        attacks["sparse-rs"] = sp.SparseRS(budget, 2 * args.steps)
        for name, attack in attacks.items():
            for seed in range(args.seeds):
                yield {"pattern": pattern, "attack": name, "steps": args.steps, **timed(attack, model, x, y, seed)}


def main() -> None:
    args = arguments()
    model = load_network(args.model).to(args.device)
    x, y = load_images(args.data, args.n).to(args.device)
    record = {**head(args, x, y), "model": args.name or args.model, "k": args.k, "runs": []}
    for row in {"run": run, "ablation": ablation, "structures": structures}[args.work](args, model, x, y):
        record["runs"].append(row)
        print({name: value for name, value in row.items() if name not in ("passes", "clock")}, flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
