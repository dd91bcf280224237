"""Write the table of docs/interpreting.md from its record: python benchmarks/interpreting.py [--check]"""

import sys
from pathlib import Path

from records import compared, load, rewritten, torch_version

ROOT = Path(__file__).parent.parent
RECORD = "compare-small-strades-200"
PAGE = ROOT / "docs" / "interpreting.md"
MARKS = "<!-- written by benchmarks/interpreting.py, do not edit -->\n", "<!-- end -->"


def table() -> str:
    record = load(RECORD)
    setting = (
        f"The settings are those of `spgd compare --model zoo:{record['model']} -n {record['n']} --k 20 --equal-cost "
        "200` (the record does not hold the command), "
        f"seed {record['seed']}, torch {torch_version(record)} on a CPU; "
        f"record: `benchmarks/results/{RECORD}.json`. Forward and backward passes count alike; successes "
        "after more than 200 passes do not count."
    )
    right = round(record["lines"][0]["clean_accuracy"] * record["n"])
    broken = {line["attack"]: right - round(line["robust_accuracy"] * record["n"]) for line in record["lines"]}
    ranked = sorted((name for name in broken if broken[name]), key=lambda name: -broken[name])
    said = ", ".join(f"{name} breaks {broken[name]}" for name in ranked)
    summary = f"Of the {right} images classified correctly without an attack, {said}. The other attacks break none."
    return f"{compared(record)}\n\n{setting}\n\n{summary}\n"


if __name__ == "__main__":
    sys.exit(rewritten(PAGE, MARKS, f"\n{table()}\n", "--check" in sys.argv))
