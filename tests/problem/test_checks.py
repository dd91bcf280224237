"""What is asked of images before anything runs."""

from __future__ import annotations

import pytest
import torch

import sparsepgd as sp
from sparsepgd.errors import DTypeError, RangeError, ShapeError
from sparsepgd.problem.checks import check_images, check_shape
from support.models import SmallConvNet, images, labelled


@pytest.mark.parametrize("quantize", [True, False])
def test_images_that_require_a_gradient_are_checked_without_a_warning(quantize: bool) -> None:
    """Warnings are errors here: torch has one for a number that is taken out of the graph."""
    x = images(2).requires_grad_()
    check_images(x, quantize)
    with pytest.raises(RangeError):
        check_images(2 * x)
    model = SmallConvNet()
    result = sp.SparsePGD(sp.Budget(k=2), 2)(model, x, labelled(model, x))
    assert not result.x_adv.requires_grad
    assert x.grad is None


def test_the_shape_is_checked_without_a_look_at_the_values() -> None:
    check_shape(torch.empty(2, 3, 4, 4, device="meta"))
    check_shape(torch.full((1, 1, 2, 2), torch.nan))
    for wrong, error in ((torch.rand(3, 4, 4), ShapeError), (torch.ones(1, 1, 2, 2, dtype=torch.uint8), DTypeError)):
        with pytest.raises(error):
            check_shape(wrong)
