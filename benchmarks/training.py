"""Train by recipe and evaluate what came out, all in one process, so that code is compiled once:

    python benchmarks/training.py cifar10-plain cifar10-fast-ls --data npz:cifar10.npz

The same as `spgd train --recipe recipes/quick/NAME.toml --out runs/quick/NAME` and `spgd evaluate --attack saa`, one
after the other; run again, it goes on where it was stopped. The records go to benchmarks/results/train-NAME.json.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from provenance import origin

from sparsepgd.cli import app
from sparsepgd.runs.folders import load as load_run
from sparsepgd.training import recipes
from sparsepgd.training.records import load as load_training

ROOT = Path(__file__).parent.parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="+", help="of files in recipes/quick, in an order in which one builds on another"
    )
    parser.add_argument("--data", required=True, help="as for spgd train")
    parser.add_argument("--runs", type=Path, default=Path("runs/quick"))
    parser.add_argument("-n", type=int, default=1000, help="test images under attack")
    parser.add_argument("--steps", type=int, default=300, help="of sPGD, with either gradient")
    parser.add_argument("--queries", type=int, default=10_000, help="of Sparse-RS")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


def call(*words: object) -> None:
    sys.argv = ["spgd", *map(str, words)]  # the command that the record shows
    app(sys.argv[1:], standalone_mode=False)


def train_and_evaluate(name: str, args: argparse.Namespace) -> dict[str, Any]:
    recipe, folder = ROOT / "recipes" / "quick" / f"{name}.toml", args.runs / name
    if not (folder / "model.json").is_file():
        call("train", "--recipe", recipe, "--data", args.data, "--out", folder, "-q")
    wanted, saa = recipes.read(recipe), args.runs / f"{name}-saa"
    start = time.perf_counter()
    call(
        "evaluate", "--model", f"trained:{folder}", "--data", args.data, "-n", args.n, "--k", wanted["k"],
        "--pattern", wanted.get("pattern", "pixel"), "--attack", "saa", "--steps", args.steps,
        "--queries", args.queries, "--chunk", args.n, "--out", saa, "-q",
    )  # fmt: skip
    training, card = load_training(folder), json.loads((folder / "model.json").read_text())
    run = load_run(saa)
    return {
        "recipe": f"recipes/quick/{name}.toml",
        "command": card["command"],
        **origin(args.data),
        "data": Path(args.data).name,
        "hardware": training.environment["hardware"],
        "torch": card["torch_version"],
        "seed": card["seed"],
        "epochs": training.epochs,
        "seconds": round(training.seconds, 1),
        "seconds an epoch": round(statistics.median(v for v in training.curves["seconds"] if v is not None), 2),
        "notices": training.notices,
        "curves": {key: [v if v is None else round(v, 4) for v in row] for key, row in training.curves.items()},
        "clean": card["clean_accuracy"],
        "measured": card["measured"],
        "robust": card["robust"],
        "saa": {
            "steps": args.steps,
            "queries": args.queries,
            **dataclasses.asdict(run.summary()),
            "broken by": Counter(row.broken_by for row in run.rows if row.broken_by),
            "seconds with warm-up": round(time.perf_counter() - start, 1),
        },
    }


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        file = args.out / f"train-{name}.json"
        if not file.is_file():
            file.write_text(json.dumps(train_and_evaluate(name, args), indent=1) + "\n")
            print(f"record in {file.name}", flush=True)


if __name__ == "__main__":
    main()
