"""A new data source in one file: ``stripes:SIZE``, images of horizontal or vertical stripes."""

import torch

import sparsepgd as sp
from sparsepgd.sources.data import KINDS
from sparsepgd.sources.listings import Listing, Part, of_tensors


def stripes(rest: str, part: Part) -> Listing:
    """``rest`` follows the colon, ``part`` is train or test; a listing has all labels and reads images when needed."""
    size, generator = int(rest), torch.Generator().manual_seed(int(part == "train"))
    y = torch.randint(0, 2, (100,), generator=generator)
    horizontal = (torch.arange(size) % 2).float()[:, None].expand(size, size)
    clean = torch.where(y[:, None, None] == 0, horizontal, horizontal.T)
    x = (0.25 + 0.5 * clean + 0.1 * torch.rand(100, size, size, generator=generator))[:, None]
    return of_tensors((255 * x).round() / 255, y, ("horizontal", "vertical"), split=True)


KINDS["stripes"] = stripes

if __name__ == "__main__":
    data = sp.load_data("stripes:16", n=20, choose="balanced")
    print(data.about, data.class_names)
