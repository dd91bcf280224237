"""The list at the end of docs/results.md: every table and figure of the paper, its numbers beside ours."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations

from records import RESULTS, SECTIONS, Made, every_made, made, strongest, trained_by
from results_findings import SPEED, ratios, transferred
from results_models import TRAINING

from sparsepgd.reproduce.experiments.ablation import SCANS
from sparsepgd.reproduce.experiments.training import POLICIES
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.tables import markdown

NOT_YET = "not measured yet"
TENS, ONES = ("", "X"), ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
ORDER = [tens + ones for tens in TENS for ones in ONES]  # of the numbers of tables
Cells = tuple[str, str, str]  # the paper's numbers, ours, a sentence

DEFENCES = ("Vanilla", "sAT", "sTRADES")
SHOWN = {  # of tables of models: which part, what it is called, which rows
    "20": ("k=20", "k = 20", DEFENCES),
    "10_15": ("k=10", "k = 10", DEFENCES),
    "more": ("imagenet100, k=200", "k = 200", ("Vanilla", "PGD0-A", "sAT")),
    "struct": ("cifar10, 1 patch 5x5", "5x5", ("Vanilla", "sTRADES-l0", "sTRADES-p5x5")),
    "wm": ("circle 18x18, 208 pixels", "circle", ("eps=8/255", "eps=16/255", "eps=32/255", "eps=64/255")),
}
OPEN = {  # of tables made by several recipes: what one of them adds
    "cifar100": "CIFAR-100",
    "gtsrb": "GTSRB at 224x224",
    "structured-imagenet": "224x224",
}
NEAREST = {"gtsrb": f" (similar: [at 32x32]({TRAINING}))"}  # what was measured instead
BUDGETS = {  # of Table VII
    "l0_1600": "1,600 pixels", "l0_3200": "3,200 pixels", "patch4x4_100": "100 patches", "patch4x4_200": "200 patches",
}  # fmt: skip
TIMES = "times the time of sPGD_u"


def contents() -> Iterator[str]:
    """One line for each table and figure."""
    yield "## Each table and figure of the paper\n"
    yield (
        "The paper's robust accuracy is under sAA, ours is the lowest in any record; ablations show the best setting. "
        f"The linked tables have all numbers, for {_usual()} unless the row says otherwise (paper: 10,000 steps). "
        "[Reproducing the paper](reproducing.md) says how to compute them.\n"
    )
    labels = sorted(facts()["tables"], key=lambda label: ORDER.index(table(label).number))
    tables = [_line(f"Table {table(label).number}", table(label).title, *_table(label)) for label in labels]
    yield markdown(["paper", "subject", "the paper's", "ours", "difference"], [*tables, *_figures()]) + "\n"


def _line(name: str, about: str, one: Made | None, cells: Cells) -> list[str]:
    return [f"[{name}]({one.link})" if one else name, about, *cells]


@cache
def _all() -> dict[str, Made]:
    return made()


@cache
def _usual() -> str:
    return Counter(map(_length, _all().values())).most_common(1)[0][0]


def _length(one: Made) -> str:
    return f"{one.images} and {one.steps:,} steps"


def _size(one: Made) -> str:
    return "" if _length(one) == _usual() else f" ({_length(one)})"


def _numbers(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{name} {value:.1f}".strip() for name, value in zip(names, values, strict=True))


def _plain(values: Sequence[float]) -> str:
    return _numbers([""] * len(values), values)


def _order(paper: Sequence[float], ours: Sequence[float], of: str = "") -> str:
    pairs = combinations(zip(paper, ours, strict=True), 2)
    same = all((a - c) * (b - d) >= 0 for (a, b), (c, d) in pairs)
    return f"The order{of} {'is the same' if same else 'differs'}"


def _table(label: str) -> tuple[Made | None, Cells]:
    recipes = [recipe.name for recipe in RECIPES.values() if label in recipe.labels and not recipe.figures]
    one = next((_all()[name] for name in recipes if name in _all()), None)
    if one is None:
        return None, _not_yet(label)
    if label in SHOWN:
        return one, _accuracies(label, one, recipes)
    if one.recipe in SCANS or (one.recipe in POLICIES and one.recipe != "training-structured"):
        return one, _settings(one)
    return one, OWN[one.recipe](one)


def _not_yet(label: str) -> Cells:
    if label != "runtime":
        return "", "", f"{NOT_YET.capitalize()}."
    minutes = table(label).cells["minutes"]["sTRADES"]
    shown = ("RS", "sPGD_u", "sAA")
    similar = (
        f"{NOT_YET.capitalize()} for all attacks; similar: [sPGD and Sparse-RS beside the authors' code]({SPEED})."
    )
    return ", ".join(f"{name} {minutes[name]:g}" for name in shown), "", similar


def _accuracies(label: str, one: Made, recipes: list[str]) -> Cells:
    """Of some models under the strongest attack; a model in its place may be measured in other records, too."""
    section, words, wanted = SHOWN[label]
    found = {row: value for row in wanted if (value := _lowest(one, section, row)) is not None}
    cells = table(label).cells[section]
    paper, ours = [cells[row]["sAA"] for row in found], [value for value, _ in found.values()]
    images = {count for _, count in found.values()}
    size = _size(one) if images <= {one.record["images"]} else f" ({' or '.join(map(str, sorted(images)))} images)"
    said = [_order(paper, ours)] if len(found) > 1 else []
    if have := cells.keys() & one.places.keys():
        said.append(f"we have {len(have)} of {len(cells)} models")
    others = [_more(name) for name in recipes if name != one.recipe]
    return (
        f"{words}: {_numbers([row.removeprefix('eps=') for row in found], paper)}",
        f"{_plain(ours)} ({_named(one, found)})",
        " ".join([f"{_upper('; '.join(said))}{size}.", *others]),
    )


def _named(one: Made, rows: Iterable[str]) -> str:
    """Our models in the places of some of the paper's: one, or what their names have in common."""
    names = dict.fromkeys(one.places[row] for row in rows if row in one.places) or one.places.values()
    kinds = dict.fromkeys(name.partition("-")[0] for name in names)
    return ", ".join(names if len(names) == 1 else (f"{kind}-..." for kind in kinds))


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def _lowest(one: Made, section: str, row: str) -> tuple[float, int] | None:
    """In percent, and of how many images."""
    recipe = trained_by(one.record, one.places.get(row, ""))
    if recipe and section in SECTIONS and (low := strongest(RESULTS, recipe, SECTIONS[section])):
        return low.percent, low.images
    values = [value for column, value in one.cells(section, row).items() if column != "clean"]
    return (min(values), one.record["images"]) if values else None


