"""The records in benchmarks/results, for the pages that are written from them, and what each must say of its origin."""

import json
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import OWN, ROOT

from sparsepgd.analysis.summary import wilson
from sparsepgd.reproduce.experiments import accuracy
from sparsepgd.reproduce.jobs import scale
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.tables import markdown
from sparsepgd.zoo.registry import LEAST

RESULTS = ROOT / "benchmarks" / "results"
Record = dict[str, Any]
Records = dict[str, Record]  # by the name of the file, without .json
NONE: Record = {"attacks": []}
SHIPPED = {"prn18-anneal": "cifar10-anneal-searched", "prn18-fast-ls": "cifar10-fast-ls"}  # by whose recipe


def load(name: str) -> Record:
    record: Record = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def read(results: Path, kind: str) -> Records:
    """All records of a kind, or of every kind if that is empty."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(results.glob(f"{kind}{kind and '-'}*.json"))}


# What every record says of its origin. By field: where it may stand, one place is enough. "*": every entry of a list or
# dictionary, and each of them must have it.
ORIGIN: dict[str, tuple[str, ...]] = {
    "commit": ("commit",),  # of this repository, the one that was measured
    "command": ("command", "commands"),
    "seeds": ("seeds", "seed", "runs.*.seed", "spgd.seeds"),
    "hardware": ("hardware",),
    "torch": ("torch",),
    "data": ("data",),
    "checksum": ("sha256",),  # of the data; not needed for those of OWN, which the versions fix
    "images": ("images", "n", "measured"),
    "lengths": (
        "steps", "queries", "passes", "epochs", "lengths", "how", "spgd.steps", "runs.*.length", "runs.*.steps",
        "runs.*.options.epochs",
    ),  # of attacks and of training
    "seconds": (
        "seconds", "runs.*.seconds", "rows.*.seconds", "lines.*.seconds", "attacks.*.seconds", "spgd.attacks.*.seconds",
        "models.*.runs.*.seconds", "jobs.plain.first.seconds",
    ),
}  # fmt: skip
# Older records list under "unknown" the fields that nobody can know any more, and say with which commit their numbers
# came into this repository, which is not the one that was measured.
SINCE = "numbers since"


def missing(record: Record) -> list[str]:
    """The fields of ORIGIN that a record does not have."""
    found = [field for field, places in ORIGIN.items() if not any(values_at(record, place) for place in places)]
    return [field for field in found if not (field == "checksum" and record.get("data") in OWN)]


def values_at(value: Any, place: str) -> list[Any]:
    """All values at a place of ORIGIN; [] if there is none, or if an entry of a * has none."""
    if not place:
        return [] if value in (None, "", []) else [value]
    name, _, rest = place.partition(".")
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    entries = list(inner.values()) if name == "*" else [inner[name]] if name in inner else []
    each = [values_at(entry, rest) for entry in entries]
    return [one for found in each for one in found] if all(each) else []


@dataclass(frozen=True)
class Measured:
    """What one attack, or ensemble, left of a model."""

    recipe: str  # which trained it: cifar10-sat
    budget: tuple[int, str]  # k, pattern
    share: float
    attack: str
    images: int
    record: str

    @property
    def percent(self) -> float:
        return 100 * self.share

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return wilson(round(self.share * self.images), self.images)[1]

    def __str__(self) -> str:
        return f"{self.percent:.1f} ({self.attack}, {self.images:,} images)"


def strongest(results: Path, recipe: str, budget: tuple[int, str], attack: str | None = None) -> Measured | None:
    """The lowest accuracy that a record has of a model under a budget, of any attack or of one, over at least LEAST
    images. A measurement over fewer counts if there is no other, or if even the upper end of its interval is lower."""
    found = [one for one in _measured(results) if (one.recipe, one.budget) == (recipe, budget)]
    found = [one for one in found if attack in (None, one.attack)]
    many = min((one for one in found if one.images >= LEAST), key=lambda one: one.share, default=None)
    few = min((one for one in found if one.images < LEAST), key=lambda one: one.high, default=None)
    return few if many is None or (few is not None and few.high < many.share) else many


def _measured(results: Path) -> Iterator[Measured]:
    """From the kinds of record that name their model."""
    for name, record in read(results, "train").items():
        budget = budget_of(recipe := name.removeprefix("train-"))
        for key, attack in (("saa", "sAA"), ("near", "spgd-near")):
            if one := record.get(key):
                yield Measured(recipe, budget, one["robust_accuracy"], attack, one["images"], name)
        for one in record.get("saa+", ()):
            words = one["k"], _words(one["pattern"])
            yield Measured(recipe, words, one["robust_accuracy"], one["attack"], one["images"], name)
        for words, one in record.get("others", {}).items():
            k, _, pattern = words.partition(" ")
            yield Measured(recipe, (int(k), pattern), one["robust_accuracy"], "sAA", one["images"], name)
    for name, record in {**read(results, "subject"), **read(results, "measured")}.items():
        recipe = SHIPPED.get(record.get("model", ""), name)
        for one in record["robust"]:
            attack = "sAA" if one["attack"] == "saa" else one["attack"]  # as in the paper's tables
            budget = one["k"], _words(one["pattern"])
            yield Measured(recipe, budget, one["robust_accuracy"], attack, one["images"], name)
    for name, record in read(results, "saa").items():
        recipe, share = record["model"].replace("prn18", "cifar10"), min(record["accuracy"].values())
        yield Measured(recipe, (record["k"], "pixel"), share, "sAA", record["images"], name)
    for name, record in read(results, "anneal").items():
        recipe = record["model"].replace("prn18", "cifar10")
        for run in record["runs"] if " run " in record["command"] else ():  # not structures, not ablations
            share = run["left"] / run["images"]
            yield Measured(recipe, (record["k"], "pixel"), share, run["attack"], run["images"], name)
    for one in papers(results):
        for number in one.values["numbers"] if one.recipe in ("unstructured", "structured") else ():
            recipe = trained_by(one.record, one.places.get(number["row"], ""))
            if recipe and number["column"] != "clean" and number["here"] is not None:
                images = one.record.get("few", {}).get(number["column"], one.record["images"])
                budget, share = SECTIONS[number["section"]], number["here"] / 100
                yield Measured(recipe, budget, share, number["column"], images, one.file)


SECTIONS = {block.section: (block.k, block.pattern) for block in (*accuracy.PIXELS, *accuracy.STRUCTURED)}


@dataclass(frozen=True)
class Made:
    """What a recipe of `spgd reproduce` made, and where docs/tables.md shows it."""

    file: str
    record: Record  # its origin
    values: Record  # of this recipe, in the record
    recipe: str

    @property
    def title(self) -> str:
        return f"{self.values['source']}: {self.values['about']}"

    @property
    def link(self) -> str:
        return f"tables.md#{anchor(self.title)}"

    @property
    def places(self) -> dict[str, str]:
        """The paper's model, ours; {}: networks that were trained for this table."""
        found: dict[str, str] = self.values.get("places", {})
        return found

    @property
    def steps(self) -> int:
        return int(self.record.get("steps") or scale(self.record["scale"]).steps)

    @property
    def queries(self) -> int:
        return int(self.record.get("queries") or scale(self.record["scale"]).queries)

    @property
    def images(self) -> str:
        return f"{self.record['images']:,} images"

    @property
    def model(self) -> str:
        """Ours, of a table of one model."""
        return ", ".join(dict.fromkeys(self.places.values()))

    def row(self, whose: str) -> dict[str, float]:
        """Of a table of one row: the numbers here or in the paper, by column."""
        return {one["column"]: one[whose] for one in self.values["numbers"] if one[whose] is not None}

    def cells(self, section: str, row: str) -> dict[str, float]:
        """The numbers of ours in a row, by column."""
        found = [one for one in self.values["numbers"] if (one["section"], one["row"]) == (section, row)]
        return {one["column"]: one["here"] for one in found if one["here"] is not None}


