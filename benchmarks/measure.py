"""Attack models of the zoo and write their robust accuracy to their cards, to the leaderboard and to a record:

    python benchmarks/measure.py small-anneal prn18-anneal --data npz:cifar10.npz --versions saa+ --seeds 3 \\
        --steps 6000 --queries 10000 --jobs 4

Each model is attacked by saa+ and saa (--versions) with each seed from 0 on, on the first n test images, under the
budgets that it was trained for or those of --budgets ("20 pixel" "1 row" "1 patch:5"). leaderboard/ stores which images
are robust in each run, so the card gets one figure for each run and one for all runs together: an image is then robust
if it is robust in every run. Models with the same weights share their figures.

Every figure is written as soon as its run is finished. Runs that are on the leaderboard are not repeated. After
--seconds unfinished runs are stopped, and the same command resumes them.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pool import Key, begin, collected, stopped
from provenance import ROOT, command, commit, named, origin, resolved, write_record
from shipping import all_runs, figure, hyphened

from sparsepgd import options, zoo
from sparsepgd.analysis.summary import describe_budget
from sparsepgd.problem.engine import Engine
from sparsepgd.report import leaderboard as board
from sparsepgd.reproduce.parts import Finished
from sparsepgd.runs import identity, runs
from sparsepgd.search import SparseAutoAttack
from sparsepgd.sources import load_data
from sparsepgd.threat import Budget
from sparsepgd.training.entries import add_robust

VERSIONS: dict[str, Any] = {"saa+": "standard", "saa": "paper"}


def budgets(name: str, chosen: list[str]) -> dict[str, Budget]:
    """The budgets by their descriptions; by default those of the card."""
    written = [identity.plain(options.budget(words)) for words in chosen] or zoo.card(name).budgets
    return {describe_budget(budget): identity.budget_of({"budget": budget}, None) for budget in written}


def attack(key: Key, args: argparse.Namespace) -> SparseAutoAttack:
    name, budget, version, _ = key
    return SparseAutoAttack(budgets(name, args.budgets)[budget], args.steps, args.queries, version=VERSIONS[version])


def attacked(key: Key, args: argparse.Namespace) -> Finished:
    """One run, in a process of its own."""
    parts = [*key, str(args.n), str(args.steps), str(args.queries)]
    folder = args.out / hyphened("-".join(parts).replace("+", "-plus"))
    name, *_, seed = key
    names = {"model": name, "data": args.data_name}
    data, model = load_data(args.data, args.n).to(args.device), zoo.load(name).to(args.device)
    engine = Engine(args.precision) if args.precision else None
    return Finished(runs.run(folder, attack(key, args), model, data, names, seed=int(seed), engine=engine), folder)


def done(key: Key, args: argparse.Namespace) -> bool:
    """Whether this run is on the leaderboard."""
    name, budget, version, seed = key
    entries = board.contenders(args.leaderboard) if args.leaderboard.is_dir() else []
    attempts = [
        attempt
        for entry in entries
        if (entry.model, entry.words, entry.data, entry.images) == (name, budget, args.data_name, args.n)
        for attempt in entry.attempts
    ]
    lengths = {"steps": args.steps, "queries": args.queries}
    return any(
        (attempt.attack, attempt.seed) == (version, int(seed)) and lengths.items() <= attempt.settings.items()
        for attempt in attempts
    )


def noted(args: argparse.Namespace, key: Key, finished: Finished) -> None:
    """Enter a finished run in the leaderboard, and in the card and the record of all models with its weights."""
    entered, record = board.add(args.leaderboard, finished.folder), finished.record
    figures = [figure(attack(key, args), record.robust_accuracy, args.n, int(key[-1])), *all_runs(entered)]
    weights = zoo.card(key[0]).sha256
    for name in (name for name in zoo.names() if zoo.card(name).sha256 == weights):
        known = {old.key for old in zoo.card(name).robust}
        folder = Path(str(zoo.where(name).folder))
        new = [one for one in figures if one.key not in known]  # a repeated run changes no figure
        card = add_robust(folder, name, new, f"robust: the first {args.n} test images")
        recorded(name, card, new, record, args)
    measured = ", ".join(f"{one.robust_accuracy:.1%} under {one}" for one in figures)
    print(f"       {key[0]}: {measured}", flush=True)


def recorded(name: str, card: zoo.Card, new: list[zoo.Figure], run: Any, args: argparse.Namespace) -> None:
    """Write the record of a model: for a subject all figures of its card, for others those that were measured here."""
    subject = name.startswith("subject-")
    file = args.records / (f"{name}.json" if subject else f"measured-{name}.json")
    record = json.loads(file.read_text()) if subject or file.is_file() else started(name, run, args)
    here = {zoo.Figure(**one).key for one in record["robust"]} | {one.key for one in new}
    record["robust"] = [asdict(one) for one in card.robust if subject or one.key in here]
    record["commands"] = list(dict.fromkeys([*record["commands"], command()]))
    commits = [*record.get("commit of attacks", "").split(", "), commit()]
    record["commit of attacks"] = ", ".join(dict.fromkeys(one for one in commits if one))
    record["hardware of attacks"] = sorted({*record.get("hardware of attacks", ()), run.environment["hardware"]})
    time = "seconds of attacks" if subject else "seconds"
    record[time] = round(record.get(time, 0) + run.seconds, 1)
    write_record(file, record)


def started(name: str, run: Any, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": name,
        "commands": [],
        **origin(args.data),
        "data": named(args.data),
        "hardware": run.environment["hardware"],
        "torch": run.environment["torch"],
        "images": args.n,
        "seeds": "that of each figure, from 0 on",
        "lengths": "steps and queries of each figure",
        "robust": [],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=zoo.names(), help="as `spgd zoo` lists them")
    parser.add_argument("--data", required=True, help="npz:FILE with x_test, y_test")
    parser.add_argument("--data-name", default="cifar10-test", help="of the images, on the leaderboard")
    parser.add_argument("--budgets", nargs="+", default=[], metavar="BUDGET", help="default: those of the card")
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=VERSIONS)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each version")
    parser.add_argument("-n", type=int, default=1000, help="test images")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--precision", help="of the search, e.g. bf16; successes are always verified in full precision")
    parser.add_argument("--jobs", type=int, default=4, help="processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "measured", help="folder for what is under way")
    parser.add_argument("--records", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--leaderboard", type=Path, default=ROOT / "leaderboard")
    args = parser.parse_args()
    args.data = resolved(args.data)
    return args


def main() -> int:
    begun, args = time.monotonic(), arguments()
    commit()  # cached now, so that it is the commit of the code that runs
    keys = [
        (name, words, version, str(seed))
        for seed in range(args.seeds)
        for name in args.names
        for words in budgets(name, args.budgets)
        for version in args.versions
    ]
    keys = [key for key in keys if not done(key, args)]
    pool = ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), begin)
    futures = {key: pool.submit(attacked, key, args) for key in keys}
    found = collected(futures, begun + args.seconds, partial(noted, args))
    stopped(pool)
    print(f"{len(found)} of {len(futures)} measured in {time.monotonic() - begun:.0f} s", flush=True)
    return int(len(found) < len(futures))


if __name__ == "__main__":
    sys.exit(main())
