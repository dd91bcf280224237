"""The paper's tables and figures: the attacks of `spgd reproduce`, several at a time, one record for each recipe.

    python benchmarks/paper_runs.py --data npz:test1000.npz -n 1000 --steps 1000 --queries 5000 --jobs 14 --seconds 540
    python benchmarks/paper_runs.py runtime --data npz:test1000.npz -n 1000 --jobs 1
    python benchmarks/paper_runs.py imagenet structured-imagenet --name lite0 --data csv:LABELS.csv -n 100 --steps 100
        --model Vanilla=examples/efficientnet_lite.py:lite0
    python benchmarks/paper_runs.py detection --name yolov8n --model detection=yolov8n.pt --data folder:COCO -n 48
        --steps 20 --queries 40 --passes 42 --rows l0_1600 patch4x4_100
    python benchmarks/paper_runs.py transfer --name vgg --model V=trained:v V2=trained:v2 R=trained:r R2=trained:r2

Without --model the models are the subjects, as for `spgd reproduce`. Recipes run in the order given, or in that of
RECIPES, the most important first. With subjects, the recipes for large images, Figure 1 and the pictures use bundled
images, at most 100; for a network for large images see examples/efficientnet_lite.py.

The same command resumes. OUT/parts has a small file for each finished attack, without images; with that folder,
another machine can continue. After --seconds unfinished attacks are stopped, and tables have gaps. One process
(--jobs 1) measures time: it warms up a GPU, uses a folder of its own, and is the only way to run `runtime` and recipes
that train their networks.
"""

import argparse
import gzip
import json
import math
import multiprocessing
import re
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from pool import Key, begin, collected, stopped
from provenance import ROOT, command, commit, named, origin

from sparsepgd import atomic, zoo
from sparsepgd.report.style import svg
from sparsepgd.reproduce.experiments.ablation import SCANS
from sparsepgd.reproduce.experiments.training import POLICIES
from sparsepgd.reproduce.jobs import OURS, SHIPPED, SIDE, Job, Scale, scale
from sparsepgd.reproduce.parts import Case, Finished, Number, Part, Plan, identified
from sparsepgd.reproduce.recipe import Recipe
from sparsepgd.reproduce.recipes import recipe
from sparsepgd.runs.identity import environment
from sparsepgd.runs.records import Record
from sparsepgd.search import SparsePGD
from sparsepgd.sources import TRAINED
from sparsepgd.threat import Budget

SUBJECTS, RUNTIME, PICTURES = "subjects", "runtime", "pictures"
RECIPES = (
    "unstructured", "structured", "histogram", *SCANS, "iterations", "sparsity", "ratio", "watermarks",
)  # fmt: skip
SLOW = ("SF", "LOAP", "CS")  # the slowest columns on a GPU, which start first among equals
MOST = 100  # bundled images
WARM = 20  # steps


@dataclass(frozen=True)
class Order:
    """The settings that every process needs."""

    models: tuple[tuple[str, str], ...]  # the paper's model, the source of ours; (): those of the recipes
    data: str
    images: int
    scale: Scale
    device: str
    seed: int
    out: Path
    few: int
    chunk: int | None = None
    alone: bool = False
    size: int | None = None
    rows: tuple[str, ...] = ()  # of tables; (): all
    columns: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()

    def own_images(self, one: Recipe) -> bool:
        """Whether a recipe uses bundled images, enlarged if it is for large ones."""
        return not self.models and (one.size > SIDE or one.name in ("ratio", PICTURES))

    def job(self, name: str) -> Job:
        """The job of one recipe, with all models that have a place in it."""
        one = recipe(name)
        models = {role: source for role, source in self.models if role in one.roles}
        data, images = self.data, self.images
        if self.own_images(one):
            data, images = SHIPPED, min(images, MOST)
        few = (("CS", self.few), ("SF", self.few))
        device = torch.device(self.device)
        return Job(self.scale, self.out, models, data, images, self.size, device, self.seed, few, self.chunk)


