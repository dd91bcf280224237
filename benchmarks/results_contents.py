"""The list at the end of docs/results.md: of every table and figure of the paper what was measured, and how."""

from collections.abc import Callable, Iterator
from functools import cache

from records import RESULTS, SECTIONS, Made, beside_official, every_made, load, made, read, strongest, trained_by
from results_findings import ANNEAL, DETECTION_ROWS, SPEED, TRAINING, map_scores, ratios

from sparsepgd.reproduce.experiments.ablation import SCANS
from sparsepgd.reproduce.experiments.training import POLICIES
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.tables import markdown

NOT_YET = "**not measured yet**"
TENS, ONES = ("", "X"), ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
ORDER = [tens + ones for tens in TENS for ones in ONES]  # of the numbers of tables
QUOTED = {"20": ("k=20",), "10_15": ("k=10",), "struct": tuple(one for one in SECTIONS if "cifar10" in one)}
K = "k=20"
Cells = list[str]  # ours and the paper's, models, size


def contents() -> Iterator[str]:
    """One line for each table and figure."""
    yield "## Each table and figure of the paper\n"
    yield (
        "For tables of models, the third column gives the lowest robust accuracy of our models in any record, with the "
        "attack and the number of images, and in square brackets the paper's value under sAA. For ablations it gives "
        "the best setting. The last two columns describe the linked table; the paper uses 10,000 steps and, for "
        "CIFAR-10, 10,000 images. [Reproducing the paper](reproducing.md) says how to compute a table.\n"
    )
    labels = sorted(facts()["tables"], key=lambda label: ORDER.index(table(label).number))
    tables = [[f"Table {table(label).number}", table(label).title, *_table(label)] for label in labels]
    yield markdown(["paper", "subject", "ours [paper's]", "our models", "our runs"], [*tables, *_figures()]) + "\n"


def _table(label: str) -> Cells:
    if label in OWN:
        return OWN[label]()
    recipes = [recipe for recipe in RECIPES.values() if label in recipe.labels and not recipe.figures]
    done = [recipe for recipe in recipes if recipe.name in _all()]
    if not done:
        return NEAREST[label]() if label in NEAREST else [NOT_YET, "", ""]
    ones = [_all()[recipe.name] for recipe in done]
    words = [f"[table]({one.link}): {_words(label, one)}" for one in ones]
    missing = [f"{NOT_YET}: {SIMILAR.get(recipe.name, recipe.about)}" for recipe in recipes if recipe not in done]
    models, sizes = [_models(one) for one in ones], [_size(one, queries=one.recipe not in SCANS) for one in ones]
    if label in QUOTED:
        every = {row for section in QUOTED[label] for row in table(label).cells[section]}
        models[0] = f"{len(every & ones[0].places.keys())} of {len(every)}: {models[0]}"
    return ["; ".join([*words, *missing]), "; ".join(models), "; ".join(sizes)]


def _words(label: str, one: Made) -> str:
    if one.recipe in SCANS or one.recipe in POLICIES:
        return _ablation(one.recipe, one)
    if sections := [section for section in QUOTED.get(label, ()) if one.has(section)]:
        return "; ".join(_lowest(one, section) for section in sections)
    return {"runtime": _times, "transfer": _transfers}.get(one.recipe, _ensembles)(one)


def _ensembles(one: Made) -> str:
    """Of every row under the strongest ensemble; the paper's under sAA."""
    paper = {(row["section"], row["row"]): row["paper"] for row in one.values["numbers"] if row["column"] == "sAA"}
    told: dict[str, list[str]] = {}
    for row in one.values["numbers"]:
        if row["column"] == "saa+" and row["here"] is not None:
            place = f"{row['row']} {row['here']:.1f}{_bracket(paper[row['section'], row['row']])}"
            told.setdefault(row["section"], []).append(place)
    return "saa+: " + "; ".join(f"{section}: {', '.join(rows)}" for section, rows in told.items())


def _times(one: Made) -> str:
    rows = [row for row in one.values["numbers"] if row["section"] == "times the time of sPGD_u"]
    rows = [row for row in rows if row["column"] != "sPGD_u"]
    told = ", ".join(f"{row['column']} {row['here']:.1f}{_bracket(row['paper'])}" for row in rows)
    return f"times the time of sPGD_u: {told}"


def _transfers(one: Made) -> str:
    """The strongest attack of each pair, which never stops early in the paper's column."""
    told = []
    for pair in dict.fromkeys(row["column"] for row in one.values["numbers"]):
        mine = [row for row in one.values["numbers"] if row["column"] == pair]
        best, theirs = (max(mine, key=lambda row, whose=whose: row[whose] or 0) for whose in ("here", "paper"))
        told.append(f"{pair} {best['here']:.1f} by {best['row']}, [{theirs['paper']:.1f} by {theirs['row']}]")
    return "success rate of the best attack: " + ", ".join(told)


def _bracket(paper: float | None) -> str:
    return "" if paper is None else f" [{paper:.1f}]"


@cache
def _all() -> dict[str, Made]:
    return made()


def _models(one: Made) -> str:
    if not one.places:
        return f"small networks on {one.record['data']}"
    if all(ours.startswith("subject-") for ours in one.places.values()) and len(one.places) > 2:
        return f"subjects for {', '.join(one.places)}"
    return ", ".join(f"{ours} for {role}" for role, ours in one.places.items())


def _size(one: Made, queries: bool = True) -> str:
    words = f"{one.images}, {one.steps:,} steps"
    return f"{words}, {one.queries:,} queries" if queries else words


