"""The verifier rejects every kind of violation and counts the actual changes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import VerificationWarning
from sparsepgd.problem import verify as module
from sparsepgd.problem.oracle import Oracle
from sparsepgd.problem.verify import Verdict, verify
from support.models import Linear, images

MODEL = Linear(torch.ones(3, 6, 6), -60.0)


def judge(budget: sp.Budget, x: Tensor, x_adv: Tensor, quantize: bool = False) -> Verdict:
    y = torch.zeros(len(x), dtype=torch.int64)
    return verify(Oracle(MODEL, sp.Untargeted()), budget, x, x_adv, y, y, quantize=quantize)


def changed(x: Tensor, *pixels: tuple[int, int], value: float = 1.0) -> Tensor:
    x_adv = x.clone()
    for row, column in pixels:
        x_adv[:, :, row, column] = value
    return x_adv


def test_counts_pixels_whose_channels_cancel() -> None:
    x = torch.full((1, 3, 6, 6), 0.5)
    x_adv = x.clone()
    x_adv[0, 0, 2, 2] += 0.25
    x_adv[0, 1, 2, 2] -= 0.25
    assert judge(sp.Budget(k=1), x, x_adv).l0.tolist() == [1]
    assert judge(sp.Budget(k=2, pattern=sp.Features()), x, x_adv).groups.tolist() == [2]


def test_one_changed_bit_counts() -> None:
    x = images(1, size=6)
    x_adv = x.clone()
    x_adv[0, 0, 0, 0] = torch.nextafter(x[0, 0, 0, 0], torch.tensor(0.5))
    verdict = judge(sp.Budget(k=1), x, x_adv)
    assert verdict.l0.tolist() == [1]


@pytest.mark.parametrize(
    ("budget", "pixels", "fine"),
    [
        (sp.Budget(k=2), [(0, 0), (3, 3)], True),
        (sp.Budget(k=1), [(0, 0), (3, 3)], False),
        (sp.Budget(k=1, pattern=sp.Rows()), [(2, 0), (2, 5)], True),
        (sp.Budget(k=1, pattern=sp.Rows()), [(2, 0), (3, 0)], False),
        (sp.Budget(k=1, pattern=sp.Columns()), [(0, 4), (5, 4)], True),
        (sp.Budget(k=1, pattern=sp.Columns()), [(0, 4), (0, 5)], False),
        (sp.Budget(k=1, pattern=sp.Patches(3)), [(1, 1), (3, 3)], True),
        (sp.Budget(k=1, pattern=sp.Patches(3)), [(1, 1), (3, 4)], False),
        (sp.Budget(k=2, pattern=sp.Patches(3)), [(1, 1), (3, 4)], True),
        (sp.Budget(k=1, pattern=sp.Shape([[1, 0], [1, 1]])), [(1, 1), (2, 2)], True),
        (sp.Budget(k=1, pattern=sp.Shape([[1, 0], [1, 1]])), [(1, 2), (2, 1)], False),
        (sp.Budget(k=9, pattern=sp.Shape([[1, 0], [1, 1]])), [(0, 5)], False),  # no group reaches that corner
    ],
)
def test_group_budgets(budget: sp.Budget, pixels: list[tuple[int, int]], fine: bool) -> None:
    x = torch.zeros(1, 3, 6, 6)
    assert judge(budget, x, changed(x, *pixels)).within.tolist() == [fine]


@pytest.mark.parametrize("value", [1.0000001, -1e-8, torch.nan, torch.inf])
def test_values_out_of_range_are_rejected(value: float) -> None:
    x = images(2, size=6)
    x_adv = x.clone()
    x_adv[1, 0, 0, 0] = value
    assert judge(sp.Budget(k=1), x, x_adv).within.tolist() == [True, False]


def test_eps_is_checked_to_the_last_bit() -> None:
    x = torch.full((1, 3, 6, 6), 0.5, dtype=torch.float64)
    budget = sp.Budget(k=1, eps=0.25)
    assert judge(budget, x, changed(x, (0, 0), value=0.75)).within.tolist() == [True]
    above = torch.nextafter(torch.tensor(0.75, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    assert judge(budget, x, changed(x, (0, 0), value=float(above))).within.tolist() == [False]


def test_pixels_outside_the_allowed_mask_are_rejected() -> None:
    x = torch.zeros(1, 3, 6, 6)
    allowed = torch.zeros(6, 6, dtype=torch.bool)
    allowed[0] = True
    budget = sp.Budget(k=1, allowed=allowed)
    assert judge(budget, x, changed(x, (0, 3))).within.tolist() == [True]
    assert judge(budget, x, changed(x, (1, 3))).within.tolist() == [False]


def test_off_grid_values_are_rejected_when_quantized() -> None:
    x = torch.zeros(1, 3, 6, 6)
    assert judge(sp.Budget(k=1), x, changed(x, (0, 0), value=0.5), quantize=True).within.tolist() == [False]
    assert judge(sp.Budget(k=1), x, changed(x, (0, 0), value=128 / 255), quantize=True).within.tolist() == [True]


def test_success_needs_both_the_budget_and_the_model() -> None:
    x = torch.full((2, 3, 6, 6), 0.55)  # score 59.4 - 60 < 0
    one, two = changed(x[:1], (0, 0)), changed(x[:1], (0, 0), (0, 1))
    verdict = judge(sp.Budget(k=1), x, torch.cat([one, two]))
    assert MODEL(torch.cat([one, two])).argmax(1).tolist() == [1, 1]
    assert verdict.reached.tolist() == [True, False]
    assert judge(sp.Budget(k=1), x[:1], x[:1]).reached.tolist() == [False]


def test_a_cheating_attack_is_reported_as_not_fooling() -> None:
    class Cheat(sp.SparsePGD):
        def propose(self, threat, images, state):  # type: ignore[no-untyped-def]
            return torch.ones_like(images.x)

    x = torch.full((2, 3, 6, 6), 0.5)
    with pytest.warns(VerificationWarning, match="Cheat left the budget on image 0"):
        result = Cheat(sp.Budget(k=2), steps=3)(MODEL, x, torch.zeros(2, dtype=torch.int64))
    assert not bool(result.fooled.any())
    assert torch.equal(result.x_adv, x)
    assert result.l0.tolist() == [0, 0]
    assert result.prediction.tolist() == [0, 0]


def test_an_image_with_a_denied_success_is_attacked_further_and_not_reported() -> None:
    """A model that is wrong only in the search, as one in reduced precision may be."""

    asked = []

    class Fickle(Linear):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(torch.is_grad_enabled())
            logits = super().forward(x)
            return logits.flip(1) if torch.is_grad_enabled() else logits

    x = torch.full((1, 3, 6, 6), 0.1)
    result = sp.SparsePGD(sp.Budget(k=1), steps=5)(Fickle(torch.ones(3, 6, 6), -60.0), x, torch.tensor([0]))
    assert not bool(result.fooled.any())
    assert result.forwards.tolist() == [6]
    assert sum(asked) == 6


def test_the_verifier_shares_no_code_with_the_attacks() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert not any(name.startswith("sparsepgd.search") for name in imported)
    norms = Path(module.__file__).parent.parent / "threat" / "norms.py"
    assert "conv" not in norms.read_text().replace("convex", "").replace("convolution", "")