@dataclass(frozen=True)
class Done:
    """A finished part: the result of `Part.run`, its environment and its time."""

    value: Any
    environment: dict[str, str]
    seconds: float


@lru_cache(maxsize=2)  # recipes run one after the other, and each keeps its images
def planned(order: Order, name: str) -> tuple[Job, Plan]:
    return recipe(name).prepare(order.job(name))


@cache
def warm(order: Order, name: str) -> None:
    """Load kernels before the first measurement of time."""
    one = planned(order, name)[1].parts[0].subject
    SparsePGD(Budget(1), WARM, early_stop=False)(one.model, one.x, one.y)


def attack(order: Order, name: str, place: int) -> Done:
    """Run one part of a recipe in a process of its own, or read it if it is finished."""
    job, plan = planned(order, name)
    part = plan.parts[place]
    file = order.out / "parts" / f"{identified(part, job)[1]}.json.gz"
    if file.is_file() and name != PICTURES:  # those need the images
        return read(file)
    if order.alone and job.device.type != "cpu" and isinstance(part, Case):
        warm(order, name)
    begun = time.perf_counter()
    value = part.run(job, None)
    seconds = value.record.seconds if isinstance(value, Finished) else time.perf_counter() - begun
    done = Done(value, environment(job.device), seconds)
    write(file, done)
    return done


def write(file: Path, done: Done) -> None:
    """Write what tables need of a run: no images, losses or confidences."""
    content: dict[str, Any] = {"environment": done.environment, "seconds": done.seconds}
    if isinstance(done.value, Finished):
        omitted = {"loss": None, "clean_confidence": None, "confidence": None}
        rows = tuple(row.model_copy(update=omitted) for row in done.value.record.rows)
        content["record"] = done.value.record.model_copy(update={"rows": rows}).model_dump(mode="json")
        content["folder"] = done.value.folder.name
    else:
        content["value"] = done.value
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, gzip.compress(json.dumps(content).encode(), mtime=0))


def read(file: Path) -> Done:
    content = json.loads(gzip.decompress(file.read_bytes()))
    value = content.get("value")
    if "record" in content:
        value = Finished(Record.model_validate_json(json.dumps(content["record"])), Path(content["folder"]))
    return Done(value, content["environment"], content["seconds"])


def key(part: Part) -> Key:
    """What identifies a part, including the number of images, because slow attacks may have fewer."""
    return part.subject.name, type(part).__name__, repr(part.attack), str(len(part.subject.x))


def submitted(pool: ProcessPoolExecutor, order: Order, names: list[str]) -> dict[Key, Future[Done]]:
    """Submit every attack once, even if several recipes need it. Planning here needs no device."""
    futures: dict[Key, Future[Done]] = {}
    for name in names:
        parts = list(enumerate(planned(replace(order, device="cpu"), name)[1].parts))
        parts.sort(key=lambda pair: turn(pair[1]))
        for place, part in parts:
            if key(part) not in futures and selected(order, part):
                futures[key(part)] = pool.submit(attack, order, name, place)
    return futures


def selected(order: Order, cell: Part | Number, *more: str) -> bool:
    """Whether a part or a number is in the rows, columns (or `more` ones) and sections that were asked for."""
    columns = order.columns and (*order.columns, *more)
    chosen = {"row": order.rows, "column": columns, "section": order.sections}
    return all(not names or getattr(cell, field, None) in names for field, names in chosen.items())


def turn(part: Part) -> tuple[bool, int, int]:
    """The order of parts: members of ensembles first, then the largest budget, which most of the paper's tables use,
    then the slowest attacks."""
    column = getattr(part, "column", "")
    return column not in OURS, -part.attack.budget.k, SLOW.index(column) if column in SLOW else len(SLOW)


