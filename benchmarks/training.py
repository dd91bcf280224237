"""Train models by recipes and evaluate them:

    python benchmarks/training.py cifar10-plain cifar10-fast-ls --data npz:cifar10.npz

The same as `spgd train --recipe recipes/quick/NAME.toml --out runs/quick/NAME` and `spgd evaluate --attack saa`, one
after the other; the same command resumes. The records go to benchmarks/results/train-NAME.json. The recipes of
recipes/paper are run in the same way.

    python benchmarks/training.py cifar10-plain cifar10-anneal --data npz:cifar10.npz --ship prn18-anneal --seeds 3

`--ship`: the weights of the last model go to weights/ as float16, with a card, and these weights are measured, also
under saa+ with --plus steps. The card also has the robust accuracy against all runs together. A recipe with several
budgets (`others`) is measured under each of them. `--only-train` omits the measurements; the same command without it
adds them later. With `--steps 0`, the figure under the paper's ensemble is the short one that the training itself
measured at its end, before the weights were rounded.

    python benchmarks/training.py cifar10-plain cifar10-anneal --data npz:cifar10.npz --seed 1 \\
        --ship prn18-anneal-1 --weights other --seeds 3

`--seed`: the seed of all stages of the training; the record then goes to seed-NAME-1.json. `--runs` must be a folder
without runs of other seeds.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import ROOT, named, origin
from shipping import all_runs, budgets_of, figure, first_line, hyphened, seconds_an_epoch, shipped

from sparsepgd import zoo
from sparsepgd.analysis.summary import wilson
from sparsepgd.report import leaderboard as board
from sparsepgd.runs.folders import load as load_run
from sparsepgd.runs.records import Record
from sparsepgd.search import SparseAutoAttack
from sparsepgd.sources import TRAINED
from sparsepgd.training import recipes
from sparsepgd.training.entries import add_robust
from sparsepgd.training.run_folder import load as load_training
from sparsepgd.zoo.places import VARIABLE

WEIGHTS = ROOT / "weights"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [file.stem for folder in ("quick", "paper") for file in sorted((ROOT / "recipes" / folder).glob("*.toml"))]
    parser.add_argument(
        "names", nargs="+", metavar="NAME", choices=known,
        help="of recipes in recipes/quick or recipes/paper, in an order in which one builds on another",
    )  # fmt: skip
    parser.add_argument("--data", required=True, help="as for spgd train")
    parser.add_argument("--runs", type=Path, default=Path("runs/quick"))
    parser.add_argument("-n", type=int, default=1000, help="test images under attack")
    parser.add_argument("--steps", type=int, default=300, help="of sPGD in saa; 0: without a long saa")
    parser.add_argument("--queries", type=int, default=10_000, help="of Sparse-RS")
    parser.add_argument("--ship", metavar="NAME", help="of the model in weights/")
    parser.add_argument("--plus", type=int, default=6000, help="steps of SparseAnneal in saa+, for a shipped model")
    parser.add_argument("--seeds", type=int, default=1, help="of saa+")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--jobs", type=int, default=1, help="evaluations at a time")
    parser.add_argument("--only-train", action="store_true", help="without evaluation and record")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


@dataclass(frozen=True)
class Evaluation:
    """A model under an ensemble and a budget, by `spgd evaluate` in a process of its own."""

    model: str
    words: str  # the budget
    attack: SparseAutoAttack
    folder: Path
    seed: int = 0

    def run(self, args: argparse.Namespace) -> None:
        """Run the evaluation, unless it is finished already."""
        attack, pattern = self.attack, self.words.split(maxsplit=1)[1]
        words = [
            "evaluate", "--model", self.model, "--data", args.data, "-n", args.n, "--k", attack.budget.k,
            "--pattern", pattern, "--attack", attack.name, "--steps", attack.steps, "--queries", attack.queries,
            "--seed", self.seed, "--chunk", args.n, "--out", self.folder, "-q",
        ]  # fmt: skip
        if not (self.folder / "run.json").is_file():
            spgd(*words)
        found = self.figure
        print(found, found.robust_accuracy, flush=True)

    @property
    def record(self) -> Record:
        return load_run(self.folder)

    @property
    def figure(self) -> zoo.Figure:
        record = self.record
        return figure(self.attack, record.summary().robust_accuracy, len(record.rows), self.seed)

    def told(self) -> dict[str, Any]:
        """The entry of this evaluation in the record of a training."""
        record = self.record
        return {
            "steps": self.attack.steps,
            "queries": self.attack.queries,
            **dataclasses.asdict(record.summary()),
            "broken by": Counter(row.broken_by for row in record.rows if row.broken_by),
        }


Evaluations = list[Evaluation]


def spgd(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "sparsepgd", *map(str, words)], check=True)


def trained(name: str, ship: str | None, args: argparse.Namespace) -> str:
    """The trained model, by the name that `spgd evaluate` takes."""
    recipe, folder = recipe_of(name), args.runs / name
    if not (folder / "model.json").is_file():
        seed = ["--seed", args.seed] if args.seed else []
        spgd("train", "--recipe", recipe.relative_to(ROOT), "--data", args.data, *seed, "--out", folder, "-q")
    if ship is None:
        return f"trained:{folder}"
    if not (args.weights / f"{ship}.json").is_file():
        shipped(ship, folder, before(name, args), first_line(recipe), args.data, args.weights)
    os.environ[VARIABLE] = str(args.weights)
    return f"zoo:{ship}"


def before(name: str, args: argparse.Namespace) -> list[zoo.Card]:
    """The cards of the stages that a recipe starts from; the card of a model of the zoo covers all its stages."""
    kind, _, place = recipes.read(recipe_of(name))["model"].partition(":")
    if kind == "zoo":
        return [zoo.card(place)]
    start = Path(place).name
    return [*before(start, args), card_of(args.runs / start)] if kind == "trained" else []


def card_of(folder: Path) -> zoo.Card:
    """The card of a training, whose weights need not be there."""
    return zoo.Card.of(json.loads((folder / f"{TRAINED}.json").read_text()))


def evaluations(name: str, model: str, ship: str | None, args: argparse.Namespace) -> tuple[Evaluations, Evaluations]:
    """The evaluations of a model under each of its budgets: by saa, and if it is shipped by saa+ with each seed."""
    saa, plus = [], []
    for words, budget in budgets_of(recipes.read(recipe_of(name))).items():
        if args.steps:
            attack = SparseAutoAttack(budget, args.steps, args.queries)
            saa.append(Evaluation(model, words, attack, args.runs / f"{name}-saa-{hyphened(words)}"))
        attack = SparseAutoAttack(budget, args.plus, args.queries, version="standard")
        for seed in range(args.seeds if ship else 0):
            folder = args.runs / f"{ship}-saa-plus-{hyphened(words)}-{seed}"
            plus.append(Evaluation(model, words, attack, folder, seed))
    return saa, plus


def train_and_evaluate(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The record of a training, with what was measured."""
    ship = args.ship if name == args.names[-1] else None
    saa, plus = evaluations(name, trained(name, ship, args), ship, args)
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda one: one.run(args), [*plus, *saa]))
    short = next(one for one in card_of(args.runs / name).robust if one.attack == "saa")
    entries: dict[str, Any] = {"saa": saa[0].told() if saa else of_training(short)}
    if saa[1:]:
        entries["others"] = {one.words: one.told() for one in saa[1:]}
    if ship is None:
        return record_of(name, args) | entries
    measured = [*figures(plus), *together([*saa, *plus])]
    told = f"robust: the first {args.n} of them{'' if saa else ', under saa before the weights were rounded'}"
    add_robust(args.weights, ship, [*(figures(saa) or [short]), *measured], told)
    shipped_as = {"shipped as": ship} if args.weights == WEIGHTS else {}
    return record_of(name, args) | {"saa+": [dataclasses.asdict(one) for one in measured], **shipped_as} | entries


