"""Letterboxing: the image keeps its shape, boxes go with it, and what is padding is known."""

from __future__ import annotations

import pytest
import torch

from sparsepgd.detection import letterbox
from sparsepgd.errors import ShapeError
from support.models import images


def test_an_image_that_fits_is_put_in_the_middle_bit_for_bit() -> None:
    image = images(1, size=12)[0, :, :6]  # 6 high, 12 wide
    boxed, where = letterbox(image, 12)
    assert (where.top, where.left, where.height, where.width) == (3, 0, 6, 12)
    assert torch.equal(boxed[:, 3:9], image)
    assert torch.equal(where.content.nonzero()[:, 0].unique(), torch.arange(3, 9))
    assert bool((boxed[:, ~where.content] == 114 / 255).all())


@pytest.mark.parametrize(("height", "width", "inner"), [(10, 40, (16, 64)), (40, 10, (64, 16)), (7, 7, (64, 64))])
def test_the_longer_side_fills_the_frame(height: int, width: int, inner: tuple[int, int]) -> None:
    boxed, where = letterbox(torch.rand(3, height, width), 64)
    assert boxed.shape == (3, 64, 64)
    assert (where.height, where.width) == inner
    assert int(where.content.sum()) == inner[0] * inner[1]
    assert torch.equal((boxed * 255).round() / 255, boxed)  # on the 8-bit grid


def test_boxes_lie_where_the_image_lies() -> None:
    _, where = letterbox(torch.rand(3, 10, 40), 64)
    whole, corner = where.boxes(torch.tensor([[0.5, 0.5, 1, 1], [0.25, 0.25, 0.5, 0.5]])).tolist()
    assert whole == [0, 24, 64, 40]
    assert corner == [0, 24, 32, 32]


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"expected floats \(C, H, W\)"):
        letterbox(torch.rand(1, 3, 8, 8), 64)
