"""Write the results of README.md from the records: python benchmarks/readme.py [--check]

Every figure in the table stands in a file that the table names.
"""

import json
import sys
from pathlib import Path

from records import PAIR, RESULTS, beside_official, budget_of, load, rewritten, stages, strongest, torch_version

from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.tables import markdown
from sparsepgd.zoo import Card

ROOT = Path(__file__).parent.parent
MARKS = (
    "<!-- results: written by benchmarks/readme.py from the records, do not edit -->\n",
    "<!-- end of results -->",
)


def headline() -> str:
    """The shipped model under the paper's ensemble and under SparseAnneal."""
    name, paper = "anneal-prn18-fast-ls", load("saa-prn18-fast-ls-2000")
    record = load(name)
    long = [row for row in record["runs"] if row["attack"] == "anneal"]
    cold = long[0]  # the first call of its process
    rows = [["none", "", f"{cold['right'] / record['images']:.1%}", _link(name)]]
    others = load(beside := "anneal-others-prn18-fast-ls")
    for row in others["runs"]:
        if row["attack"].startswith("official") or row["attack"] in ("sparse-rs", "cluster-rs"):
            label = {"sparse-rs": "Sparse-RS, black box", "cluster-rs": "Cluster-RS, black box"}.get(row["attack"])
            label = label or row["attack"].replace("official", "authors,")
            rows.append([label, f"{row['length']:,}", f"{row['left'] / row['images']:.1%}", _link(beside)])
    passes = 2 * paper["steps"] + paper["queries"]
    left = f"{paper['accuracy']['sparse-rs']:.1%}"
    rows.append(["sAA, the paper's ensemble", f"{passes:,}", left, _link("saa-prn18-fast-ls-2000")])
    for mark in (100, 1600, 6000):
        left = [min(left for passes, left in row["passes"] if passes <= mark) / row["images"] for row in long]
        mean = f"{sum(left) / len(left):.1%} ({', '.join(f'{one:.1%}' for one in left)})"
        rows.append(["SparseAnneal, three seeds", f"{mark:,}", mean, _link(name)])
    first = next(when for when, left in cold["clock"] if left / record["images"] < paper["accuracy"]["sparse-rs"])
    return (
        f"How robust is `{record['model']}`, a PreActResNet-18 trained against 20 pixels? The first "
        f"{record['images']:,} test images of CIFAR-10, k = {record['k']}, {record['hardware']}:\n\n"
        f"{markdown(['attack', 'passes for each image, at most', 'robust accuracy', 'record'], rows)}\n\n"
        "A pass is a forward and a backward pass; a query of a black box is a forward pass alone. "
        f"In a cold process SparseAnneal is below the verdict of the paper's ensemble after {first:.1f} s "
        "([how it works](docs/anneal.md)). `spgd evaluate` runs it first, as a part of `saa+`.\n"
    )


def beside_the_official_code() -> str:
    """Seconds and images left, from runs that held both."""
    rows = []
    for name in ("speed-prn18-strades", "speed-prn18-linf", "speed-cpu-small-strades"):
        record = load(name)
        for pair in beside_official(record):
            rows.append([record["model"], f"{pair.attack}, {pair.images:,} images", *pair.cells, _link(name)])
    gpu, weak, cpu = map(load, ("speed-prn18-strades", "speed-prn18-linf", "speed-cpu-small-strades"))
    trained_for = [record["model note"].partition(";")[0] for record in (gpu, weak)]
    return (
        "Beside the authors' code, in one run at equal steps and k = 20 (ours after a warm-up, theirs without one; "
        "left: images still right, fewer is a stronger attack):\n\n"
        f"{markdown(['model', 'attack', *PAIR, 'record'], rows)}\n\n"
        f"`prn18`, {' and '.join(trained_for)}: {gpu['hardware']}, torch {torch_version(gpu)}, "
        f"{gpu['spgd']['steps']} steps, "
        f"{gpu['sparse-rs']['queries']} queries, fp16 and compiled code for the search, verdicts in fp32, three seeds "
        "each. The first call of a process, with nothing warm and not compiled yet: "
        f"{gpu['first call']['seconds']:.1f} s (strades) and {weak['first call']['seconds']:.1f} s (linf). `small`: "
        f"{cpu['threads']} CPU cores, {cpu['steps']} steps and "
        "queries, three seeds each. [All results](docs/results.md)."
    )


def _link(name: str) -> str:
    return f"[record](benchmarks/results/{name}.json)"


SHOWN = {f"spgd-{gradient}": f"sPGD {gradient}" for gradient in ("unprojected", "projected")}


