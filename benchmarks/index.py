"""Write the table of results in docs/index.md, that of README.md: python benchmarks/index.py [--check]"""

import re
import sys

import readme
from provenance import ROOT
from records import load, rewritten

MARKS = ("<!-- results: written by benchmarks/index.py from the records, do not edit -->\n", readme.MARKS[1])


def headline() -> str:
    """The site has no records beside it: they are named below the table, not linked from its last column."""
    paper, ours = load("saa-prn18-fast-ls-2000"), load("anneal-prn18-fast-ls")
    left = [min(left for _, left in row["passes"]) / row["images"] for row in ours["runs"] if row["attack"] == "anneal"]
    point = (
        f"**{paper['accuracy']['sparse-rs']:.1%} of the images survive the paper's ensemble, "
        f"{sum(left) / len(left):.1%} survive SparseAnneal**, which takes fewer steps. "
    )
    table = readme.headline().replace("](docs/", "](")
    names = sorted(set(re.findall(r"\(benchmarks/results/(.+?)\)", table)))
    table = re.sub(r" \| (record|---|\[record\]\(.*\)) \|$", " |", table, flags=re.M)
    return f"{point}{table}\nRecords, in `benchmarks/results`: {', '.join(f'`{name}`' for name in names)}.\n"


if __name__ == "__main__":
    sys.exit(rewritten(ROOT / "docs" / "index.md", MARKS, headline(), "--check" in sys.argv))
