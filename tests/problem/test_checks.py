"""Checks of images and numbers before a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.errors import DTypeError, RangeError, ShapeError, UnsupportedError
from sparsepgd.problem.checks import check_images, check_shape
from support.models import NoLook, SmallConvNet, images, labelled


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


def test_the_shape_is_checked_without_reading_values() -> None:
    with NoLook():
        check_shape(torch.full((1, 1, 2, 2), torch.nan))
    for wrong, error in ((torch.rand(3, 4, 4), ShapeError), (torch.ones(1, 1, 2, 2, dtype=torch.uint8), DTypeError)):
        with pytest.raises(error):
            check_shape(wrong)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (sp.baselines.OnePixel, {"population": 3}, "population=3; expected a number larger than 3"),
        (sp.baselines.CWL0, {"c_factor": 0.5}, "c_factor=0.5; expected a number larger than 1"),
        (sp.baselines.SparseFool, {"classes": 1.5}, "classes=1.5; expected an integer"),
        (sp.SparsePGD, {"alpha": 0}, "alpha=0; expected a number larger than 0"),
        (sp.SparseAnneal, {"steps": 10**20}, f"steps={10**20}; use at most {10**9}"),
    ],
)
def test_an_error_names_the_number_that_was_given_and_its_limit(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{message}$"):
        kind(sp.Budget(k=1), **wrong)