def shipped() -> str:
    """The models in the package, from their cards."""
    titles, rows = ["model", "parameters", "clean", *SHOWN.values(), "the lowest of all attacks"], []
    for file in sorted((ROOT / "src" / "sparsepgd" / "zoo" / "bundled").glob("small-*.json")):
        card = Card.of(json.loads(file.read_text()))
        lowest = min(card.robust, key=lambda one: one.robust_accuracy)
        shown = {one.attack: one.robust_accuracy for one in card.robust}
        cells = [f"{value:.1%}" for value in (card.clean_accuracy, *(shown[one] for one in SHOWN))]
        rows.append([card.name, f"{card.parameters:,}", *cells, f"{lowest.robust_accuracy:.1%}, {lowest}"])
    return (
        "\nThe small models in the package (10,000 test images clean, the first 1,000 under attack at k = 20, 100 "
        "steps; the cards in `src/sparsepgd/zoo/bundled` hold the training command, `spgd zoo NAME` what other attacks "
        f"leave):\n\n{markdown(titles, rows)}"
    )


PAPER = {  # of which row of the paper's tables a recipe is the counterpart
    "plain": ("20", "k=20", "Vanilla"),
    "strades": ("20", "k=20", "sTRADES"),
    "strades-long": ("20", "k=20", "sTRADES"),
    "sat": ("20", "k=20", "sAT"),
    "strades-row": ("struct", "cifar10, 1 row", "sTRADES-row"),
    "strades-patch": ("struct", "cifar10, 1 patch 5x5", "sTRADES-p5x5"),
}
LATER = {"fast-ls": "Fast-LS-l0", "strades-sn": "sTRADES+S&N"}  # those of the authors' later work


def trained() -> str:
    """The training runs, from their records, beside the figures of the two papers."""
    titles = ["recipe", "epochs", "seconds", "clean", "queries", "under sAA", "the lowest", "authors, sAA", "record"]
    rows, later = [], facts()["follow_up"]
    for name in ("plain", *LATER, *list(PAPER)[1:]):
        every = [load(f"train-{one}") for one in stages(f"cifar10-{name}")]
        record, saa = every[-1], every[-1]["saa"]
        seconds = f"{sum(one['seconds'] for one in every):.0f}"
        shared = " (shared GPU)" if record.get("trainings at once", 1) > 1 else ""
        lowest = strongest(RESULTS, f"cifar10-{name}", budget_of(f"cifar10-{name}"))
        assert lowest is not None
        least = (
            f"{lowest.share:.1%}, {lowest.attack}, [{lowest.images:,} images](benchmarks/results/{lowest.record}.json)"
        )
        if name in LATER:
            theirs = f"{later['sAA']['cifar10, k=20'][LATER[name]]:.1f}% [2]"
        else:
            label, *place = PAPER[name]
            theirs = f"{table(label).value(*place, 'sAA'):.1f}% [1]"
        cells = [name, str(sum(one["epochs"] for one in every)), seconds + shared, f"{record['clean']:.1%}"]
        cells += [f"{saa['queries']:,}", f"{saa['robust_accuracy']:.1%}", least, theirs]
        rows.append([*cells, _link(f"train-cifar10-{name}")])
    return (
        f"\nPreActResNet-18 on CIFAR-10, trained by `recipes/quick` in minutes; epochs and seconds are those of all "
        f"stages from fresh weights on. Under Sparse-AutoAttack (the first {saa['images']:,} test images; "
        f"{saa['steps']} steps of sPGD with either gradient, then Sparse-RS with as many queries as are said), under "
        "the strongest attack in any record, and what the authors report after 100 epochs and 10,000 steps:\n\n"
        f"{markdown(titles, rows)}\n\n[1] {facts()['source']}. [2] {later['source']}.\n\n"
        "`fast-ls` is shipped as `prn18-fast-ls`. `strades-long` goes on where `strades` ended, against an adversary "
        "that does not stop at its first success; `strades-sn` goes on from `fast-ls` in the same way. All these "
        "models were trained against extreme pixels, which sAA mostly looks for too, so that it overstates what they "
        "withstand; those without another attack in the column of the lowest have not been measured under a stronger "
        "one yet. The recipes were chosen by what they left of these same images, with one seed, so their figures are "
        "a little better than those of a fresh test would be. `spgd-near` is sPGD from near the clean image, 80 steps, "
        "which `SparseAnneal` (`anneal`) has replaced since."
    )


def beyond_saa() -> str:
    """Where other attacks are stronger, from the comparison at equal cost."""
    name = "compare-small-strades-200"
    record = load(name)
    left = {line["attack"]: f"{line['robust_accuracy']:.1%}" for line in record["lines"]}
    return (
        f"\nOn `{record['model']}` the paper's attacks are not the strongest: at {record['how']}, {record['n']} "
        f"images, k = 20, sPGD leaves {left['spgd-projected']} and Sparse-RS {left['rs']}, but l1-APGD "
        f"{left['l1-apgd']}, CW {left['cw-l0']} and sPGD from near the clean image, which `SparseAnneal` has replaced "
        f"since, {left['spgd-near']} ([{name}](benchmarks/results/{name}.json)): the model has learned to ignore "
        "extreme pixels, and these look for moderate ones."
    )


def main() -> int:
    parts = [headline(), beside_the_official_code(), trained(), shipped(), beyond_saa()]
    return rewritten(ROOT / "README.md", MARKS, "\n".join(parts) + "\n", "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