def _more(recipe: str) -> str:
    """What another recipe adds to the row."""
    if recipe not in _all():
        return f"{OPEN[recipe]} is {NOT_YET}{NEAREST.get(recipe, '')}."
    one = _all()[recipe]
    for number in one.values["numbers"]:
        low, paper = _lowest(one, number["section"], number["row"]), number["paper"]
        if number["column"] == "sAA" and low is not None and paper is not None:
            where = f"[{number['section']}]({one.link})"
            return f"On {where}, {number['row']} has {low[0]:.1f}, in the paper {paper:.1f}{_size(one)}."
    return f"See also [{OPEN[recipe]}]({one.link})."


def _settings(one: Made) -> Cells:
    """The best setting: the strongest attack or the most robust network."""
    best = min if one.recipe in SCANS else max
    here, paper = one.row("here"), one.row("paper")
    spread = [max(row.values()) - min(row.values()) for row in (here, paper)]
    said = f"The values vary by {spread[0]:.1f} points, in the paper by {spread[1]:.1f}{_size(one)}."
    return _best(paper, best), f"{_best(here, best)} ({one.model or one.record['data']})", said


def _best(row: dict[str, float], best: Callable[..., float]) -> str:
    value = best(row.values())
    return f"{value:.1f} with {' or '.join(column for column, one in row.items() if one == value)}"


def _sizes(one: Made) -> Cells:
    rows = [row for row in one.values["numbers"] if row["column"] == "sAA"]
    paper, ours = ([row[whose] for row in rows] for whose in ("paper", "here"))
    names = [row["row"] for row in rows]
    return _numbers(names, paper), f"{_plain(ours)} ({one.record['data']})", f"{_order(paper, ours)}{_size(one)}."


def _times(one: Made) -> Cells:
    rows = [row for row in one.values["numbers"] if row["section"] == TIMES and row["column"] in ("RS", "SAIF", "sAA")]
    paper, ours = ([row[whose] for row in rows] for whose in ("paper", "here"))
    return (
        _numbers([row["column"] for row in rows], paper),
        _plain(ours),
        f"The unit is the time of sPGD_u{_size(one)}.",
    )