def _lowest(one: Made, section: str) -> str:
    """Of every model of a section: ours, and the paper's."""
    told = []
    for number in one.values["numbers"]:
        if number["section"] == section and number["column"] == "sAA" and number["here"] is not None:
            recipe = trained_by(one.record, one.places[number["row"]])
            found = strongest(RESULTS, recipe, SECTIONS[section]) or f"{number['here']:.1f}"
            told.append(f"{number['row']} {found}{_bracket(number['paper'])}")
    return f"{section.removeprefix('cifar10, ')}: {', '.join(told)}"


def _ablation(recipe: str, one: Made) -> str:
    if recipe == "training-structured":
        rows = [(row["row"], row["here"], row["paper"]) for row in one.values["numbers"] if row["column"] == "sAA"]
        return "sAA: " + ", ".join(f"{row} {here:.1f} [{paper:.1f}]" for row, here, paper in rows)
    best = min if recipe in SCANS else max
    ours, paper = (_best(one.row(whose), best) for whose in ("here", "paper"))
    return f"{'strongest' if recipe in SCANS else 'best'} with {ours}; the paper's with {paper}"


def _best(row: dict[str, float], best: Callable[..., float]) -> str:
    value = best(row.values())
    return f"{' or '.join(column for column, one in row.items() if one == value)} ({value:.1f})"


SIMILAR = {"gtsrb": f"GTSRB at 224x224; similar: [GTSRB at 32x32, k = 12]({TRAINING})"}  # of recipes without a record


def _watermarks() -> Cells:
    record = load("anneal-structures-small-strades")
    words = f"{NOT_YET} at 224x224; similar: [a disc of 18x18 in 32x32, eps = 16/255]({ANNEAL})"
    return [words, "small-plain, small-strades", f"{record['images']:,} images, {record['runs'][0]['steps']} steps"]


def _runtime() -> Cells:
    records = read(RESULTS, "speed").values()
    images = sorted({pair.images for record in records for pair in beside_official(record)})
    words = f"{NOT_YET} for all attacks; similar: [sPGD and Sparse-RS, and the authors' code]({SPEED})"
    return [words, ", ".join(sorted({record["model"] for record in records})), f"{images[0]} to {images[-1]:,} images"]


def _detection_scores(one: Made) -> str:
    """mAP under every attack, of every task and budget that was measured."""
    told = []
    for task in one.places:
        for row, words in DETECTION_ROWS.items():
            if here := map_scores(one, task, row):
                paper = table("yolo").cells[task][row]
                each = [f"{column} {value:.1f}{_bracket(paper.get(column))}" for column, value in here.items()]
                told.append(f"{task}, {words}: {', '.join(each)}")
    return "; ".join(told)


def _detectors() -> Cells:
    """From all records of the recipe: one may be of detection, another of segmentation."""
    ones = every_made().get("detection", [])
    if not ones:
        return [NOT_YET, "", ""]
    words = [f"[table]({ones[0].link}): {'; '.join(map(_detection_scores, ones))}"]
    measured = {
        (task, row) for one in ones for task in one.places for row in DETECTION_ROWS if map_scores(one, task, row)
    }
    open_rows = [words for row, words in DETECTION_ROWS.items() if not any(row == place for _, place in measured)]
    if missing := [*({"detection", "segmentation"} - {task for task, _ in measured}), *open_rows]:
        words.append(f"{NOT_YET} with all attacks: {', '.join(missing)}")
    models = [f"{model} ({task}) for YOLOv8-M" for one in ones for task, model in one.places.items()]
    return ["; ".join(words), ", ".join(models), "; ".join(dict.fromkeys(map(_size, ones)))]


NEAREST = {"wm": _watermarks, "runtime": _runtime}  # of tables that were not made
OWN = {"yolo": _detectors}


def _figures() -> Iterator[list[str]]:
    found = {figure: recipe for recipe in RECIPES.values() for figure in recipe.figures}
    for figure in sorted([*found, "Figure 2"], key=lambda words: words.split()[1]):
        if figure not in found:
            yield [figure, "a drawing of the method", "nothing to measure", "", ""]
        elif found[figure].name in _all():
            one = _all()[found[figure].name]
            yield [figure, found[figure].about, f"[table]({one.link}): {_curve(one)}", _models(one), _size(one)]
        else:
            yield [figure, found[figure].about, NOT_YET, "", ""]


def _curve(one: Made) -> str:
    """A few of its numbers; the paper prints none, but its curves end in Tables I and II."""
    if one.recipe == "ratio":
        return f"at k = 3: {', '.join(f'{name} {share:.2f}' for name, share in ratios(one, 3))} [above 0.95]"
    if one.recipe == "pictures":
        return "pictures"
    numbers = [row for row in one.values["numbers"] if row["row"] in one.places and "mean" not in row["section"]]
    model = "sTRADES" if "sTRADES" in one.places else numbers[0]["row"]
    rate, ends = any("rate" in row["section"] for row in numbers), {}
    for row in (row for row in numbers if row["row"] == model and not (row["column"][0] == "k" and row["column"] != K)):
        attack = row["column"] if rate else row["section"]
        end = ("more", "imagenet100, k=200") if one.recipe == "iterations-imagenet" else ("20", "k=20")
        paper = row["paper"] if rate else table(end[0]).value(end[1], model, attack)
        ends[attack] = f"{attack} {row['here']:.1f}{_bracket(paper)}"
    what = "success rate" if rate else "at k = 20" if one.recipe == "sparsity" else "at the end"
    return f"{what}, {model}: {', '.join(ends.values())}"
