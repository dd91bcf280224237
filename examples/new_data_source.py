"""A new data source in one file: ``stripes:SIZE``, images of stripes that lie or stand."""

import torch

import sparsepgd as sp
from sparsepgd.sources.data import KINDS
from sparsepgd.sources.listings import Listing, Part, of_tensors


def stripes(rest: str, part: Part) -> Listing:
    """What follows the colon, and whether to train or to test on -> labels, and a way to read some of the images."""
    size, generator = int(rest), torch.Generator().manual_seed(int(part == "train"))
    y = torch.randint(0, 2, (100,), generator=generator)
    lying = (torch.arange(size) % 2).float()[:, None].expand(size, size)
    clean = torch.where(y[:, None, None] == 0, lying, lying.T)
    x = (0.25 + 0.5 * clean + 0.1 * torch.rand(100, size, size, generator=generator))[:, None]
    return of_tensors((255 * x).round() / 255, y, ("lying", "standing"), split=True)


KINDS["stripes"] = stripes

if __name__ == "__main__":
    data = sp.load_data("stripes:16", n=20, choose="balanced")
    print(data.about, data.class_names)
