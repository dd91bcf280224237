"""Write the tables of results in README.md from the records: python benchmarks/readme.py [--check]

Every figure is in a file that the tables name.
"""

import sys

from provenance import ROOT
from records import load, rewritten

from sparsepgd import zoo
from sparsepgd.tables import markdown

MARKS = (
    "<!-- results: written by benchmarks/readme.py from the records, do not edit -->\n",
    "<!-- end of results -->",
)

TRAINING = {
    "prn18-anneal": "images under SparseAnneal and Cluster-RS",
    "prn18-fast-ls": "images under one step of sPGD (Fast-LS-l0)",
}


def headline() -> str:
    """The shipped model under the paper's ensemble and under SparseAnneal."""
    name, paper = "anneal-prn18-fast-ls", load("saa-prn18-fast-ls-2000")
    record = load(name)
    long = [row for row in record["runs"] if row["attack"] == "anneal"]
    cold = long[0]  # the first call of its process
    rows = [["none", "", f"{cold['right'] / record['images']:.1%}", _link(name)]]
    others = load(beside := "anneal-others-prn18-fast-ls")
    labels = {"official spgd-unprojected": "sPGD, the authors' code", "sparse-rs": "Sparse-RS, black box"}
    labels["cluster-rs"] = "Cluster-RS, black box"
    for row in others["runs"]:
        if label := labels.get(row["attack"]):
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
        f"`{record['model']}` is a PreActResNet-18 trained against 20 pixels. Robust accuracy on the first "
        f"{record['images']:,} CIFAR-10 test images, k = {record['k']}, {record['hardware']}:\n\n"
        f"{markdown(['attack', 'steps or queries per image', 'robust accuracy', 'record'], rows)}\n\n"
        "A step is one forward and one backward pass; a query of a black-box attack is one forward pass. In a new "
        f"process, SparseAnneal falls below the result of the paper's ensemble {first:.1f} s after the start "
        "of the attack "
        "([how it works](docs/anneal.md)).\n"
    )


def full_size_models() -> str:
    """The models in weights/, by their cards: the paper's ensemble beside the lowest of all attacks."""
    rows = []
    for name in zoo.FULL_SIZE:
        card = zoo.card(name, ROOT / "weights")
        paper, lowest = next(one for one in card.robust if one.attack == "saa"), card.lowest
        assert lowest is not None
        cells = [f"{one.robust_accuracy:.1%} ({_words(one)})" for one in (paper, lowest)]
        rows.append([f"[{name}](weights/{name}.json)", TRAINING[name], f"{card.clean_accuracy:.1%}", *cells])
    titles = ["model", "trained on", "clean", "under the paper's ensemble", "lowest of all attacks"]
    return (
        "The full-size models in `weights/` (PreActResNet-18, k = 20). Clean accuracy is measured on all 10,000 "
        f"test images, robust accuracy on the first 1,000:\n\n{markdown(titles, rows)}\n\n"
        f"{_again()} The small models in the package, also under rows and patches, are on the "
        "[leaderboard](docs/leaderboard.md).\n"
    )


def _words(one: zoo.Figure) -> str:
    return f"{one.runs} runs together" if one.attack == zoo.ALL_RUNS else f"`{one.attack}`, {one.steps:,} steps"


def _again() -> str:
    """The second training of prn18-anneal."""
    record = load(name := "seed-cifar10-anneal-searched-1")
    low = min((zoo.Figure(**one) for one in record["saa+"]), key=lambda one: one.robust_accuracy)
    return (
        f"Trained with another seed, `prn18-anneal` has {record['clean']:.1%} clean and {low.robust_accuracy:.1%} "
        f"robust accuracy in a single run ({_words(low)}; {_link(name)})."
    )


def _link(name: str) -> str:
    return f"[record](benchmarks/results/{name}.json)"


def main() -> int:
    return rewritten(ROOT / "README.md", MARKS, f"{headline()}\n{full_size_models()}", "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
