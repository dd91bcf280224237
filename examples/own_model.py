"""Your own model: a file with a function that returns it, for Python and for the command line.

    spgd evaluate --model examples/own_model.py:digits_model --data digits --k 3 -n 100

The model takes images in [0, 1] and returns logits. A plain module is enough. A `Source` also has the class names, the
input size and the normalisation, which is then applied before the module.
"""

import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.zoo.normalise import Normalisation


def digits_model() -> sp.Source:
    """A small network for the 8x8 digits of scikit-learn, trained on the spot; yours would load its weights."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = sp.load_data("digits", part="train")
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network((x - 0.3) / 0.4), y).backward()
        optimizer.step()
    names = tuple(str(digit) for digit in range(10))
    return sp.Source("digits", network, names, size=8, normalisation=Normalisation((0.3,), (0.4,)))


def main() -> None:
    try:
        source = sp.load_model(f"{__file__}:digits_model")
    except sp.errors.MissingPackageError as error:
        raise SystemExit(str(error)) from None
    print(source.about)
    x, y = sp.load_data("digits", 100)
    for k in (1, 2, 3):
        print(
            f"k={k}", sp.SparseAutoAttack(sp.Budget(k=k), steps=50, queries=100, version="standard")(source.model, x, y)
        )


if __name__ == "__main__":
    main()
