"""The records in benchmarks/results, from which the pages are written."""

import json
import re
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from provenance import ROOT

from sparsepgd.analysis.summary import wilson
from sparsepgd.reproduce.experiments import accuracy
from sparsepgd.reproduce.jobs import scale
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.zoo.registry import LEAST

RESULTS = ROOT / "benchmarks" / "results"
Record = dict[str, Any]
Budget = tuple[int, str]  # k, pattern as recipes write it
SHIPPED = {"prn18-anneal": "cifar10-anneal-searched", "prn18-fast-ls": "cifar10-fast-ls"}  # -> its recipe
SECTIONS = {block.section: (block.k, block.pattern) for block in (*accuracy.PIXELS, *accuracy.STRUCTURED)}


@dataclass(frozen=True)
class Measured:
    """The robust accuracy of a model under one attack or ensemble."""

    recipe: str  # that trained the model, such as cifar10-sat
    budget: Budget
    share: float
    attack: str
    images: int
    record: str
    steps: int | None = None  # None: not in steps, or several runs

    @property
    def percent(self) -> float:
        return 100 * self.share

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return wilson(round(self.share * self.images), self.images)

    def __str__(self) -> str:
        return f"{self.percent:.1f} ({self.attack}, {self.images:,} images)"


@dataclass(frozen=True)
class Made:
    """The results of a recipe of `spgd reproduce`, and where docs/tables.md shows them."""

    file: str
    record: Record  # with the origin
    values: Record  # those of this recipe in the record
    recipe: str
    others: tuple[str, ...] = ()  # further records with the same settings, whose numbers are included

    @property
    def settings(self) -> tuple[Any, ...]:
        """Records of the same recipe with the same settings belong to one table."""
        alone = None if self.values is self.record else self.file
        names = ("images", "steps", "queries", "passes", "data", "hardware")
        return (self.recipe, alone, *(self.record.get(name) for name in names))

    @property
    def title(self) -> str:
        return f"{self.values['source']}: {self.values['about']}"

    @property
    def link(self) -> str:
        return f"tables.md#{anchor(self.title)}"

    @property
    def places(self) -> dict[str, str]:
        """The paper's model -> ours; {} if networks were trained for this table."""
        found: dict[str, str] = self.values.get("places", {})
        return found

    @property
    def numbers(self) -> list[Record]:
        found: list[Record] = self.values["numbers"]
        return found

    @property
    def steps(self) -> int:
        return int(self.record.get("steps") or scale(self.record["scale"]).steps)

    @property
    def queries(self) -> int:
        return int(self.record.get("queries") or scale(self.record["scale"]).queries)

    @property
    def length(self) -> str:
        return f"{self.record['images']:,} images and {self.steps:,} steps"

    @property
    def model(self) -> str:
        """Our model, for a table of one model."""
        return ", ".join(dict.fromkeys(self.places.values()))

    def row(self, whose: str) -> dict[str, float]:
        """The numbers here or in the paper, by column, for a table of one row."""
        return {one["column"]: one[whose] for one in self.numbers if one[whose] is not None}

    def cells(self, section: str, row: str) -> dict[str, float]:
        """Our numbers in a row, by column."""
        found = [one for one in self.numbers if (one["section"], one["row"]) == (section, row)]
        return {one["column"]: one["here"] for one in found if one["here"] is not None}