def papers(results: Path) -> Iterator[Made]:
    """From the records of paper_runs.py, of single recipes of `spgd reproduce`, and older ones of several recipes."""
    for kind in ("paper", "ablation"):
        for name, record in read(results, kind).items():
            yield Made(name, record, record, record["recipe"])
    for name, record in read(results, "small").items():
        for recipe, values in record["recipes"].items():
            yield Made(name, record, values, recipe)


def every_made(results: Path = RESULTS) -> dict[str, list[Made]]:
    """By recipe, in the order of `spgd reproduce`; what has most images first."""
    found = sorted(papers(results), key=lambda one: -int(one.record["images"]))
    return {name: mine for name in RECIPES if (mine := [one for one in found if one.recipe == name])}


def made(results: Path = RESULTS) -> dict[str, Made]:
    """By recipe, the one with most images."""
    return {recipe: mine[0] for recipe, mine in every_made(results).items()}


def trained_by(record: Record, model: str) -> str:
    """The recipe of a model whose card a record holds; subjects are named after theirs."""
    if model.startswith("subject-"):
        return model
    command = record.get("models", {}).get(model, {}).get("command", "")
    told = re.findall(r"--recipe (?:\S*/)?(\S+)\.toml", command)
    return told[-1] if told else ""  # the last stage


