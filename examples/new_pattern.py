"""A new pattern in one file: bands of adjacent rows, for every attack that supports all patterns."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import sparsepgd as sp


@dataclass(frozen=True)
class Bands(sp.Pattern):
    """Bands of ``rows`` adjacent rows over the whole width."""

    rows: int
    unit: ClassVar[str] = "bands"

    def kernel(self, height: int, width: int) -> Tensor:
        return torch.ones(self.rows, width)


if __name__ == "__main__":
    x, y = sp.zoo.bundled_images(32)
    print(sp.SparsePGD(sp.Budget(k=1, pattern=Bands(2)), steps=50)(sp.zoo.load("small-plain"), x, y))
