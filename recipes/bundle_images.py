"""Make the images that ship with the package: the first 500 of the CIFAR-10 test set, lossless.

    python recipes/bundle_images.py --data cifar10.npz --out src/sparsepgd/zoo/bundled

CIFAR-10 is Krizhevsky (2009), "Learning multiple layers of features from tiny images". The npz file holds
x_test (10000, 32, 32, 3) uint8 and y_test (10000,); from torchvision it is made by

    test = torchvision.datasets.CIFAR10("data", train=False, download=True)
    np.savez("cifar10.npz", x_test=test.data, y_test=test.targets)
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

NAME, COUNT = "cifar10_test_500", 500
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--data", type=Path, required=True, help="npz file with x_test and y_test")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()

    with np.load(args.data) as data:
        images, labels = data["x_test"][:COUNT], data["y_test"][:COUNT]
    sheet = images.reshape(COUNT * 32, 32, 3)  # one below the other: the smallest of the arrangements tried
    picture = args.out / f"{NAME}.webp"
    Image.fromarray(sheet).save(picture, lossless=True, quality=100, method=6, exact=True)
    assert np.array_equal(np.asarray(Image.open(picture)), sheet), "the sheet is not lossless"

    about = {
        "source": "CIFAR-10 (Krizhevsky 2009), the first 500 test images",
        "classes": CLASSES,
        "pixels_sha256": hashlib.sha256(sheet.tobytes()).hexdigest(),  # of (500, 32, 32, 3) uint8
        "labels": labels.tolist(),
    }
    (args.out / f"{NAME}.json").write_text(json.dumps(about) + "\n")
    print(f"{picture.name}: {COUNT} images, {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
