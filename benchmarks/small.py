"""The paper's CIFAR-10 tables and figures with models of one's own: several attacks at a time, all in one record.

    python benchmarks/small.py --models weights --record benchmarks/results/small-prn18.json --jobs 12
    python benchmarks/small.py --models weights --record tried.json --scale smoke --place sTRADES=small-strades

`spgd reproduce RECIPE --scale small` makes the same numbers, one attack after the other. --models is a folder with
NAME.safetensors and the card NAME.json of each model, --place says which of them takes the place of which of the
paper's; a place whose model is not there is left out. Run again, it goes on with what is not finished. After --seconds
the attacks under way are given up, and tables have gaps. Seconds in the record are those of attacks that share a
device: they are no measurement of speed. Needs no matplotlib; benchmarks/results_page.py draws the figures.
"""

import argparse
import json
import math
import multiprocessing
import os
import re
import shlex
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from provenance import origin

from sparsepgd import atomic, zoo
from sparsepgd.reproduce.jobs import Job, scale
from sparsepgd.reproduce.parts import Finished, Plan
from sparsepgd.reproduce.recipes import recipe

PLACES = {  # the paper's model: ours; of several the first that is there
    "Vanilla": ("prn18-plain",),
    "sAT": ("prn18-sat",),
    "sTRADES": ("prn18-strades",),
    "sTRADES-l0": ("prn18-strades",),
    "sTRADES-row": ("prn18-strades-row",),
    "sTRADES-p5x5": ("prn18-strades-patch5",),
    "Fast-EG-l1": ("prn18-l1", "prn18-linf"),
}
ABLATIONS = ("components", "alpha", "beta", "tolerance", "alpha-structured", "beta-structured", "tolerance-structured")
RECIPES = ("unstructured", "structured", "histogram", "iterations", *ABLATIONS, "sparsity")  # what matters most first
ABLATED = "Fast-EG-l1"  # of our models none is trained like it: it has a place in the ablations alone
SLOW = ("SF", "LOAP", "CS")  # columns that take longest on a device: they begin first
Key = tuple[str, str]  # what decides an attack: the model's name, and all of its hyper-parameters


@dataclass(frozen=True)
class Order:
    """What every process must know."""

    models: Path
    places: tuple[tuple[str, str], ...]  # the paper's model, ours
    data: str
    images: int | None
    effort: str
    device: str
    seed: int
    out: Path

    def within(self, name: str) -> dict[str, str]:
        """The places in one recipe."""
        found = {role: model for role, model in self.places if role in recipe(name).roles}
        return found if name in ABLATIONS else {role: model for role, model in found.items() if role != ABLATED}

    def job(self, name: str) -> Job:
        """Of one recipe; its models are all that have a place in it."""
        own = {role: f"zoo:{model}" for role, model in self.within(name).items()}
        return Job(
            scale(self.effort), self.out, own, self.data, self.images, None, torch.device(self.device), self.seed
        )


@cache
def planned(order: Order, name: str) -> tuple[Job, Plan]:
    return recipe(name).prepare(order.job(name))


def begin(models: str) -> None:
    """In every process: where zoo:NAME is looked for; the cores are shared by all."""
    os.environ["SPARSEPGD_WEIGHTS"] = models
    torch.set_num_threads(1)


def attack(order: Order, name: str, place: int) -> Finished:
    """One part of a recipe, in a process of its own; read if it is finished."""
    job, plan = planned(order, name)
    found: Finished = plan.parts[place].run(job, None)
    return found


def key(part: Any) -> Key:
    return part.subject.name, repr(part.attack)


def submitted(pool: ProcessPoolExecutor, order: Order, names: list[str]) -> dict[Key, Future[Finished]]:
    """Every attack once, also where several recipes need it. What is planned here needs no device."""
    found: dict[Key, Future[Finished]] = {}
    for name in names:
        parts = list(enumerate(planned(replace(order, device="cpu"), name)[1].parts))
        parts.sort(key=lambda pair: SLOW.index(column) if (column := pair[1].column) in SLOW else len(SLOW))
        for place, part in parts:
            if key(part) not in found:
                found[key(part)] = pool.submit(attack, order, name, place)
    return found


def collected(futures: dict[Key, Future[Finished]], until: float) -> dict[Key, Finished]:
    """What is finished in time; an attack that failed says so."""
    done: dict[Key, Finished] = {}
    keys, begun, left = {future: one for one, future in futures.items()}, time.monotonic(), until - time.monotonic()
    try:
        for future in as_completed(keys, None if math.isinf(left) else max(left, 0)):
            one, error = keys[future], future.exception()
            if error is None:
                done[one] = future.result()
            said = f"{done[one].record.seconds:.1f} s" if error is None else f"{type(error).__name__}: {error}"
            what = f"{one[0]}, {one[1].partition(', loss=')[0]})"
            print(f"{time.monotonic() - begun:6.1f} {len(done)}/{len(keys)} {what}: {said}", flush=True)
    except TimeoutError:
        print("the time is over", flush=True)
    return done


