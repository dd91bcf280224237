"""The effect of each ingredient of training against SparseAnneal: short runs from one plain network, held-out images.

    python benchmarks/training_ablation.py run --data cifar10.npz --out benchmarks/results/training-ablation.json
    python benchmarks/training_ablation.py run --data cifar10.npz --model subject-plain --held-out 1000 --epochs 20 \\
        --jobs 9 --out benchmarks/results/training-ablation-small.json

Every variant trains a PreActResNet-18 for a few epochs. The record has clean accuracy and robust accuracy under
SparseAnneal, and under Cluster-RS after it, on training images that no run has used. With --model the runs start from a
plain model of the zoo, with variants of training with random search. An existing record is continued: variants that it
contains are skipped.
"""

import argparse
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from pool import begin, collected, stopped
from provenance import add_arguments, head
from torch import nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.analysis.curves import accuracy_over_queries
from sparsepgd.sources import Data, load_data
from sparsepgd.training import annealing
from sparsepgd.training.data import split
from sparsepgd.training.settings import make_settings
from sparsepgd.zoo.networks import preact_resnet18

THEN = "then Cluster-RS"
STEPS = (30, 100, 300, 1000)  # of the attack, reported
COMMON: dict[str, Any] = {
    "batch": 500, "schedule": "one-cycle", "nesterov": True, "clip": 1.0, "lr": 0.1, "ema": 0.995, "watch_steps": 0,
}  # fmt: skip
BASE = {"method": "anneal-trades", "steps": 5, "lam": 6.0, "multi_eps": 3, "keep": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is: TRADES, 5 steps, changes kept, lambda 6, up to 3 k pixels": {},
    "changes not kept": {"keep": False},
    "10 steps": {"steps": 10},
    "10 steps, changes not kept": {"steps": 10, "keep": False},
    "2 steps": {"steps": 2},
    "2 steps at first, 8 at last": {"steps": 2, "steps_last": 8},
    "half of the batches by sPGD": {"mixed": 0.5},
    "k pixels": {"multi_eps": 1},
    "up to 6 k pixels": {"multi_eps": 6},
    "lambda 3": {"lam": 3.0},
    "lambda 12": {"lam": 12.0},
    "cross-entropy instead of TRADES": {"method": "anneal-at"},
    "soft targets": {"method": "anneal-trades+s"},
    "half the path": {"PATH": annealing.PATH / 2},
    "twice the path": {"PATH": annealing.PATH * 2},
    "sPGD instead (sTRADES), 5 steps": {"method": "strades", "keep": False, "multi_eps": 6},
}
SEARCHED_COMMON = {"steps": 3, "steps_last": 10, "searched": 0.5, "ema": 0.99}
SEARCHED: dict[str, dict[str, Any]] = {  # half of the batches by Cluster-RS, as in recipes/subjects/subject-search.toml
    "baseline: 3 to 10 steps, half of the batches searched, lambda 6": {},
    "a quarter of the batches searched": {"searched": 0.25},
    "three quarters of the batches searched": {"searched": 0.75},
    "6 to 20 steps": {"steps": 6, "steps_last": 20},
    "40 queries": {"queries": 40},
    "up to 5 k pixels": {"multi_eps": 5},
    "lambda 12": {"lam": 12.0},
    "6 to 20 steps, lambda 12": {"steps": 6, "steps_last": 20, "lam": 12.0},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_subparsers(dest="work", required=True)
    one = work.add_parser("run")
    one.add_argument("--data", type=Path, required=True, help="npz with x_train (N, H, W, C) uint8 and y_train")
    one.add_argument("--epochs", type=int, default=8)
    one.add_argument("--held-out", type=int, default=2000)
    one.add_argument("--only", action="append", default=[], help="a variant by its name; again for more")
    one.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    one.add_argument("--jobs", type=int, default=1, help="variants at a time")
    one.add_argument("--k", type=int, default=20)
    one.add_argument("--model", help="of the zoo, to start from; default: a plain network is trained first")
    one.add_argument("--queries", type=int, default=3000, help="of Cluster-RS, after SparseAnneal")
    add_arguments(one)
    return parser.parse_args()


def trained(model: nn.Module, data: Data, options: dict[str, Any], args: Any) -> Any:
    values = {**COMMON, "held_out": args.held_out, **options}
    before = annealing.PATH
    annealing.PATH = values.pop("PATH", before)
    try:
        return sp.train(model.train().requires_grad_(True), data, budget=sp.Budget(k=args.k), **values)
    finally:
        annealing.PATH = before


def images(args: argparse.Namespace) -> tuple[Data, Data]:
    """The training images, and those of them that are held out."""
    data = load_data(f"npz:{args.data}", part="train")
    rows = split(len(data.x), make_settings("plain", sp.Budget(k=1), {"held_out": args.held_out}))[1]
    return data, Data(data.x[rows], data.y[rows]).to(args.device)


def started(args: argparse.Namespace, data: Data) -> nn.Module:
    """The network that all variants start from."""
    if args.model:
        return zoo.load(args.model).to(args.device)
    torch.manual_seed(0)
    plain = preact_resnet18(num_classes=10).to(args.device)
    trained(plain, data, {"method": "plain", "epochs": 15 if args.epochs > 1 else 1, "lr": 0.2}, args)
    return plain


def variants(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings of each variant."""
    changes, common = (SEARCHED, {**BASE, **SEARCHED_COMMON}) if args.model else (VARIANTS, BASE)
    return {name: {**common, "epochs": args.epochs, **changed} for name, changed in changes.items()}


def measured(name: str, options: dict[str, Any], model: nn.Module, args: argparse.Namespace) -> dict[str, Any]:
    """Train a variant, starting from `model`, and attack it."""
    data, held = images(args)
    made = trained(model.to(args.device), data, options, args)
    budget = sp.Budget(k=args.k)
    result = sp.SparseAnneal(budget, max(STEPS))(made.model, *held)
    left = result.robust
    after = sp.ClusterRS(budget, args.queries)(made.model, held[0][left], held[1][left])
    passes, accuracy = accuracy_over_queries(result)
    curve = dict(zip(passes.tolist(), accuracy.tolist(), strict=True))
    robust = {steps: round(min(share for at, share in curve.items() if at <= steps), 5) for steps in STEPS}
    return {"variant": name, "options": options, "seconds": round(made.seconds, 1), "loss": made.curves["loss"][-1],
            "clean": round(result.clean_accuracy, 5), "robust": robust,
            THEN: round(int(after.robust.sum()) / len(held[0]), 5), "queries": args.queries}  # fmt: skip


def run(args: argparse.Namespace) -> None:
    began = time.monotonic()
    data, held = images(args)
    record = {**head(args, *held), "k": args.k, "seed": 0, "runs": []}
    if args.out.exists():
        record = json.loads(args.out.read_text())
    start = started(args, data).cpu()
    known = {row["variant"] for row in record["runs"]}
    left = {name: one for name, one in variants(args).items() if name not in known and name in (args.only or [name])}

    def entered(key: tuple[str, ...], row: dict[str, Any]) -> None:
        record["runs"].append(row)
        print(row, flush=True)
        args.out.write_text(json.dumps(record) + "\n")

    pool = ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), begin)
    futures = {(name,): pool.submit(measured, name, one, start, args) for name, one in left.items()}
    collected(futures, began + args.seconds, entered)
    stopped(pool)


if __name__ == "__main__":
    run(arguments())
