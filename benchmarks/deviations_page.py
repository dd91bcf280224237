"""Write the table of docs/deviations.md beside the official code: python benchmarks/deviations_page.py [--check]"""

import statistics
import sys
from collections.abc import Iterator

from provenance import ROOT
from records import load, rewritten

from sparsepgd.tables import markdown

MARKS = (
    "<!-- official: written by benchmarks/deviations_page.py from the records, do not edit -->\n",
    "<!-- end of official -->",
)
GRADIENTS = ("unprojected", "projected")
# By record: its letter on the page, and the variants that are what is here now and what has f and g as in the paper.
VARIANTS = {
    "deviations-prn18-strades": ("S", "f+g: cumulative and stale", "as shipped"),
    "deviations-prn18-linf": ("L", None, "as shipped"),
    "deviations-digits-plain": ("D", "as shipped", "f+g: consecutive and fresh"),
}
SPEED = {"speed-prn18-strades": "F", "speed-prn18-linf": "F"}  # the letters of records of speed.py


def rows() -> Iterator[list[str]]:
    for name in ("deviations-prn18-strades", *SPEED, "deviations-prn18-linf", "deviations-digits-plain"):
        record = load(name)
        for gradient in GRADIENTS:
            if name in SPEED:
                found = {row["name"]: row["robust"] for row in record["spgd"]["attacks"]}
                letter, own = SPEED[name], [f"official spgd-{gradient}", f"spgd-{gradient}", None]
            else:
                found = {row["variant"]: row["robust"] for row in record["rows"] if row["gradient"] == gradient}
                letter, *variants = VARIANTS[name]
                own = ["official code", *variants]
            yield [record["model"], gradient, *(_cell(found[one]) if one else "-" for one in own), f"[{letter}]"]


def _cell(left: list[int]) -> str:
    return f"{statistics.mean(left):.1f} ({', '.join(map(str, left))})"


def table() -> str:
    titles = ["model", "gradient", "official", "here", "here, f and g as in the paper", "record"]
    return markdown(titles, list(rows())) + "\n"


if __name__ == "__main__":
    sys.exit(rewritten(ROOT / "docs" / "deviations.md", MARKS, table(), "--check" in sys.argv))
