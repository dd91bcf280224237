"""Write the results of README.md from the records: python benchmarks/readme.py [--check]

Every figure in the table stands in a file that the table names.
"""

import json
import sys
from pathlib import Path

from records import PAIR, beside_official, load, rewritten, torch_version

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
    return (
        "Beside the authors' code, in one run at equal steps and k = 20 (warm-up apart; left: images still right, "
        f"fewer is a stronger attack):\n\n{markdown(['model', 'attack', *PAIR, 'record'], rows)}\n\n"
        f"`prn18`: {gpu['hardware']}, torch {torch_version(gpu)}, {gpu['spgd']['steps']} steps, "
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


def trained() -> str:
    """The training runs, from their records, beside the figures of the two papers."""
    titles = ["recipe", "epochs", "seconds", "clean", "queries", "under sAA", "authors, sAA", "record"]
    rows, near = [], []
    for name, paper in AUTHORS.items():
        record = load(f"train-cifar10-{name}")
        saa = record["saa"]
        found = ["-", "not run"] if saa is None else [f"{saa['queries']:,}", f"{saa['robust_accuracy']:.1%}"]
        seconds = f"{record['seconds']:.0f}{' (shared GPU)' if record.get('trainings at once', 1) > 1 else ''}"
        cells = [name, str(record["epochs"]), seconds, f"{record['clean']:.1%}", *found, paper]
        rows.append([*cells, _link(f"train-cifar10-{name}")])
        if "near" in record:
            near.append(f"`{name}` {record['near']['robust_accuracy']:.1%}")
    lowest = min(row["left"] / row["images"] for row in load("anneal-prn18-fast-ls")["runs"])
    return (
        "\nPreActResNet-18 on CIFAR-10, trained by `recipes/quick` in minutes, under Sparse-AutoAttack (the first "
        "1,000 test images; 300 steps of sPGD with either gradient, then Sparse-RS with as many queries as are said), "
        f"beside what the authors report after 100 epochs and 10,000 steps:\n\n{markdown(titles, rows)}\n\n"
        f"`fast-ls` is shipped as `prn18-fast-ls`. These columns overstate what it withstands: SparseAnneal reduces it "
        f"to {lowest:.1%} ([record](benchmarks/results/anneal-prn18-fast-ls.json)), and the others have not been "
        "measured under it yet. `strades-long` goes on "
        "where `strades` ended, against an adversary that does not stop at its first success, 100 epochs in all; "
        "`strades-sn` goes on from `fast-ls` in the same way. The other runs are much shorter than those of the "
        "authors. All these models were trained against extreme pixels, which sAA mostly looks for too: 80 steps of "
        "sPGD from near the clean image, which `SparseAnneal` has replaced since, leave of the first 300 test images "
        f"{', '.join(near)}."
    )


AUTHORS = {  # sAA of the paper and of the authors' work on one-step training, k = 20; a row, a 5x5 patch: k = 1
    "plain": "-",
    "fast-ls": "63.0%",
    "strades-sn": "65.5%",
    "strades": "-",
    "strades-long": "61.7%",
    "sat": "36.2%",
    "strades-row": "77.3%",
    "strades-patch": "55.9%",
}


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
