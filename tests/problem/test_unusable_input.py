"""Unusable images, labels, goals, indices, models and budgets are refused with helpful messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.errors import (
    DTypeError,
    LabelError,
    ModelError,
    NonFiniteError,
    RangeError,
    ShapeError,
    UnsupportedError,
)
from sparsepgd.search import registry
from support.models import SmallConvNet, images, labelled

MODEL = SmallConvNet().eval()
X = images(3)
Y = labelled(MODEL, X)
ATTACK = sp.SparsePGD(sp.Budget(k=3), steps=4)
NAN, INF = float("nan"), float("inf")


def with_value(row: int, value: float) -> torch.Tensor:
    """X / 2, and one entry of an image is something else."""
    x = X / 2
    x[row, 0, 3, 4] = value
    return x


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (X * 255, RangeError, r"images are in \[0, 255\]; expected \[0, 1\]: divide by 255"),
        (X - 0.5, RangeError, "undo the normalisation"),
        (X + 1e-4, RangeError, "expected"),
        (torch.full_like(X, 1.7e308, dtype=torch.float64), RangeError, "divide by 255"),  # finite, but not their sum
        (torch.where(X > 0.99, torch.nan, X), NonFiniteError, "contains NaN or infinity"),
        *((with_value(2, wrong), NonFiniteError, "image 2 contains NaN or infinity") for wrong in (NAN, INF, -INF)),
        (with_value(1, INF) + with_value(1, -INF), NonFiniteError, "image 1 contains NaN or infinity"),
        (X[0], ShapeError, r"shape \(3, 12, 12\); expected \(B, C, H, W\)"),
        (
            (X * 255).to(torch.uint8),
            DTypeError,
            r"torch.uint8; expected floating point in \[0, 1\], e.g. x.float\(\)",
        ),
        (X.numpy(), DTypeError, "type ndarray; expected a torch tensor"),
        (X.to("meta"), DTypeError, "images in a meta tensor, which holds no values; expected a dense tensor, with"),
        (X.to_sparse(), DTypeError, "images in a tensor of layout torch.sparse_coo; expected a dense tensor"),
    ],
)
def test_unusable_images_are_refused(x: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ATTACK(MODEL, x, Y)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (Y[:2], ShapeError, r"shape \(2,\) for 3 images"),
        (torch.eye(5)[Y], ShapeError, r"shape \(3, 5\)"),
        (Y.float(), DTypeError, "torch.float32; expected integers"),
        (Y.tolist(), DTypeError, "type list; expected a tensor of integers"),
        (torch.tensor([0, 5, 0]), LabelError, "label 5 of image 1; the model has classes 0 to 4"),
        (torch.tensor([0, 0, -1]), LabelError, "label -1 of image 2"),
    ],
)
def test_unusable_labels_are_refused(y: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ATTACK(MODEL, X, y)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (7, LabelError, "target 7 of image 0; the model has classes 0 to 4"),
        (torch.tensor([1, 2]), ShapeError, r"shape \(2,\) for 3 images"),
        (Y, LabelError, "is its true label"),
        (1.7, DTypeError, "target of type torch.float32; expected integers"),
        (torch.tensor([1.0, 2.0, 3.0]), DTypeError, "target of type torch.float32; expected integers"),
        (True, DTypeError, "target of type torch.bool; expected integers"),
        ("cat", DTypeError, "target='cat'; expected an integer"),
    ],
)
def test_unusable_targets_are_refused(target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ATTACK(MODEL, X, Y, goal=sp.Targeted(target))


def test_an_unknown_value_of_accept_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="accept='foo'; use 'target' or 'any'"):
        sp.Targeted(1, accept="foo")  # type: ignore[arg-type]


def test_images_off_the_8_bit_grid_are_refused_when_quantized() -> None:
    with pytest.raises(RangeError, match="not on the grid n/255"):
        sp.SparsePGD(sp.Budget(k=1), steps=2, quantize=True)(MODEL, X * 0.999, Y)


CASCADE = sp.SparseAutoAttack(sp.Budget(k=3), steps=2, queries=2)


@pytest.mark.parametrize("attack", [ATTACK, CASCADE], ids=["attack", "cascade"])
@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.arange(2), ShapeError, r"index of shape \(2,\) for 3 images"),
        (torch.tensor([0.0, 0.5, 1.0]), DTypeError, "index of type torch.float32; expected a tensor of integers"),
        ([0, 1, 2], DTypeError, r"index of type list; expected a tensor of integers, e.g. torch.arange\(3\)"),
    ],
)
def test_an_unusable_index_is_refused(attack: Any, index: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attack(MODEL, X, Y, index=index)


@pytest.mark.parametrize("attack", [ATTACK, CASCADE], ids=["attack", "cascade"])
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (None, {}, "the model is NoneType; expected a torch.nn.Module or a function"),
        ("small-plain", {}, "the model is str; expected"),
        (SmallConvNet, {}, "the model is the class SmallConvNet; expected"),
        (MODEL, {"logits": "out"}, "logits='out'; expected a function"),
    ],
)
def test_what_is_not_a_model_is_refused(attack: Any, model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        attack(model, X, Y, **options)


@pytest.mark.parametrize("attack", [ATTACK, sp.SparseRS(sp.Budget(k=3), queries=4)], ids=["white", "black"])
@pytest.mark.parametrize(("kind", "name"), [(torch.bool, "torch.bool"), (torch.complex64, "torch.complex64")])
def test_outputs_that_are_no_real_numbers_are_refused(attack: Any, kind: torch.dtype, name: str) -> None:
    with pytest.raises(ModelError, match=f"the model returned {name}; expected logits, real numbers"):
        attack(lambda x: MODEL(x).to(kind), X, Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": "targeted"}, "goal='targeted'; expected a Goal, e.g."),
        ({"goal": sp.Untargeted}, r"goal=<class .*; expected a Goal, e.g. Untargeted\(\)"),
        ({"engine": "fp32"}, r"engine='fp32'; expected an Engine, e.g. Engine\('fp32'\)"),
    ],
)
def test_goals_and_engines_of_other_types_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ATTACK(MODEL, X, Y, **options)


@pytest.mark.parametrize("kind", sorted({entry.kind for entry in registry.ENTRIES.values()}, key=repr))
def test_a_number_is_refused_as_a_budget(kind: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"budget=20; expected a Budget, e.g. Budget\(k=20\)"):
        kind(20)