class Records(dict[str, Record]):
    """All records, by file name without .json."""

    @classmethod
    def read(cls, folder: Path = RESULTS) -> "Records":
        return cls({file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))})

    def of(self, kind: str) -> dict[str, Record]:
        return {name: record for name, record in self.items() if name.startswith(f"{kind}-")}

    def strongest(self, recipe: str, budget: Budget, attack: str | None = None) -> Measured | None:
        """The lowest robust accuracy of a model under a budget in all records, under any attack or under one, on at
        least LEAST images. A measurement on fewer images counts only if there is no other, or if even the upper end of
        its interval is lower."""
        found = [one for one in self.measured if (one.recipe, one.budget) == (recipe, budget)]
        found = [one for one in found if attack in (None, one.attack)]
        many = min((one for one in found if one.images >= LEAST), key=lambda one: one.share, default=None)
        few = min((one for one in found if one.images < LEAST), key=lambda one: one.interval[1], default=None)
        return few if many is None or (few is not None and few.interval[1] < many.share) else many

    @cached_property
    def measured(self) -> list[Measured]:
        """All measurements, from the kinds of record that name their model."""
        return [*self._trained(), *self._cards(), *self._cascades(), *self._annealed(), *self._tables()]

    def _trained(self) -> Iterator[Measured]:
        for name, record in self.of("train").items():
            budget = budget_of(recipe := name.removeprefix("train-"))
            for key, attack in (("saa", "sAA"), ("near", "spgd-near")):
                if one := record.get(key):
                    yield Measured(recipe, budget, one["robust_accuracy"], attack, one["images"], name)
            for one in record.get("saa+", ()):
                words = one["k"], pattern_of(one["pattern"])
                yield Measured(recipe, words, one["robust_accuracy"], one["attack"], one["images"], name)
            for words, one in record.get("others", {}).items():
                k, _, pattern = words.partition(" ")
                yield Measured(recipe, (int(k), pattern), one["robust_accuracy"], "sAA", one["images"], name)

    def _cards(self) -> Iterator[Measured]:
        for name, record in {**self.of("subject"), **self.of("measured")}.items():
            recipe = SHIPPED.get(record.get("model", ""), name)
            for one in record["robust"]:
                attack = "sAA" if one["attack"] == "saa" else one["attack"]  # as in the paper's tables
                budget = one["k"], pattern_of(one["pattern"])
                share, steps = one["robust_accuracy"], one.get("steps")
                yield Measured(recipe, budget, share, attack, one["images"], name, steps)

    def _cascades(self) -> Iterator[Measured]:
        for name, record in self.of("saa").items():
            recipe, share = record["model"].replace("prn18", "cifar10"), min(record["accuracy"].values())
            yield Measured(recipe, (record["k"], "pixel"), share, "sAA", record["images"], name)

    def _annealed(self) -> Iterator[Measured]:
        for name, record in self.of("anneal").items():
            recipe = record["model"].replace("prn18", "cifar10")
            for run in record["runs"] if " run " in record["command"] else ():  # not structures, not ablations
                share = run["left"] / run["images"]
                yield Measured(recipe, (record["k"], "pixel"), share, run["attack"], run["images"], name)

    def _tables(self) -> Iterator[Measured]:
        for one in self.papers:
            for number in one.numbers if one.recipe in ("unstructured", "structured") else ():
                recipe = trained_by(one.record, one.places.get(number["row"], ""))
                if recipe and number["column"] != "clean" and number["here"] is not None:
                    images = one.record.get("few", {}).get(number["column"], one.record["images"])
                    budget, share = SECTIONS[number["section"]], number["here"] / 100
                    yield Measured(recipe, budget, share, number["column"], images, one.file, one.steps)

    @cached_property
    def papers(self) -> list[Made]:
        """All results of recipes, from the records of paper_runs.py, and from older records of several recipes."""
        found = [Made(name, record, record, record["recipe"]) for name, record in self.of("paper").items()]
        for name, record in self.of("small").items():
            found += [Made(name, record, values, recipe) for recipe, values in record["recipes"].items()]
        return found

    @cached_property
    def by_recipe(self) -> dict[str, list[Made]]:
        """The results of each recipe, in the order of `spgd reproduce`; those with most images come first. Records with
        the same settings are shown as one."""
        same: dict[tuple[Any, ...], list[Made]] = {}
        for one in self.papers:
            same.setdefault(one.settings, []).append(one)
        found = sorted(map(merged, same.values()), key=lambda one: -int(one.record["images"]))
        return {name: mine for name in RECIPES if (mine := [one for one in found if one.recipe == name])}

    def made(self, recipe: str) -> Made | None:
        """The results of a recipe with most images."""
        return next(iter(self.by_recipe.get(recipe, ())), None)

    def all_stages(self, recipe: str) -> Record:
        """The epochs and seconds of all stages of training, as recorded or summed over the records of the stages."""
        own: Record = self[f"train-{recipe}"].get("all stages", {})
        every = [self[f"train-{one}"] for one in stages(recipe)] if not own else []
        return own or {key: sum(one[key] for one in every) for key in ("epochs", "seconds")}


