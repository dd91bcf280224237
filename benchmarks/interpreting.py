"""Write the table of docs/interpreting.md from its record: python benchmarks/interpreting.py [--check]"""

import sys
from pathlib import Path

from records import load, torch_version

ROOT = Path(__file__).parent.parent
RECORD = "compare-small-strades-200"
PAGE = ROOT / "docs" / "interpreting.md"
START, END = "<!-- written by benchmarks/interpreting.py, do not edit -->\n", "<!-- end -->"


def table() -> str:
    record = load(RECORD)
    lines = ["| attack | robust accuracy | 95 % | passes for an image |", "| --- | --- | --- | --- |"]
    for line in sorted(record["lines"], key=lambda line: (line["robust_accuracy"], line["attack"])):
        low, high = line["interval"]
        passes = line["forwards"] + line["backwards"]
        lines.append(
            f"| {line['attack']} | {line['robust_accuracy']:.1%} | {100 * low:.0f}-{100 * high:.0f} | {passes:.0f} |"
        )
    setting = (
        f"`spgd compare --model zoo:{record['model']} -n {record['n']} --k 20 --equal-cost 200`, "
        f"seed {record['seed']}, torch {torch_version(record)} on a CPU; "
        f"record: `benchmarks/results/{RECORD}.json`. Passes are forwards and backwards together, as taken; successes "
        "after more than 200 do not count."
    )
    right = round(record["lines"][0]["clean_accuracy"] * record["n"])
    broken = {line["attack"]: right - round(line["robust_accuracy"] * record["n"]) for line in record["lines"]}
    ranked = sorted((name for name in broken if broken[name]), key=lambda name: -broken[name])
    said = ", ".join(f"{name} breaks {broken[name]}" for name in ranked)
    summary = f"Of the {right} images that are right when clean {said}; each of the others breaks none."
    return "\n".join(lines) + f"\n\n{setting}\n\n{summary}\n"


def main() -> int:
    text = PAGE.read_text()
    head, rest = text.split(START)
    new = head + START + "\n" + table() + "\n" + END + rest.split(END)[1]
    if "--check" in sys.argv:
        return int(new != text)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