def record(order: Order, args: argparse.Namespace, name: str, done: dict[Key, Done]) -> dict[str, Any] | None:
    """The numbers of a recipe with their origin; None if too little is finished."""
    job, plan = planned(replace(order, device="cpu"), name)
    found = [done.get(key(part)) for part in plan.parts]
    here = {key(part): one for part, one in zip(plan.parts, found, strict=True) if one is not None}
    absent = [part for part, one in zip(plan.parts, found, strict=True) if one is None]
    if not here or (absent and not plan.gaps):
        return None
    outcome = plan.finish([None if one is None else one.value for one in found])
    if order.columns or order.sections:
        numbers = [number for number in outcome.numbers if selected(order, number, "clean")]
        outcome = replace(outcome, numbers=numbers)
    if absent and any(one.here is None for one in outcome.numbers):
        dash = "a dash means that the run "
        dash += "was not asked for or " * bool(order.rows or order.columns or order.sections)
        dash += "did not finish within the time limit"
        outcome = replace(outcome, reasons=[*outcome.reasons, dash])
    first = max((part.subject for part in plan.parts), key=lambda one: len(one.x))  # slow attacks have fewer images
    known = {field: distinct(one.environment[field] for one in here.values()) for field in FIELDS}
    subjects = [one for part in plan.parts for one in (part.subject, *getattr(part, "targets", {}).values())]
    models: dict[str, set[str]] = {}
    for one in subjects:
        models.setdefault(one.role, set()).add(one.name)
    places = {role: names.pop() for role, names in models.items() if len(names) == 1}  # not variants trained for it
    drawn = {}
    if name == PICTURES:
        drawn = {f"results-{name}-{args.name}-{which}.svg": svg(draw()) for which, draw in outcome.figures.items()}
        for file, content in drawn.items():
            atomic.write(args.images / file, content)
    return outcome.record(
        2, recipe=name, source=recipe(name).source, about=recipe(name).about, command=command(),
        **origin(first.data, first.x, first.y),
        scale=order.scale.name, steps=job.scale.steps, queries=job.scale.queries, passes=job.scale.passes,
        images=len(first.x), few={column: count for column, count in job.few if count < job.count},
        data=named(first.data), seed=order.seed, **known, processes=args.jobs,
        seconds=round(sum(one.seconds for one in here.values()), 1), places=places,
        missing=sum(selected(order, part) for part in absent), pictures=list(drawn), models=cards(job, recipe(name)),
        runs=[run(*pair) for pair in here.items()], notices=sorted(set(notices(here))),
    )  # fmt: skip


FIELDS = ("hardware", "python", "torch", "sparsepgd")


def distinct(values: Any) -> str:
    return ", ".join(dict.fromkeys(values))


def cards(job: Job, one: Recipe) -> dict[str, Any]:
    """The cards of the models, without their curves; {} if the recipe trains its networks."""
    found = {}
    for source in dict.fromkeys(job.chosen(one.roles).values()) if job.models or any(one.roles.values()) else ():
        kind, _, place = source.partition(":")
        if kind in ("zoo", "trained"):
            card = asdict(zoo.card(place) if kind == "zoo" else zoo.card(TRAINED, Path(place)))
            found[place] = {field: value for field, value in card.items() if field not in ("curves", "arguments")}
    return found


def run(one: Key, done: Done) -> dict[str, Any]:
    """A part as one entry of the record."""
    line: dict[str, Any] = {"model": one[0], "attack": one[2]}
    if isinstance(done.value, Finished):
        rows = done.value.record.rows
        line |= {"clean": sum(row.clean_correct for row in rows)}
        line |= {"robust": sum(row.clean_correct and not row.fooled for row in rows)}
        line |= {name: round(mean(getattr(row, name) for row in rows), 1) for name in ("forwards", "backwards")}
    return line | {"seconds": round(done.seconds, 2)}


def notices(done: dict[Key, Done]) -> Any:
    for one, finished in done.items():
        if isinstance(finished.value, Finished):
            attack = finished.value.record.configuration["attack"]["name"]
            yield from (f"{one[0]}, {attack}: {notice.message}" for notice in finished.value.record.warnings)