def recipe_of(name: str) -> Record:
    """The values of a file in recipes/subjects or recipes/quick."""
    folder = "subjects" if name.startswith("subject-") else "quick"
    values: Record = tomllib.loads((ROOT / "recipes" / folder / f"{name}.toml").read_text())
    return values


def budget_of(recipe: str) -> tuple[int, str]:
    return recipe_of(recipe)["k"], recipe_of(recipe).get("pattern", "pixel")


def _words(pattern: Record) -> str:
    """A pattern of a card as recipes write it."""
    simple = {"Pixels": "pixel", "Rows": "row", "Columns": "column", "Features": "feature"}
    if pattern["kind"] in simple:
        return simple[pattern["kind"]]
    sides = list(dict.fromkeys((pattern["height"], pattern["width"])))
    return f"patch:{'x'.join(map(str, sides))}"


def stages(recipe: str) -> list[str]:
    """The recipes that were run one after the other, from fresh weights on, the last of them this one."""
    kind, _, start = recipe_of(recipe)["model"].partition(":")
    before = {"trained": Path(start).name, "zoo": start.replace("prn18", "cifar10")}.get(kind)
    return [*([] if before is None else stages(before)), recipe]


def all_stages(records: Records, recipe: str) -> Record:
    """Epochs and seconds from fresh weights on: as the record says, or the sum over the records of the stages."""
    own: Record = records[f"train-{recipe}"].get("all stages", {})
    every = [records[f"train-{one}"] for one in stages(recipe)] if not own else []
    return own or {key: sum(one[key] for one in every) for key in ("epochs", "seconds")}


@dataclass(frozen=True)
class Pair:
    """One attack by the authors' code and by ours, in one run; means over the seeds."""

    attack: str
    images: int
    seconds: tuple[float, float]  # theirs, ours
    left: tuple[float, float]  # images still right
    warm: bool  # whether theirs too had a first call that does not count

    @property
    def cells(self) -> list[str]:
        both = [f"{s:.2f} s, {left:.1f} left" for s, left in zip(self.seconds, self.left, strict=True)]
        return [*both, f"{self.seconds[0] / self.seconds[1]:.1f}{'' if self.warm else ' *'}"]


PAIR = ["official code", "here", "times as fast"]  # above the cells


def beside_official(record: Record) -> Iterator[Pair]:
    """From a record of speed.py or of `spgd bench --official`."""
    parts = [record] if "attacks" in record else [record.get(part, NONE) for part in ("spgd", "sparse-rs")]
    found = {row["name"]: row for part in parts for row in part["attacks"]}
    for attack, row in found.items():
        if official := found.get(f"official {attack}"):
            seconds, left = (
                (statistics.mean(official[key]), statistics.mean(row[key])) for key in ("seconds", "robust")
            )
            yield Pair(attack, row["images"], seconds, left, official["warm_up"] is not None)


def compared(record: Record) -> str:
    """A record of `spgd compare` as a table, the strongest attack first."""
    rows = []
    for line in sorted(record["lines"], key=lambda line: (line["robust_accuracy"], line["attack"])):
        low, high = (f"{100 * share:.0f}" for share in line["interval"])
        passes = line["forwards"] + line["backwards"]
        rows.append([line["attack"], f"{100 * line['robust_accuracy']:.1f}", f"{low}-{high}", f"{passes:.0f}"])
    return markdown(["attack", "robust accuracy, %", "95 %", "mean passes per image"], rows)


def rewritten(page: Path, marks: tuple[str, str], text: str, check: bool) -> int:
    """What stands between the two marks of a page becomes `text`; with `check` only 1 if it is not that already."""
    before = page.read_text()
    head, rest = before.split(marks[0])
    after = head + marks[0] + text + marks[1] + rest.split(marks[1])[1]
    if not check:
        page.write_text(after)
    return int(check and after != before)


def hardware(record: Record) -> str:
    return str(record.get("hardware") or record.get("device") or "-")


def torch_version(record: Record) -> str:
    return str(record["torch"]).split("+")[0]


def anchor(title: str) -> str:
    """Of a heading, as the site makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def file_of(name: str) -> str:
    return f"`{name}.json`"


def told(pairs: Iterable[tuple[str, str]], between: str = ", ") -> list[str]:
    """``one, another: words``; what is said of several, once."""
    who: dict[str, list[str]] = {}
    for name, words in pairs:
        who.setdefault(words, []).append(name)
    return [f"{between.join(names)}: {words}" for words, names in who.items()]


def listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n"