def merged(parts: list[Made]) -> Made:
    """Records with the same settings as one. The order of rows and columns is that of the fullest record."""
    if len(parts) == 1:
        return parts[0]
    first, *rest = sorted(parts, key=lambda one: -sum(number["here"] is not None for number in one.numbers))
    cells: dict[tuple[str, str, str], Record] = {}
    for number in (number for one in (first, *rest) for number in one.numbers):
        cell = number["section"], number["row"], number["column"]
        if cell not in cells or cells[cell]["here"] is None:
            cells[cell] = number
    reasons = dict.fromkeys(reason for one in (first, *rest) for reason in one.values["reasons"])
    lines, columns = ({(section, cell[at]) for section, *cell in cells} for at in (0, 1))
    every = [(section, row, column) for section, row in lines for other, column in columns if other == section]
    complete = all(cell in cells and cells[cell]["here"] is not None for cell in every)
    record = first.record | {
        "numbers": list(cells.values()),
        "places": {role: model for one in (*rest, first) for role, model in one.places.items()},
        "models": {name: card for one in (*rest, first) for name, card in one.record["models"].items()},
        "reasons": [reason for reason in reasons if not (complete and reason.startswith("a dash"))],
        "seconds": sum(one.record["seconds"] for one in parts),
    }
    return Made(first.file, record, record, first.recipe, tuple(one.file for one in rest))


def trained_by(record: Record, model: str) -> str:
    """The recipe of a model whose card is in a record; subjects have the name of their recipe."""
    if model.startswith("subject-"):
        return model
    command = record.get("models", {}).get(model, {}).get("command", "")
    told = re.findall(r"--recipe (?:\S*/)?(\S+)\.toml", command)
    return told[-1] if told else ""  # the last stage


def recipe_of(name: str) -> Record:
    """The values of a file in a folder of recipes/."""
    values: Record = tomllib.loads(next((ROOT / "recipes").glob(f"*/{name}.toml")).read_text())
    return values


def budget_of(recipe: str) -> Budget:
    return recipe_of(recipe)["k"], recipe_of(recipe).get("pattern", "pixel")


def pattern_of(card: Record) -> str:
    """A pattern of a card as recipes write it."""
    simple = {"Pixels": "pixel", "Rows": "row", "Columns": "column", "Features": "feature"}
    if card["kind"] in simple:
        return simple[card["kind"]]
    sides = list(dict.fromkeys((card["height"], card["width"])))
    return f"patch:{'x'.join(map(str, sides))}"


def stages(recipe: str) -> list[str]:
    """The recipes of all stages of training, in order; the last one is this recipe."""
    kind, _, start = recipe_of(recipe)["model"].partition(":")
    before = {"trained": Path(start).name, "zoo": start.replace("prn18", "cifar10")}.get(kind)
    return [*([] if before is None else stages(before)), recipe]


@dataclass(frozen=True)
class Pair:
    """One attack by the authors' code and by ours, in one run; means over the seeds."""

    attack: str
    images: int
    seconds: tuple[float, float]  # theirs, ours
    left: tuple[float, float]  # images still classified correctly
    warm: bool  # whether theirs had an untimed warm-up, too
    ours: str  # the precision of our search, and whether its model was compiled

    @property
    def shares(self) -> tuple[float, float]:
        """The percentages of images still classified correctly."""
        return 100 * self.left[0] / self.images, 100 * self.left[1] / self.images


def beside_official(record: Record) -> Iterator[Pair]:
    """The pairs in a record of speed.py or of `spgd bench --official`."""
    parts = [record] if "attacks" in record else [record.get(part, {}) for part in ("spgd", "sparse-rs")]
    found = {row["name"]: row for part in parts for row in part.get("attacks", ())}
    for attack, row in found.items():
        if official := found.get(f"official {attack}"):
            seconds, left = (
                (statistics.fmean(official[key]), statistics.fmean(row[key])) for key in ("seconds", "robust")
            )
            ours = row["precision"] + ", compiled" * row["compiled"]
            yield Pair(attack, row["images"], seconds, left, official["warm_up"] is not None, ours)


def hardware(record: Record) -> str:
    return str(record.get("hardware") or record.get("device") or "-")


def torch_version(record: Record) -> str:
    return str(record["torch"]).split("+")[0]


def anchor(title: str) -> str:
    """The anchor of a heading, as the site makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