def dumped(content: dict[str, Any]) -> bytes:
    """Indented, but innermost objects on one line each."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return (re.sub(r"\{[^{}\[\]]*\}", lambda found: re.sub(r"\n\s*", " ", found[0]), text) + "\n").encode()


def without_folders(content: bytes, args: argparse.Namespace) -> bytes:
    """Reduce the given files and folders to their names."""
    for word in (args.data, *args.model):
        content = content.replace(re.sub(r"[^/]*$", "", word.rpartition(":")[2]).encode() or b"\0", b"")
    return content


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"default: {' '.join(RECIPES)}")
    parser.add_argument("--name", default=SUBJECTS, help="of the models, in the names of the records")
    parser.add_argument("--model", nargs="+", default=[], metavar="ROLE=SOURCE", help="as for spgd reproduce")
    parser.add_argument("--data", default=SHIPPED, help="as for spgd reproduce")
    parser.add_argument("-n", type=int, default=100, help="images")
    parser.add_argument("--size", type=int, help="of pictures; default: that of the model, 640 for detectors")
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="ROW", help="of the tables, e.g. eps=8/255; default: all"
    )
    parser.add_argument("--columns", nargs="+", default=[], metavar="COLUMN", help="e.g. LOAP; default: all")
    parser.add_argument("--sections", nargs="+", default=[], metavar="SECTION", help="e.g. k=10; default: all")
    parser.add_argument("--few", type=int, default=200, help="images of CornerSearch and SparseFool")
    parser.add_argument("--scale", default="small", help="lengths, where the next three do not say otherwise")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--passes", type=int, help="of an image, forwards and backwards, by attacks of other authors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 1: for measuring time")
    parser.add_argument("--chunk", type=int, help="images between two writes, all that a stop may cost")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder for what is finished")
    parser.add_argument("--records", type=Path, default=ROOT / "benchmarks" / "results", help="where records go")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images", help="where pictures go")
    args = parser.parse_args()
    args.recipes = args.recipes or list(RECIPES)
    if RUNTIME in args.recipes and args.jobs != 1:
        parser.error("time is measured by one process; use --jobs 1 for runtime")
    if not args.model and args.jobs != 1 and (trained := sorted({"transfer", *POLICIES} & {*args.recipes})):
        parser.error(f"networks are trained by one process; use --jobs 1 for {' and '.join(trained)}")
    return args


def ordered(args: argparse.Namespace) -> Order:
    lengths = {name: getattr(args, name) for name in ("steps", "queries", "passes") if getattr(args, name)}
    return Order(
        models=tuple(tuple(word.split("=", 1)) for word in args.model),
        data=args.data,
        images=args.n,
        scale=replace(scale(args.scale), **lengths, **({"name": "own"} if lengths else {})),
        device=args.device,
        seed=args.seed,
        out=(args.out / "alone" if args.jobs == 1 else args.out).resolve(),
        few=args.few,
        chunk=args.chunk,
        alone=args.jobs == 1,
        size=args.size,
        rows=tuple(args.rows),
        columns=tuple(args.columns),
        sections=tuple(args.sections),
    )


def main() -> int:
    begun, args = time.monotonic(), arguments()
    commit()  # cached now, so that it is the commit of the code that runs
    order = ordered(args)
    if order.models:
        args.recipes = [name for name in args.recipes if order.job(name).models]
    if not args.recipes:
        sys.exit("none of these models has a place in these recipes; use --model ROLE=SOURCE")
    pool = ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), begin)
    futures = submitted(pool, order, args.recipes)
    print(f"{len(futures)} attacks for {len(args.recipes)} recipes", flush=True)
    done = collected(futures, begun + args.seconds)
    stopped(pool)
    args.records.mkdir(parents=True, exist_ok=True)
    for name in args.recipes:
        if made := record(order, args, name, done):
            atomic.write(args.records / f"paper-{name}-{args.name}.json", without_folders(dumped(made), args))
        print(f"{name}: {made['missing'] if made else 'too many'} missing", flush=True)
    print(f"{len(done)} of {len(futures)} attacks in {time.monotonic() - begun:.0f} s", flush=True)
    return int(len(done) < len(futures))


if __name__ == "__main__":
    sys.exit(main())
