"""Draw the picture of the README, docs/images/perturbations.png: one adversarial image for each budget.

python examples/gallery.py [OUT.png]
"""

import sys
from pathlib import Path

import matplotlib
import torch

import sparsepgd as sp
from sparsepgd import zoo

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BUDGETS = {
    "20 pixels": sp.Budget(k=20),
    "1 row": sp.Budget(k=1, pattern=sp.Rows()),
    "1 patch 5x5": sp.Budget(k=1, pattern=sp.Patches(5)),
    "1 heart 9x9": sp.Budget(k=1, pattern=sp.Shape.heart(9)),
    "letter A, eps = 48/255": sp.Budget(k=1, pattern=sp.Shape.letter("A", 24), eps=48 / 255),
}


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/perturbations.png")
    model = zoo.load("small-plain")
    x, y = zoo.bundled_images(40)
    figure, axes = plt.subplots(3, len(BUDGETS), figsize=(2.1 * len(BUDGETS), 6.6))
    taken: set[int] = set()
    for column, (name, budget) in enumerate(BUDGETS.items()):
        result = sp.SparsePGD(budget, steps=200, gradient="projected")(model, x, y)
        i = next(i for i in result.fooled.nonzero()[:, 0].tolist() if i not in taken)  # the first not shown yet
        taken.add(i)
        change = (result.x_adv[i] - x[i]).abs().amax(0)
        before, after = (zoo.CIFAR10_CLASSES[int(p[i])] for p in (result.clean_prediction, result.prediction))
        shown = ((x[i], f"{name}\n{before}"), (result.x_adv[i], after), (change, f"{int(result.l0[i])} pixels"))
        for row, (picture, title) in enumerate(shown):
            axes[row, column].imshow(picture.permute(1, 2, 0) if picture.dim() == 3 else picture, cmap="magma", vmin=0)
            axes[row, column].set_title(title, fontsize=10)
            axes[row, column].axis("off")
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