def record_of(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The training itself, with the cost of all stages."""
    folder = args.runs / name
    training, card = load_training(folder), json.loads((folder / "model.json").read_text())
    stages = [*before(name, args), card_of(folder)]
    return {
        "recipe": str(recipe_of(name).relative_to(ROOT)),
        "command": card["command"].replace(args.data, named(args.data)),
        **origin(args.data),
        "data": Path(args.data).name,
        "hardware": training.environment["hardware"],
        "torch": card["torch_version"],
        "seed": card["seed"],
        "epochs": training.epochs,
        "seconds": round(training.seconds, 1),
        "seconds an epoch": seconds_an_epoch(training),
        "all stages": {
            "epochs": sum(stage.epochs for stage in stages),
            "seconds": round(sum(stage.training_seconds for stage in stages), 1),
        },
        "notices": training.notices,
        "curves": {key: [v if v is None else round(v, 4) for v in row] for key, row in training.curves.items()},
        "clean": card["clean_accuracy"],
        "measured": card["measured"],
        "robust": card["robust"],
    }


def of_training(one: zoo.Figure) -> dict[str, Any]:
    """The entry in the record of an ensemble that the training measured at its end."""
    interval = wilson(round(one.robust_accuracy * one.images), one.images)
    return {**dataclasses.asdict(one), "interval": interval, "measured": "before the weights were rounded"}


def figures(evaluations: Iterable[Evaluation]) -> list[zoo.Figure]:
    return [one.figure for one in evaluations]


def together(evaluations: Iterable[Evaluation]) -> list[zoo.Figure]:
    """For each budget, the figure of all runs together."""
    entered: dict[str, board.Contender] = {}
    for one in evaluations:
        new = board.from_run(one.record)
        entered[one.words] = board.joined(entered[one.words], new) if one.words in entered else new
    return [figure for one in entered.values() for figure in all_runs(one)]


def recipe_of(name: str) -> Path:
    return next((ROOT / "recipes").glob(f"*/{name}.toml"))


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        file = args.out / (f"seed-{name}-{args.seed}.json" if args.seed else f"train-{name}.json")
        if args.only_train:
            print(trained(name, args.ship if name == args.names[-1] else None, args), flush=True)
        elif not file.is_file():
            file.write_text(json.dumps(train_and_evaluate(name, args), indent=1) + "\n")
            print(f"record in {file.name}", flush=True)


if __name__ == "__main__":
    main()
