"""Write the tables of results in README.md from the records: python benchmarks/readme.py [--check]

Every figure is in a file that the tables name.
"""

import sys

from provenance import ROOT
from records import load, rewritten

from sparsepgd import zoo
from sparsepgd.report.leaderboard import Contender, contenders
from sparsepgd.tables import markdown

MARKS = (
    "<!-- results: written by benchmarks/readme.py from the records, do not edit -->\n",
    "<!-- end of results -->",
)

TRAINING = {
    "small-plain": "clean images",
    "small-strades": "images under sPGD (sTRADES)",
    "small-anneal": "images under SparseAnneal",
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


def small_models() -> str:
    """The models in the package, as the leaderboard has them."""
    found = contenders(ROOT / "leaderboard")
    budgets = [one.words for one in found if one.model == "small-anneal"]
    budgets.sort(key=lambda words: words != "k = 20 pixels")
    rows = []
    for name in reversed(zoo.bundled_names()):
        mine = {one.words: one for one in found if one.model == name}
        lowest = [f"{mine[words].robust_accuracy:.1%}" for words in budgets]
        rows.append([name, TRAINING[name], f"{mine[budgets[0]].clean_accuracy:.1%}", *lowest])
    return (
        "The small models in the package, on the first 200 bundled test images (100 for rows and patches), under all "
        f"attacks of the [leaderboard](docs/leaderboard.md) (`saa+` with {', '.join(_lengths(found))}; longer runs "
        "would lower the other figures, too):\n\n"
        f"{markdown(['model', 'trained on', 'clean', *budgets], rows)}\n"
    )


def _lengths(found: list[Contender]) -> list[str]:
    """The steps of saa+ on the small models, where not all of them have as many."""
    longest = {
        (one.model, one.words): max(each.settings["steps"] for each in one.attempts if each.attack == "saa+")
        for one in found
        if one.model in zoo.bundled_names()
    }
    usual = min(longest.values())
    more = [f"for `{name}`, {words}, {steps:,}" for (name, words), steps in longest.items() if steps > usual]
    return [f"{usual:,} steps", *more]


def _link(name: str) -> str:
    return f"[record](benchmarks/results/{name}.json)"


def main() -> int:
    return rewritten(ROOT / "README.md", MARKS, f"{headline()}\n{small_models()}", "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