def stopped(pool: ProcessPoolExecutor) -> None:
    """What is under way is given up: its folder is taken up by the next run."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def table(order: Order, name: str, done: dict[Key, Finished]) -> dict[str, Any] | None:
    """The numbers of a recipe with what they come from; None if too little is finished."""
    plan = planned(replace(order, device="cpu"), name)[1]
    found = [done.get(key(part)) for part in plan.parts]
    missing = sum(one is None for one in found)
    if missing == len(found) or (missing and not plan.gaps):
        return None
    outcome = plan.finish(found)
    if missing:
        dash = "a dash means that the run did not finish within the time limit"
        outcome = replace(outcome, reasons=[*outcome.reasons, dash])
    about = {"source": recipe(name).source, "about": recipe(name).about}
    return outcome.record(2, **about, places=order.within(name), missing=missing)


def run(one: Key, finished: Finished) -> dict[str, Any]:
    """An attack in one line."""
    record = finished.record
    return {
        "model": one[0],
        "attack": one[1],
        "clean": sum(row.clean_correct for row in record.rows),
        "robust": sum(row.clean_correct and not row.fooled for row in record.rows),
        "forwards": round(mean(row.forwards for row in record.rows), 1),
        "backwards": round(mean(row.backwards for row in record.rows), 1),
        "seconds": round(record.seconds, 2),
    }


def written(order: Order, args: argparse.Namespace, done: dict[Key, Finished], seconds: float) -> dict[str, Any]:
    """The record."""
    tables = {name: made for name in args.recipes if (made := table(order, name, done)) is not None}
    first = next(iter(done.values())).record
    about = {"curves", "arguments"}  # of a card, not repeated here
    cards = {model: asdict(zoo.card(model)) for _, model in order.places}
    said = [
        f"{one[0]}, {f.record.configuration['attack']['name']}: {n.message}"
        for one, f in done.items()
        for n in f.record.warnings
    ]
    return {
        "command": command(args),
        **origin(order.data),
        "scale": order.effort,
        "images": first.images,
        "data": named(order.data),
        "seed": order.seed,
        **{name: first.environment[name] for name in ("hardware", "python", "torch", "sparsepgd")},
        "processes": args.jobs,
        "seconds": round(seconds, 1),
        "models": {
            name: {key: value for key, value in card.items() if key not in about} for name, card in cards.items()
        },
        "not finished": [name for name in args.recipes if name not in tables],
        "recipes": tables,
        "runs": [run(*pair) for pair in done.items()],
        "notices": sorted(set(said)),
    }


def named(data: str) -> str:
    """Files by their names alone."""
    kind, colon, path = data.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else data


def command(args: argparse.Namespace) -> str:
    """The command line; of folders and files only their names."""
    plain = {str(args.models): args.models.name, str(args.out): args.out.name, args.data: named(args.data)}
    plain |= {str(args.record): f"benchmarks/results/{args.record.name}"}
    return shlex.join(["python", "benchmarks/small.py", *(plain.get(word, word) for word in sys.argv[1:])])


def dumped(record: dict[str, Any]) -> bytes:
    """Indented, but innermost objects on one line each."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    return (re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n").encode()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with weights and cards")
    parser.add_argument("--record", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--place", nargs="+", default=[], metavar="ROLE=NAME", help="ours in the place of the paper's")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--data", default="bundled", help="as for spgd reproduce")
    parser.add_argument("-n", type=int, help="images; left out: those of the scale")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--out", type=Path, default=Path("runs/small"), help="folder for what is finished")
    return parser.parse_args()


def places(args: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Those of PLACES and of the command line whose models are there."""
    wanted = {**PLACES, **{role: (model,) for role, model in (word.split("=", 1) for word in args.place)}}
    here, found = zoo.names(), []
    for role, models in wanted.items():
        own = [model for model in models if model in here]
        found += [(role, model) for model in own[:1]]
        if not own:
            print(f"no {' or '.join(models)} for {role}: left out", file=sys.stderr, flush=True)
    return tuple(found)


def main() -> int:
    begun, args = time.monotonic(), arguments()
    begin(str(args.models))
    order = Order(args.models, places(args), args.data, args.n, args.scale, args.device, args.seed, args.out)
    args.recipes = [name for name in args.recipes if order.job(name).models]
    if not args.recipes:
        sys.exit(f"no model of {args.models} has a place in these recipes; say --place ROLE=NAME")
    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(args.jobs, mp_context=start, initializer=begin, initargs=(str(args.models),))
    futures = submitted(pool, order, args.recipes)
    print(f"{len(futures)} attacks for {len(args.recipes)} recipes", flush=True)
    done = collected(futures, begun + args.seconds)
    stopped(pool)
    if not done:
        sys.exit("nothing is finished; give it more --seconds")
    record = written(order, args, done, time.monotonic() - begun)
    args.record.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(args.record, dumped(record))
    print(f"{len(done)} of {len(futures)} attacks in {record['seconds']} s; {args.record}", flush=True)
    return int(len(done) < len(futures))


if __name__ == "__main__":
    sys.exit(main())
