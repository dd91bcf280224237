"""sPGD on structured patterns: the default pace, which depends on the steps, beside fixed ones.

    python benchmarks/pace.py --model small-plain -n 100 --lengths 30 100 300 --out benchmarks/results/pace-NAME.json
    python benchmarks/pace.py --model small-plain --data test1000.npz --data-name cifar10-test-1000 -n 1000 ...

The numbers count images that are still classified correctly (fewer: stronger), by default of the bundled images;
docs/deviations.md has the table of the records. A fixed pace does not depend on the steps, so a run of 100 steps is the
beginning of a run of 300, and the longest run gives the numbers for every length. The default has one run for each.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from inputs import DATA, correct, load_images
from provenance import add_arguments, head, write_record

import sparsepgd as sp
from sparsepgd import zoo

BUDGETS = {
    "row": sp.Budget(k=1, pattern=sp.Rows()),
    "5x5 patch": sp.Budget(k=1, pattern=sp.Patches(5)),
    "two 3x3 patches": sp.Budget(k=2, pattern=sp.Patches(3)),
}
PACES = ((0.0125, 50), (0.05, 16), (0.1, 8), (0.1, 16), (0.2, 4))  # alpha = beta, tolerance; the first is the paper's


def left(result: sp.Result, lengths: list[int]) -> dict[str, int]:
    """The images that are still classified correctly after each length, from a run of the longest."""
    right, when = result.clean_correct, result.steps
    return {str(steps): int((right & ~(result.fooled & (when <= steps))).sum()) for steps in lengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=zoo.bundled_names())
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--lengths", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--patterns", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--gradients", nargs="+", default=["unprojected", "projected"])
    parser.add_argument("--data", type=Path, help=DATA)
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser)
    args = parser.parse_args()

    begun, model = time.perf_counter(), zoo.load(args.model).to(args.device)
    x, y = load_images(args.data, args.n).to(args.device)
    record: dict[str, Any] = {
        **head(args, x, y),
        "lengths": args.lengths,
        "model": args.model,
        "right": int(correct(model, x, y).sum()),
        "seed": args.seed,
        "threads": torch.get_num_threads(),
        "rows": [],
    }

    def write(pattern: str, attack: sp.SparsePGD, pace: str, found: dict[str, int]) -> None:
        settings = {"alpha": attack.alpha, "beta": attack.beta, "tolerance": attack.tolerance}
        row = {"pattern": pattern, "gradient": attack.gradient, "pace": pace, **settings, "left": found}
        print(row, flush=True)
        record["rows"].append(row)
        record["seconds"] = round(time.perf_counter() - begun, 1)
        write_record(args.out, record)

    for pattern in args.patterns:
        for gradient in args.gradients:
            for alpha, tolerance in PACES:
                fixed = {"alpha": alpha, "beta": alpha, "tolerance": tolerance}
                attack = sp.SparsePGD(BUDGETS[pattern], max(args.lengths), gradient, **fixed)
                write(pattern, attack, "fixed", left(attack(model, x, y, seed=args.seed), args.lengths))
            for steps in args.lengths:
                attack = sp.SparsePGD(BUDGETS[pattern], steps, gradient)
                write(pattern, attack, "default", left(attack(model, x, y, seed=args.seed), [steps]))


if __name__ == "__main__":
    main()
