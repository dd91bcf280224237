"""Make the shipped records of leaderboard/: python benchmarks/leaderboard.py [RUNS]

Attacks on the shipped models, each in a folder of its own under RUNS (default: runs/leaderboard); the same command
resumes. The first attack is saa+, the strongest; the others show the robust accuracy under each attack alone.
"""

import sys
from pathlib import Path

from sparsepgd import baselines, options, zoo
from sparsepgd.commands.leaderboard import PAGE, markdown
from sparsepgd.report import leaderboard as board
from sparsepgd.runs import runs
from sparsepgd.runs.records import About
from sparsepgd.search import SparseAutoAttack, SparsePGD, SparseRS
from sparsepgd.threat import Budget

ROOT = Path(__file__).parent.parent
MODELS = ("small-plain", "small-strades", "small-anneal")
BUDGETS = (("pixel", 20, 200), ("row", 1, 100), ("patch:5", 1, 100))  # pattern, k, images


def attacks(budget: Budget) -> list:
    pace = {"alpha": 0.1, "beta": 0.1, "tolerance": 8} if budget.pattern.structured else {}  # for short runs
    found = [SparseAutoAttack(budget, 1000, 1000, version="standard")]
    found += [SparsePGD(budget, 100, gradient, **pace) for gradient in ("unprojected", "projected")]
    found += [SparseRS(budget, 500)]
    if not budget.pattern.structured:
        found += [baselines.CWL0.quick(budget), baselines.L1APGD(budget, 60, targets=0)]
    return found


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "leaderboard"
    for pattern, k, n in BUDGETS:
        budget = Budget(k=k, pattern=options.pattern(pattern))
        for name in MODELS:
            for attack in attacks(budget):
                folder = place / name / pattern.replace(":", "") / attack.name
                names = {"model": name, "data": "bundled"}
                about = About(class_names=zoo.CIFAR10_CLASSES, command="python benchmarks/leaderboard.py")
                record = runs.run(folder, attack, zoo.load(name), zoo.bundled_images(n), names, about=about)
                board.add(ROOT / "leaderboard", folder)
                print(
                    f"{name}, {budget}, {attack.name}: {record.robust_accuracy:.1%}, {record.seconds:.0f} s", flush=True
                )
    (ROOT / PAGE).write_text(markdown(board.contenders(ROOT / "leaderboard")))


if __name__ == "__main__":
    main()
