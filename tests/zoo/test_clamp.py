"""The layer that removes isolated changes of pixels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsepgd.errors import ShapeError
from sparsepgd.zoo import NeighbourClamp

CLAMP = NeighbourClamp()
GREY = torch.full((1, 3, 6, 7), 0.5)


def expected(x: Tensor) -> Tensor:
    """The definition, pixel by pixel."""
    out = x.clone()
    height, width = x.shape[-2:]
    for i in range(height):
        for j in range(width):
            rows, columns = range(max(i - 1, 0), min(i + 2, height)), range(max(j - 1, 0), min(j + 2, width))
            near = torch.stack([x[..., a, b] for a in rows for b in columns if (a, b) != (i, j)]).sort(0).values
            out[..., i, j] = x[..., i, j].maximum(near[1]).minimum(near[-2])
    return out


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (6, 7)])
def test_values_are_limited_by_the_second_smallest_and_second_largest_neighbour(size: tuple[int, int]) -> None:
    x = torch.rand(4, 3, *size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(CLAMP(x), expected(x))


@pytest.mark.parametrize("place", [(2, 3), (0, 3), (0, 0)], ids=["inside", "edge", "corner"])
def test_a_changed_pixel_alone_is_removed(place: tuple[int, int]) -> None:
    x = GREY.clone()
    x[0, :, *place] = torch.tensor([0.0, 1.0, 1.0])
    assert torch.equal(CLAMP(x), GREY)


def test_two_changed_pixels_are_removed_and_three_that_touch_each_other_stay() -> None:
    x = GREY.clone()
    x[..., 2, 3] = x[..., 2, 4] = 1.0
    assert torch.equal(CLAMP(x), GREY)
    x[..., 3, 3] = 1.0
    assert torch.equal(CLAMP(x), x)


def test_the_gradient_of_a_limited_value_goes_to_the_neighbour_that_limits_it() -> None:
    x = torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    x[0, 0, 1, 1] = 2.0
    x.requires_grad_(True)
    (gradient,) = torch.autograd.grad(CLAMP(x)[0, 0, 1, 1], x)
    flat = torch.cat([x.detach().flatten()[:4], x.detach().flatten()[5:]])
    second = int((x == flat.sort().values[-2]).flatten().nonzero())
    assert gradient.flatten().tolist() == [float(i == second) for i in range(9)]


def test_an_image_without_two_neighbours_for_each_pixel_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"images of shape \(1, 3, 1, 9\); NeighbourClamp needs sides of at least 2"):
        CLAMP(torch.rand(1, 3, 1, 9))
