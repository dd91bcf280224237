"""Write the npz files that the commands of records name, and print their checksums.

    python benchmarks/data_files.py --out .                  # downloads CIFAR-10, unless it is in ./data
    python benchmarks/data_files.py --cifar10 FOLDER --out . # FOLDER holds cifar-10-batches-py or cifar10.npz

CIFAR-10 is needed as 8-bit images (N, 32, 32, 3) and labels. docs/reproducing.md says what each file holds.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
from torch import Tensor

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.training.data import split
from sparsepgd.training.settings import make_settings

Arrays = dict[str, np.ndarray]


def files(cifar10: str) -> dict[str, Arrays]:
    """The arrays of each file, by its name."""
    (x, y), (x_test, y_test) = (sp.load_data(cifar10, part=part) for part in ("train", "test"))
    train, test = arrays("_train", x, y), arrays("_test", x_test, y_test)
    rows = split(len(x), make_settings("plain", sp.Budget(k=1), {"held_out": 1000}))[1]
    x_small, y_small = zoo.bundled_images(500)
    return {
        "cifar10.npz": {**train, **test},
        "test1000.npz": arrays("_test", x_test[:1000], y_test[:1000]),
        "heldout.npz": arrays("", x[rows], y[rows]),
        "cifar10-15000.npz": {**arrays("_train", x[:15000], y[:15000]), **test},
        "bundled.npz": arrays("", x_small, y_small) | {"y": y_small.numpy()},
    }


def arrays(part: str, x: Tensor, y: Tensor) -> Arrays:
    pixels = (x * 255).round().byte().permute(0, 2, 3, 1).contiguous()
    return {f"x{part}": pixels.numpy(), f"y{part}": y.byte().numpy()}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--cifar10", help="folder of CIFAR-10, or an npz file with all of it; default: ./data")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, content in files(f"cifar10:{args.cifar10}" if args.cifar10 else "cifar10").items():
        np.savez(args.out / name, **content)
        print(hashlib.sha256((args.out / name).read_bytes()).hexdigest()[:16], name)


if __name__ == "__main__":
    main()
