"""Train by recipe and evaluate what came out, all in one process, so that code is compiled once:

    python benchmarks/training.py cifar10-plain cifar10-fast-ls --data npz:cifar10.npz

The same as `spgd train --recipe recipes/quick/NAME.toml --out runs/quick/NAME` and `spgd evaluate --attack saa`, one
after the other; run again, it goes on where it was stopped. The records go to benchmarks/results/train-NAME.json.

    python benchmarks/training.py cifar10-plain cifar10-anneal --data npz:cifar10.npz --ship prn18-anneal --seeds 3

`--ship`: the weights of the last one go to weights/ as float16, with a card, and these weights are measured, under saa+
with --plus steps too. A recipe with several budgets (`others`) is measured under each of them.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from provenance import origin
from records import stages
from shipping import budgets_of, figure, first_line, hyphened, shipped

from sparsepgd import options, zoo
from sparsepgd.cli import app
from sparsepgd.runs.folders import load as load_run
from sparsepgd.runs.records import Record
from sparsepgd.search import SparseAutoAttack
from sparsepgd.sources import TRAINED
from sparsepgd.training import recipes
from sparsepgd.training.entries import add_robust
from sparsepgd.training.records import load as load_training
from sparsepgd.zoo.places import VARIABLE

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
    parser.add_argument("--ship", metavar="NAME", help="of the model in weights/")
    parser.add_argument("--plus", type=int, default=6000, help="steps of SparseAnneal in saa+, for a shipped model")
    parser.add_argument("--seeds", type=int, default=1, help="of saa+")
    parser.add_argument("--weights", type=Path, default=ROOT / "weights")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


def call(*words: object) -> None:
    sys.argv = ["spgd", *map(str, words)]  # the command that the record shows
    app(sys.argv[1:], standalone_mode=False)


def train_and_evaluate(name: str, args: argparse.Namespace) -> dict[str, Any]:
    recipe, folder = ROOT / "recipes" / "quick" / f"{name}.toml", args.runs / name
    ship = args.ship if name == args.names[-1] else None
    if not (folder / "model.json").is_file():
        call("train", "--recipe", recipe, "--data", args.data, "--out", folder, "-q")
    wanted = recipes.read(recipe)
    model = f"zoo:{ship}" if ship else f"trained:{folder}"
    if ship:
        before = [zoo.card(TRAINED, args.runs / one) for one in stages(name)[:-1]]
        shipped(ship, folder, before, first_line(recipe), args.data, args.weights)
        os.environ[VARIABLE] = str(args.weights)
    papers = {words: under_saa(model, name, words, args) for words in budgets_of(wanted)}
    training, card = load_training(folder), json.loads((folder / "model.json").read_text())
    plus = under_plus(ship, wanted, args) if ship else []
    if ship:
        figures = [*(one for one, _ in papers.values()), *plus]
        add_robust(args.weights, ship, figures, f"robust: the first {args.n} of them")
    (_, saa), *others = ((words, one) for words, (_, one) in papers.items())
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
        **({"saa+": [dataclasses.asdict(one) for one in plus], "shipped as": ship} if ship else {}),
        "saa": saa,
        **({"others": dict(others)} if others else {}),
    }


def under_saa(model: str, name: str, words: str, args: argparse.Namespace) -> tuple[zoo.Figure, dict[str, Any]]:
    """A model under the paper's ensemble and a budget: the figure, and what the record has of it."""
    start, attack = time.perf_counter(), SparseAutoAttack(options.budget(words), args.steps, args.queries)
    run = evaluated(model, words, attack, args.runs / f"{name}-saa-{hyphened(words)}", args)
    return figure(attack, run.summary().robust_accuracy, args.n), {
        "steps": args.steps,
        "queries": args.queries,
        **dataclasses.asdict(run.summary()),
        "broken by": Counter(row.broken_by for row in run.rows if row.broken_by),
        "seconds with warm-up": round(time.perf_counter() - start, 1),
    }


def evaluated(
    model: str, words: str, attack: SparseAutoAttack, folder: Path, args: argparse.Namespace, seed: int = 0
) -> Record:
    """`spgd evaluate`: the run in the folder, or the rest of it."""
    call(
        "evaluate", "--model", model, "--data", args.data, "-n", args.n, "--k", attack.budget.k,
        "--pattern", words.split(maxsplit=1)[1], "--attack", attack.name, "--steps", attack.steps,
        "--queries", attack.queries, "--seed", seed, "--chunk", args.n, "--out", folder, "-q",
    )  # fmt: skip
    return load_run(folder)


def under_plus(ship: str, wanted: dict[str, Any], args: argparse.Namespace) -> list[zoo.Figure]:
    """The shipped model under saa+, one figure for each budget and seed."""
    found = []
    for words, budget in budgets_of(wanted).items():
        attack = SparseAutoAttack(budget, args.plus, args.queries, version="standard")
        for seed in range(args.seeds):
            folder = args.runs / f"{ship}-saa-plus-{hyphened(words)}-{seed}"
            run = evaluated(f"zoo:{ship}", words, attack, folder, args, seed)
            found.append(figure(attack, run.summary().robust_accuracy, args.n, seed))
            print(found[-1], found[-1].robust_accuracy, flush=True)
    return found


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
