"""Train the subjects: a small CIFAR-10 network in the place of each of the paper's models.

    python benchmarks/subjects.py --data npz:cifar10.npz --jobs 6 --seconds 550

This runs `spgd train --recipe recipes/subjects/NAME.toml`, several at a time; networks that others start from come
first. For each it writes the weights as float16 with their card to weights/subjects, and a record to
benchmarks/results. Finished trainings are skipped. After --seconds unfinished ones are stopped, and the same command
resumes them. measure.py adds robust accuracy.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from provenance import ROOT, command, named, origin, resolved, write_record
from shipping import first_line, seconds_an_epoch, shipped

from sparsepgd import zoo
from sparsepgd.training import recipes
from sparsepgd.training.run_folder import load as load_training
from sparsepgd.zoo.places import SUBJECTS, VARIABLE

RECIPES = ROOT / "recipes" / SUBJECTS
ORDER = (  # the most important first
    "plain", "sat", "strades", "anneal", "linf", "l2", "l1", "pgd0-a", "pgd0-t", "row", "patch5",
    "loap-t", "sn", "fast-ls", "patch3", "loap-a", "anneal-row", "anneal-patch", "anneal-union",
    "search",
)  # fmt: skip
NAMES = tuple(f"subject-{name}" for name in ORDER)
PAUSE = 0.5  # seconds between two checks of the processes


def recipe(name: str) -> dict[str, Any]:
    return recipes.read(RECIPES / f"{name}.toml")


def start(name: str) -> str | None:
    """The subject that this one starts from."""
    kind, _, place = recipe(name)["model"].partition(":")
    return place if kind == "zoo" else None


def card_of(name: str, args: argparse.Namespace) -> Path:
    return Path(args.weights / f"{name}.json")


def done(name: str, args: argparse.Namespace) -> bool:
    return card_of(name, args).is_file() and (args.records / f"{name}.json").is_file()


def begun(name: str, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a training in a process of its own; its output goes to a file."""
    words = ["train", "--recipe", f"recipes/{SUBJECTS}/{name}.toml", "--data", args.data, "--out", args.out / name]
    words += [word for value in args.set for word in ("--set", value)]
    shared = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}  # all share the cores
    with (args.out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sparsepgd", *map(str, words), "-q"],
            stdout=log, stderr=log, cwd=ROOT, env={**shared, **os.environ},
        )  # fmt: skip


def train(args: argparse.Namespace) -> int:
    """Start each training as soon as the network that it starts from is there and a process is free."""
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
    """Write the weights, card and record of a finished training."""
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
        "seconds an epoch": seconds_an_epoch(training),
        "trainings at once": args.jobs,
        "notices": training.notices,
        "clean": card.clean_accuracy,
        "measured": card.measured,
        "robust": [],
    }
    write_record(args.records / f"{name}.json", record)
    return card


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="npz:FILE with x_train, y_train, x_test, y_test")
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / SUBJECTS, help="folder for what is under way")
    parser.add_argument("--weights", type=Path, default=ROOT / "weights" / SUBJECTS, help=f"a folder {SUBJECTS}")
    parser.add_argument("--records", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, for every recipe, e.g. for a quick try")
    args = parser.parse_args()
    args.data = resolved(args.data)
    args.out, args.weights = args.out.resolve(), args.weights.resolve()
    return args


def main() -> int:
    args = arguments()
    if args.weights != ROOT / "weights" / SUBJECTS:  # where zoo:subject-plain is looked up
        os.environ[VARIABLE] = str(args.weights.parent)
    return train(args)


if __name__ == "__main__":
    sys.exit(main())
