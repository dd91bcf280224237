"""What each attack does to one image: docs/images/attacks.png.

    python benchmarks/attack_pictures.py [--image 20] [--out docs/images/attacks.png]

The model is small-plain, the image a bundled one, the settings are the quick presets: 20 pixels, and one patch of 5x5
for LOAP, which moves groups. Beside each image are its changes, on grey.
"""

import argparse
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import sparsepgd as sp
from sparsepgd import options, zoo
from sparsepgd.search.registry import ENTRIES
from sparsepgd.zoo.registry import CIFAR10_CLASSES

PIXELS, PATCH = sp.Budget(k=20), sp.Budget(k=1, pattern=sp.Patches(5))
BASELINES = [name for name, one in ENTRIES.items() if one.compared and "baselines" in one.kind.__module__]
NAMES = ("spgd-unprojected", "sparse-rs", *BASELINES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=int, default=20, help="the number of the bundled image")
    parser.add_argument("--out", type=Path, default=Path("docs/images/attacks.png"))
    arguments = parser.parse_args()
    model = zoo.load("small-plain")
    x, y = (tensor[arguments.image :] for tensor in zoo.bundled_images(arguments.image + 1))
    figure, axes = plt.subplots(4, 6, figsize=(9.6, 7.4))
    for name, pair in zip(NAMES, axes.reshape(-1, 2), strict=True):
        attack = options.preset(name, PATCH if name == "loap" else PIXELS, "quick")
        result = attack(model, x, y)
        change = (result.x_adv - x)[0]
        said = CIFAR10_CLASSES[int(result.prediction)]
        verdict = f"{int(result.l0)} pixels, {said}" if bool(result.fooled) else "withstood"
        print(f"{name}: {verdict}, {int(result.forwards)} forwards, {int(result.backwards)} backwards")
        pair[0].imshow(result.x_adv[0].permute(1, 2, 0))
        pair[1].imshow((0.5 + change.permute(1, 2, 0) / 2).clamp(0, 1))
        pair[0].set_title(name, fontsize=9, loc="left")
        pair[1].set_title(verdict, fontsize=7, loc="left")
        for axis in pair:
            axis.set_xticks([])
            axis.set_yticks([])
    figure.tight_layout(pad=0.6)
    figure.savefig(arguments.out, dpi=100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
