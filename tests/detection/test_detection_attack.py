"""Attacks led by a loss of each image: the best point within the budget, padding left alone, nothing stops early."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.baselines import PGD0, SAIF, SparseFool
from sparsepgd.detection import OutputLoss, TorchvisionDetector, attack_detector
from sparsepgd.detection.attack import LossOracle
from sparsepgd.errors import (
    AllowedError,
    BudgetError,
    InputError,
    NoGradientError,
    NonFiniteLogitsError,
    ShapeError,
    UnsupportedError,
    VerificationWarning,
)
from sparsepgd.search.attack import Attack, SearchResult, Task
from support.models import SmallConvNet, images
from support.small_detectors import KINDS, SIZE, made, targets

WEIGHT = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(0))
SCALE = [1.0, -1.0, 2.0]  # the targets: each image is pulled its own way


def pull(output: Tensor, there: Sequence[float]) -> Tensor:
    return (output * WEIGHT).flatten(1).sum(1) * torch.tensor(there)


LINEAR = OutputLoss(pull)


def identity(x: Tensor) -> Tensor:
    return x


def best_gain(x: Tensor, k: int, content: Tensor) -> Tensor:
    """(B,), of k pixels within the content, each value to the end that its weight and target ask for."""
    slope = WEIGHT * torch.tensor(SCALE).view(-1, 1, 1, 1)
    gain = torch.where(slope > 0, (1 - x) * slope, -x * slope).sum(1)
    return torch.where(content, gain, 0).flatten(1).topk(k).values.sum(1)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("attack", "least"), [(sp.SparsePGD(sp.Budget(5), 100), 0.98), (sp.SparseAnneal(sp.Budget(5), 100), 0.8)], ids=repr
)
def test_a_linear_loss_grows_nearly_as_much_as_it_can_within_the_content(
    attack: Attack, least: float, padded: bool
) -> None:
    x = images(3)
    content = torch.ones(3, 12, 12, dtype=torch.bool)
    if padded:
        content[0, :4], content[1, :, 9:], content[2, 8:] = False, False, False
    result = attack_detector(attack, identity, x, SCALE, LINEAR, content=content)
    share = (result.loss - result.clean_loss) / best_gain(x, 5, content)
    assert bool((share > least).all())
    assert bool((share < 1 + 1e-5).all())
    assert result.l0.tolist() == [5, 5, 5]
    assert not bool(((result.x_adv != x).any(1) & ~content).any())


ATTACKS: list[Attack] = [
    sp.SparsePGD(sp.Budget(20), 6),
    sp.SparsePGD(sp.Budget(3, sp.Patches(4)), 6, "projected"),
    sp.SparseRS(sp.Budget(20), 12),
    sp.SparseRS(sp.Budget(3, sp.Patches(4)), 12),
    sp.SparseAnneal(sp.Budget(20), 6),
    sp.SparseAnneal(sp.Budget(3, sp.Patches(4)), 6),
    SAIF(sp.Budget(20), 6, targets=0),
    SAIF(sp.Budget(20), 6, form="binary", targets=0),
    PGD0(sp.Budget(20), 6, restarts=1, targets=0),
]


@pytest.mark.parametrize(
    ("attack", "kind"), [(one, kind) for place, one in enumerate(ATTACKS) for kind in list(KINDS)[place % 2 :: 2]]
)
def test_detectors_are_attacked_exactly_within_the_budget(attack: Attack, kind: str) -> None:
    model, x = made(kind).train(), images(2, size=SIZE)
    content = torch.ones(2, SIZE, SIZE, dtype=torch.bool)
    content[:, :16] = content[:, 48:] = False
    result = attack_detector(attack, model, x, targets(2), TorchvisionDetector(), content=content)
    changed = (result.x_adv != x).any(1)
    assert not bool((changed & ~content).any())
    assert bool((result.x_adv >= 0).all() and (result.x_adv <= 1).all())
    assert torch.equal(changed.flatten(1).sum(1), result.l0)
    assert int(result.groups.max()) <= attack.budget.k
    assert bool((result.loss >= result.clean_loss - 1e-4).all())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    asked = result.forwards if isinstance(attack, SAIF) else result.forwards - attack.evaluations
    assert bool((asked >= 0).all())  # all steps are taken


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_attack_makes_the_loss_of_a_detector_grow(kind: str) -> None:
    attack = sp.SparsePGD(sp.Budget(400), 10)
    result = attack_detector(attack, made(kind), images(2, size=SIZE), targets(2), TorchvisionDetector())
    assert bool((result.loss > 1.02 * result.clean_loss).all())


def test_the_result_depends_neither_on_the_batch_size_nor_on_the_others() -> None:
    model = SmallConvNet(dtype=torch.float64)
    x = images(3, dtype=torch.float64)
    objective = OutputLoss(
        lambda output, there: nn.functional.cross_entropy(output, torch.stack(there), reduction="none")
    )
    there = list(torch.tensor([0, 1, 2]))
    for attack in (sp.SparsePGD(sp.Budget(4), 8), sp.SparseRS(sp.Budget(4), 8), SAIF(sp.Budget(4), 8, targets=0)):
        together = attack_detector(attack, model, x, there, objective, batch_size=3)
        one_by_one = attack_detector(attack, model, x, there, objective, batch_size=1)
        assert torch.equal(together.x_adv, one_by_one.x_adv)
        first = attack_detector(attack, model, x[:1], there[:1], objective)
        assert torch.equal(first.x_adv, together.x_adv[:1])


def test_the_best_point_is_kept_and_it_may_be_the_clean_one() -> None:
    """No change is better than none for a loss that any change makes smaller."""
    x = images(2)
    objective = OutputLoss(lambda output, there: -(output - torch.stack(list(there))).abs().flatten(1).sum(1))
    result = attack_detector(sp.SparsePGD(sp.Budget(3), 5), identity, x, list(x), objective)
    assert torch.equal(result.x_adv, x)
    assert (result.l0.tolist(), result.groups.tolist()) == ([0, 0], [0, 0])


def test_padding_and_the_budgets_own_mask_hold_together() -> None:
    x = images(3)
    allowed, content = torch.zeros(12, 12, dtype=torch.bool), torch.zeros(3, 12, 12, dtype=torch.bool)
    allowed[:6], content[:, 4:] = True, True
    attack = sp.SparsePGD(sp.Budget(4, allowed=allowed), 5)
    result = attack_detector(attack, identity, x, SCALE, LINEAR, content=content)
    rows = (result.x_adv != x).any(1).nonzero()[:, 1]
    assert rows.unique().tolist() == [4, 5]
    only = torch.zeros(3, 12, 12, dtype=torch.bool)
    only[:, 0, :3] = True
    with pytest.raises(BudgetError, match="only 3 touch the allowed mask"):
        attack_detector(attack, identity, x, SCALE, LINEAR, content=only)
    with pytest.raises(AllowedError, match="is empty"):
        attack_detector(attack, identity, x, SCALE, LINEAR, content=content & ~allowed)


def test_eight_bit_images_stay_on_their_grid() -> None:
    x = images(3)
    result = attack_detector(sp.SparsePGD(sp.Budget(4), 5, quantize=True), identity, x, SCALE, LINEAR)
    assert torch.equal((result.x_adv * 255).round() / 255, result.x_adv)
    assert result.l0.tolist() == [4, 4, 4]


@dataclasses.dataclass(frozen=True, eq=False)
class Cheat(sp.SparsePGD):
    """Changes all pixels."""

    def search(self, task: Task) -> SearchResult:
        zero = torch.zeros_like(task.waiting.y)
        return SearchResult(1 - task.waiting.x, zero.float(), zero.bool(), zero, zero, zero)


def test_an_attack_that_leaves_the_budget_is_found_out() -> None:
    x = images(3)
    with pytest.warns(VerificationWarning, match="left the budget on image 0"):
        result = attack_detector(Cheat(sp.Budget(4)), identity, x, SCALE, LINEAR)
    assert torch.equal(result.x_adv, x)
    assert torch.equal(result.loss, result.clean_loss)
    assert result.l0.tolist() == [0, 0, 0]


def test_attacks_that_need_classes_say_so() -> None:
    x = images(3)
    for attack in (SAIF(sp.Budget(4), 3), PGD0(sp.Budget(4), 3, restarts=2, targets=0), SparseFool(sp.Budget(4), 3)):
        with pytest.raises(UnsupportedError, match="a detector has none; use SparsePGD"):
            attack_detector(attack, identity, x, SCALE, LINEAR)
    with pytest.raises(UnsupportedError, match="loss='margin' needs logits"):
        attack_detector(sp.SparsePGD(sp.Budget(4), loss="margin"), identity, x, SCALE, LINEAR)
    with pytest.raises(UnsupportedError, match="loss='ce' needs logits"):
        attack_detector(sp.SparseAnneal(sp.Budget(4), loss="ce"), identity, x, SCALE, LINEAR)
    cascade: Any = sp.SparseAutoAttack(sp.Budget(4))
    with pytest.raises(UnsupportedError, match="SparseAutoAttack needs successes"):
        attack_detector(cascade, identity, x, SCALE, LINEAR)


def test_wrong_use_is_named() -> None:
    x, attack = images(3), sp.SparsePGD(sp.Budget(4), 3)
    with pytest.raises(InputError, match="1 target for 3 images"):
        attack_detector(attack, identity, x, SCALE[:1], LINEAR)
    with pytest.raises(InputError, match="no images"):
        attack_detector(attack, identity, x[:0], [], LINEAR)
    with pytest.raises(UnsupportedError, match="batch_size=0; expected a number larger than 0"):
        attack_detector(attack, identity, x, SCALE, LINEAR, batch_size=0)
    with pytest.raises(ShapeError, match=r"content is torch.bool of shape \(12, 12\)"):
        attack_detector(attack, identity, x, SCALE, LINEAR, content=torch.ones(12, 12, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"the objective gave \(\) for 3 images"):
        attack_detector(attack, identity, x, SCALE, OutputLoss(lambda output, there: output.sum()))
    with pytest.raises(NonFiniteLogitsError, match="nan on clean image 0"):
        attack_detector(attack, identity, x, SCALE, OutputLoss(lambda output, there: pull(output, there) * torch.nan))
    with pytest.raises(NoGradientError, match="use SparseRS"):
        attack_detector(attack, identity, x, SCALE, OutputLoss(lambda output, there: pull(output.detach(), there)))


def test_a_loss_that_is_no_number_on_the_way_is_no_progress() -> None:
    def fragile(output: Tensor, there: Sequence[float]) -> Tensor:
        loss = pull(output, there)
        return torch.where(output.flatten(1).amax(1) > 0.999, loss * torch.nan, loss)

    x = images(3) * 0.9
    result = attack_detector(sp.SparsePGD(sp.Budget(4), 10), identity, x, SCALE, OutputLoss(fragile))
    assert bool(result.loss.isfinite().all())
    assert bool((result.loss >= result.clean_loss).all())


def test_gradients_that_are_not_finite_are_zero() -> None:
    """The root of 0 has the slope inf, and times 0 it has none at all."""
    loss = OutputLoss(lambda output, there: output.sqrt().flatten(1).sum(1) + (0 * output.sqrt()).flatten(1).sum(1))
    x = torch.full((2, 3, 12, 12), 0.25)
    x[0, 0, 0, 0] = 0
    oracle = LossOracle(nn.Identity(), loss, [None, None])
    place = torch.arange(2)
    gradient = oracle.evaluate(x, place, place, True).gradient
    assert gradient is not None
    assert gradient[0, 0, 0, 0] == 0
    assert (gradient.flatten()[1:] == 1).all()