def _transfers(one: Made) -> Cells:
    names = ("sPGD_u", "sPGD_p", "RS")
    whole, early = transferred(one), transferred(one, "early stop on the source")["sPGD_u"]
    paper = [statistics.mean(table("trans").cells["success rate"][name].values()) for name in names]
    said = (
        f"Means on {one.record['data']}. If it stops on success, sPGD_u has {early:.1f}; the paper does not say which "
        f"it does{_size(one)}."
    )
    return _numbers(names, paper), _plain([whole[name] for name in names]), said


def _detectors(_: Made) -> Cells:
    """From all records of the recipe: one may be of detection, another of segmentation."""
    tasks = {task: one for one in reversed(every_made()["detection"]) for task in one.places}
    first, cells = next(iter(sorted(tasks))), table("yolo").cells
    here, paper = tasks[first].cells(first, "l0_1600"), cells[first]["l0_1600"]
    names = [name for name in paper if name != "clean" and name in here]
    said = [
        f"In {task}, sPGD reaches {tasks[task].cells(task, 'l0_1600')['sPGD']:.1f} (paper: "
        f"{cells[task]['l0_1600']['sPGD']:.1f})."
        for task in sorted(tasks.keys() - {first})
    ]
    done = {row for task, one in tasks.items() for row in BUDGETS if one.cells(task, row).keys() > {"clean"}}
    missing = [*sorted(cells.keys() - tasks.keys()), *(words for row, words in BUDGETS.items() if row not in done)]
    if missing:
        said.append(f"{_upper(', '.join(missing))} are {NOT_YET} with all attacks.")
    ours = _plain([here[name] for name in names]) + (f", SparseAnneal {here['anneal']:.1f}" if "anneal" in here else "")
    paper_words = f"{first}, {BUDGETS['l0_1600']}: {_numbers(names, [paper[name] for name in names])}"
    return paper_words, ours, " ".join([f"Our model is {tasks[first].model}{_size(tasks[first])}.", *said])


OWN = {"training-structured": _sizes, "runtime": _times, "transfer": _transfers, "detection": _detectors}


def _figures() -> Iterator[list[str]]:
    found = {figure: recipe for recipe in RECIPES.values() for figure in recipe.figures}
    for figure in sorted([*found, "Figure 2"], key=lambda words: words.split()[1]):
        if figure not in found:
            yield _line(figure, "a drawing of the method", None, ("", "", "There is nothing to measure."))
        elif one := _all().get(found[figure].name):
            yield _line(figure, found[figure].about, one, FIGURES.get(one.recipe, _curve)(one))
        else:
            yield _line(figure, found[figure].about, None, ("", "", f"{NOT_YET.capitalize()}."))


def _ratio(one: Made) -> Cells:
    least = [f"{min(ratios(one, k)):.2f} at k = {k}" for k in (3, 5)]
    return "above 0.95 for k < 5", ", ".join(least), f"Our model is {one.model}{_size(one)}."


def _pictures(one: Made) -> Cells:
    return "pictures", "pictures", f"Ours are of {one.model}, the paper's of ImageNet-100{_size(one)}."


def _curve(one: Made) -> Cells:
    """The end of its curves, or its success rates; the paper prints no numbers, but its curves end in a table."""
    model = "sTRADES" if "sTRADES" in one.places else next(iter(one.places))
    label, section = ("more", "imagenet100, k=200") if one.recipe == "iterations-imagenet" else ("20", "k=20")
    rates = one.cells("success rate, %", model)
    ends = rates or {
        attack: value for attack in ("sPGD_p", "sPGD_u", "RS", "anneal") for value in _end(one, attack, model)
    }
    left = {attack: table(label).value(section, model, attack) for attack in ends}
    paper = {attack: 100 - value if rates else value for attack, value in left.items() if value is not None}
    what = " of success rates" if rates else " at k = 20" if one.recipe == "sparsity" else " at the end of the curves"
    extra = f", SparseAnneal {ends['anneal']:.1f}" if "anneal" in ends else ""
    ours = f"{_plain([ends[attack] for attack in paper])}{extra} ({one.places[model]})"
    said = f"{_order(list(paper.values()), [ends[attack] for attack in paper], what)}{_size(one)}."
    return f"{model}: {_numbers(list(paper), list(paper.values()))}", ours, said


def _end(one: Made, attack: str, model: str) -> list[float]:
    """The last number of a curve, or that at k = 20; [] where there is none."""
    values = one.cells(attack, model)
    return [values["k=20"]] if "k=20" in values else list(values.values())[-1:]


FIGURES = {"ratio": _ratio, "pictures": _pictures}
