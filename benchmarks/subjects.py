"""Subjects: a small CIFAR-10 network in the place of each of the paper's models, trained by recipe and measured.

    python benchmarks/subjects.py train --data npz:cifar10.npz --jobs 6 --seconds 550
    python benchmarks/subjects.py measure --data npz:cifar10.npz -n 1000 --steps 1000 --queries 5000 --jobs 6

`train` runs `spgd train --recipe recipes/subjects/NAME.toml`, several at a time, what others start from first. Of each
it writes the weights as float16 with their card to weights/subjects, and a record to benchmarks/results. `measure` adds
robust accuracy under saa and saa+ of the first n test images, for the budgets that the subject was trained for, or for
those that --budgets names ("20 pixel" "1 row" "1 patch:5"). Both leave out what is done; after --seconds what is under
way is stopped, and the same command resumes it.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pool import Key, begin, collected, stopped
from provenance import ROOT, command, commit, named, origin
from shipping import budgets_of, figure, first_line, hyphened, shipped

from sparsepgd import atomic, options, zoo
from sparsepgd.reproduce.parts import Finished
from sparsepgd.runs import runs
from sparsepgd.search import SparseAutoAttack
from sparsepgd.sources import load_data
from sparsepgd.threat import Budget
from sparsepgd.training import recipes
from sparsepgd.training.entries import VERSIONS, add_robust
from sparsepgd.training.records import load as load_training
from sparsepgd.zoo.places import SUBJECTS, VARIABLE

RECIPES = ROOT / "recipes" / SUBJECTS
ORDER = (  # what matters most first
    "plain", "sat", "strades", "anneal", "linf", "l2", "l1", "pgd0-a", "pgd0-t", "row", "patch5",
    "loap-t", "sn", "fast-ls", "patch3", "loap-a", "anneal-row", "anneal-patch", "anneal-union",
    "search",
)  # fmt: skip
NAMES = tuple(f"subject-{name}" for name in ORDER)
PAUSE = 0.5  # seconds between two looks at the processes


def recipe(name: str) -> dict[str, Any]:
    return recipes.read(RECIPES / f"{name}.toml")


def budgets(name: str, chosen: Sequence[str] = ()) -> dict[str, Budget]:
    return {words: options.budget(words) for words in chosen} or budgets_of(recipe(name))


def start(name: str) -> str | None:
    """The subject that this one starts from."""
    kind, _, place = recipe(name)["model"].partition(":")
    return place if kind == "zoo" else None


def card_of(name: str, args: argparse.Namespace) -> Path:
    return Path(args.weights / f"{name}.json")


def done(name: str, args: argparse.Namespace) -> bool:
    return card_of(name, args).is_file() and (args.records / f"{name}.json").is_file()


def begun(name: str, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    """A training in a process of its own; what it prints goes to a file."""
    words = ["train", "--recipe", f"recipes/{SUBJECTS}/{name}.toml", "--data", args.data, "--out", args.out / name]
    words += [word for value in args.set for word in ("--set", value)]
    shared = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}  # all have the same cores
    with (args.out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sparsepgd", *map(str, words), "-q"],
            stdout=log, stderr=log, cwd=ROOT, env={**shared, **os.environ},
        )  # fmt: skip


def train(args: argparse.Namespace) -> int:
    """Each training as soon as its start is there and a place is free."""
    first, waiting = time.monotonic(), [name for name in args.only if not done(name, args)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    while (waiting or running) and (now := time.monotonic() - first) < args.seconds:
        for name in [name for name, process in running.items() if process.poll() is not None]:
            if running.pop(name).returncode:
                print(f"{name} failed:\n{(args.out / f'{name}.log').read_text()[-2000:]}", flush=True)
                continue
            card = entered(name, args)
            told = f"clean {card.clean_accuracy:.1%}, {card.epochs} epochs, {card.training_seconds} s with all stages"
            print(f"{now:6.1f} {name}: {told}", flush=True)
        ready = [name for name in waiting if (before := start(name)) is None or card_of(before, args).is_file()]
        for name in ready[: max(0, args.jobs - len(running))]:
            waiting.remove(name)
            running[name] = begun(name, args)
        if not running:
            break
        time.sleep(PAUSE)
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()
    left = [name for name in args.only if not done(name, args)]
    print(f"left: {', '.join(left) or 'none'}", flush=True)
    return int(bool(left))


def entered(name: str, args: argparse.Namespace) -> zoo.Card:
    """Weights, card and record of a finished training."""
    first = start(name)
    before = [] if first is None else [zoo.card(first)]
    about = first_line(RECIPES / f"{name}.toml")
    card = shipped(name, args.out / name, before, about, args.data, args.weights)
    training = load_training(args.out / name)
    record = {
        "recipe": f"recipes/{SUBJECTS}/{name}.toml",
        "commands": [card.command, command()],
        **origin(args.data),
        "data": named(args.data),
        "hardware": card.hardware,
        "torch": card.torch_version,
        "seed": card.seed,
        "epochs": card.epochs,
        "seconds": card.training_seconds,
        "seconds an epoch": round(statistics.median(v for v in training.curves["seconds"] if v is not None), 2),
        "trainings at once": args.jobs,
        "notices": training.notices,
        "clean": card.clean_accuracy,
        "measured": card.measured,
        "robust": [],
    }
    written(args.records / f"{name}.json", record)
    return card


def attacked(name: str, words: str, version: Any, args: argparse.Namespace) -> Finished:
    """A subject under saa+ or saa and one of its budgets, in a process of its own."""
    attack = SparseAutoAttack(budgets(name, args.budgets)[words], args.steps, args.queries, version=version)
    folder = args.out / f"{name}-{attack.name}-{hyphened(words)}-{args.n}-{args.steps}-{args.queries}"
    data = load_data(args.data, args.n).to(args.device)
    model = zoo.load(name).to(args.device)
    return Finished(runs.run(folder, attack, model, data, {"model": name, "data": named(args.data)}), folder)


def measure(args: argparse.Namespace) -> int:
    begun, here = time.monotonic(), [name for name in args.only if done(name, args)]
    pool = ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), begin)
    keys = [(name, words, version) for name in here for words in budgets(name, args.budgets) for version in VERSIONS]
    futures = {key: pool.submit(attacked, *key, args) for key in keys}
    found = collected(futures, begun + args.seconds)
    stopped(pool)
    for name in here:
        if mine := {key: one for key, one in found.items() if key[0] == name}:
            noted(name, mine, args)
    print(f"{len(found)} of {len(futures)} measured in {time.monotonic() - begun:.0f} s", flush=True)
    return int(len(found) < len(futures))


def noted(name: str, found: dict[Key, Finished], args: argparse.Namespace) -> None:
    """Figures in the card and in the record of a subject."""
    figures = []
    for words, version in ((words, version) for words in budgets(name, args.budgets) for version in VERSIONS):
        if one := found.get((name, words, version)):
            attack = SparseAutoAttack(budgets(name, args.budgets)[words], args.steps, args.queries, version=version)
            figures.append(figure(attack, one.record.robust_accuracy, args.n))
    card = add_robust(args.weights, name, figures, f"robust: the first {args.n} test images")
    file = args.records / f"{name}.json"
    record = json.loads(file.read_text())
    record["robust"] = [asdict(figure) for figure in card.robust]
    record["commands"] = list(dict.fromkeys([*record["commands"], command()]))
    record["commit of attacks"] = commit()
    record["seconds of attacks"] = record.get("seconds of attacks", 0) + round(
        sum(one.record.seconds for one in found.values()), 1
    )
    written(file, record)


def written(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, (json.dumps(record, indent=1) + "\n").encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_subparsers(dest="work", required=True)
    one, other = work.add_parser("train"), work.add_parser("measure")
    for each in (one, other):
        each.add_argument("--data", required=True, help="npz:FILE with x_train, y_train, x_test, y_test")
        each.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
        each.add_argument("--jobs", type=int, default=4, help="processes")
        each.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
        each.add_argument("--out", type=Path, default=ROOT / "runs" / SUBJECTS, help="folder for what is under way")
        each.add_argument("--weights", type=Path, default=ROOT / "weights" / SUBJECTS, help=f"a folder {SUBJECTS}")
        each.add_argument("--records", type=Path, default=ROOT / "benchmarks" / "results")
    one.add_argument("--set", action="append", default=[], help="NAME=VALUE, for every recipe, e.g. for a quick try")
    other.add_argument("--budgets", nargs="+", default=[], metavar="BUDGET", help="default: those of the recipe")
    other.add_argument("-n", type=int, default=1000, help="test images")
    other.add_argument("--steps", type=int, default=1000)
    other.add_argument("--queries", type=int, default=5000)
    other.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    kind, _, file = args.data.partition(":")
    args.data = f"{kind}:{Path(file).resolve()}" if file else kind
    args.out, args.weights = args.out.resolve(), args.weights.resolve()
    return args


def main() -> int:
    args = arguments()
    if args.weights != ROOT / "weights" / SUBJECTS:  # where zoo:subject-plain is looked for
        os.environ[VARIABLE] = str(args.weights.parent)
    return {"train": train, "measure": measure}[args.work](args)


if __name__ == "__main__":
    sys.exit(main())
