"""The adversary of a training run: its budget, its turns, its goal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.problem.goals import Divergence
from sparsepgd.threat import Patches
from sparsepgd.training.adversaries import DensePGD, SparseAdversary, _into_l1, adversary, sparse_noise
from sparsepgd.training.data import Batch
from sparsepgd.training.settings import Settings, make_settings
from support.models import Linear, NoLook, SmallConvNet, images, labelled

SHAPE = (3, 12, 12)


def batch(model: SmallConvNet, count: int = 16) -> Batch:
    x = images(count)
    return Batch(torch.arange(count), x, labelled(model, x))


def sparse(wanted: Settings) -> SparseAdversary:
    made = adversary(wanted, SHAPE)
    assert isinstance(made, SparseAdversary)
    return made


@pytest.mark.parametrize("method", ["sat", "fast-ls"])
@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=3),
        sp.Budget(k=1, pattern=sp.Rows()),
        sp.Budget(k=1, pattern=sp.Patches(3)),
        sp.Budget(k=1, pattern=sp.Shape.heart(5)),
    ],
    ids=["pixels", "rows", "patches", "shape"],
)
def test_the_training_adversary_has_several_times_the_groups_and_keeps_to_them(method: str, budget: sp.Budget) -> None:
    model = SmallConvNet()
    wanted = make_settings(method, budget, {"multi_eps": 2, "steps": 4 if method == "sat" else 1})
    given = batch(model)
    x_adv = adversary(wanted, SHAPE)(model, given, 0)
    changed = (x_adv != given.x).any(1)
    allowed = budget.resolve(SHAPE).kernel.sum() * 2 * budget.k
    assert 0 < changed.flatten(1).sum(1).max() <= allowed
    assert torch.equal(x_adv[~changed[:, None].expand_as(x_adv)], given.x[~changed[:, None].expand_as(x_adv)])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("method", "pattern"), [("pgd0-a", sp.Pixels()), ("loap-at", sp.Patches(3))])
def test_the_rivals_train_with_one_attempt_within_their_budget(method: str, pattern: sp.Pattern) -> None:
    model = SmallConvNet()
    given = batch(model)
    wanted = make_settings(method, sp.Budget(k=1, pattern=pattern), {"multi_eps": 2, "steps": 5})
    x_adv = adversary(wanted, SHAPE)(model, given, 0)
    changed = (x_adv != given.x).any(1).flatten(1).sum(1)
    assert 0 < changed.max() <= 2 * pattern.kernel(12, 12).numel()
    model.eval()
    clean, attacked = (torch.nn.functional.cross_entropy(model(x), given.y) for x in (given.x, x_adv))
    assert attacked > clean + 0.05


def test_more_groups_than_there_are_become_all_of_them() -> None:
    rows = make_settings("sat", sp.Budget(k=5, pattern=sp.Rows()), {"multi_eps": 6})
    assert sparse(rows).attack(0).budget.k == 12
    sizes = make_settings("sat", sp.Budget(k=1, pattern=Patches(3)), {"multi_eps": 6, "multi_size": (3, 11)})
    assert {(b.pattern, b.k) for b in sparse(sizes).budgets} == {(Patches(3), 6), (Patches(11), 4)}


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Patches(2)], ids=repr)
def test_more_groups_than_touch_the_allowed_pixels_become_all_of_those(pattern: sp.Pattern) -> None:
    allowed = torch.zeros(12, 12, dtype=torch.bool)
    allowed[0, :8] = True
    model = SmallConvNet()
    wanted = make_settings("sat", sp.Budget(k=3, pattern=pattern, allowed=allowed), {"multi_eps": 6, "steps": 2})
    made, given = sparse(wanted), batch(model)
    assert made.attack(0).budget.k == 8
    changed = (made(model, given, 0) != given.x).any(1)
    assert bool(changed.any())
    assert not bool((changed & ~allowed).any())


@pytest.mark.parametrize(
    ("pattern", "pace"), [(sp.Pixels(), 0.25), (sp.Features(), 0.25), (sp.Rows(), 0.05), (Patches(3), 0.05)], ids=repr
)
def test_structured_patterns_are_trained_against_at_a_slower_pace(pattern: sp.Pattern, pace: float) -> None:
    attack = sparse(make_settings("sat", sp.Budget(k=1, pattern=pattern), {})).attack(0)
    assert (attack.alpha, attack.beta) == (pace, pace)
    told = sparse(make_settings("sat", sp.Budget(k=1, pattern=pattern), {"alpha": 0.5, "beta": 0.75})).attack(0)
    assert (told.alpha, told.beta) == (0.5, 0.75)


def test_the_backward_function_is_drawn_or_takes_turns() -> None:
    turns = sparse(make_settings("sat", sp.Budget(k=2), {"gradient": "alternating", "epochs": 17}))
    found = [{turns.attack(iteration, epoch / 16).gradient for iteration in range(3)} for epoch in range(17)]
    expected = [{("unprojected", "projected")[epoch // 5 % 2]} for epoch in range(17)]
    assert found == expected, "as in the paper: 5 epochs"
    assert sparse(make_settings("sat", sp.Budget(k=2), {"gradient": "alternating", "epochs": 1})).attack(0, 0.0)
    assert sparse(make_settings("sat", sp.Budget(k=2), {})).attack(0).gradient == "random"  # a coin for each call


def test_patches_of_several_sizes_are_drawn_about_equally_often() -> None:
    wanted = make_settings("sat", sp.Budget(k=1, pattern=Patches(5)), {"multi_size": (3, 5, 7)})
    drawn = Counter(sparse(wanted).attack(i).budget.pattern for i in range(300))
    assert set(drawn) == {Patches(3), Patches(5), Patches(7)}
    assert min(drawn.values()) > 70
    made = sparse(wanted)
    assert len({id(made.attack(i).budget) for i in range(30)}) == 3  # resolved once, not in every iteration


def test_mode_f_moves_the_answer_also_where_cross_entropy_sees_nothing_to_gain() -> None:
    """Every change makes this model surer of the truth: the cross-entropy is largest at the clean image, the
    divergence where the two strongest pixels are."""
    weight = -torch.arange(1.0, 10.0).view(1, 3, 3) / 10
    model, x = Linear(weight, -0.2), torch.zeros(4, 1, 3, 3)
    given = Batch(torch.arange(4), x, torch.zeros(4, dtype=torch.int64))
    wanted = make_settings("strades", sp.Budget(k=2), {"multi_eps": 1, "early_stop": False, "steps": 60})
    assert torch.equal(adversary(wanted, (1, 3, 3))(model, given, 0), x)
    found = adversary(replace(wanted, mode="F"), (1, 3, 3))(model, given, 0)
    best = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 1, 1]])
    assert torch.equal(found, best.expand_as(x))


def test_divergence_is_the_kullback_leibler_divergence_from_the_clean_answer() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.2, 0.3, 0.5]])
    loss = Divergence(p.log()).loss(q.log(), torch.tensor([0]), "ce")
    torch.testing.assert_close(loss, (p * (p / q).log()).sum(1))
    with pytest.raises(sp.errors.ShapeError, match=r"clean logits of shape \(1, 3\); expected \(2, 3\)"):
        Divergence(p.log()).labels(torch.tensor([0, 1]), 3)


@pytest.mark.parametrize("method", ["sat", "fast-ls", "linf", "l2", "l1"])
def test_the_adversary_never_looks_at_the_device(method: str) -> None:
    model = SmallConvNet()
    given = batch(model, 4)
    wanted = make_settings(
        method, sp.Budget(k=2), {"steps": 1 if method == "fast-ls" else 3, "gradient": "alternating"}
    )
    attack = adversary(wanted, SHAPE)
    with NoLook():  # which refuses whatever waits for the device
        x_adv = attack(model, given, 0)
    assert x_adv.shape == given.x.shape
    assert not torch.equal(x_adv, given.x)


@pytest.mark.parametrize(("norm", "radius", "order"), [("linf", 0.05, torch.inf), ("l2", 0.3, 2), ("l1", 0.4, 1)])
def test_finds_the_best_point_of_a_linear_model_within_the_ball(norm: Any, radius: float, order: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 6, 6, generator=generator)
    x = 0.4 + 0.2 * torch.rand(5, 3, 6, 6, generator=generator)  # far from 0 and 1: the ball alone binds
    model = Linear(weight, 0.0).train()
    attack = DensePGD(norm, radius, 60)
    x_adv = attack.perturb(model, x, torch.zeros(5, dtype=torch.int64), seed=0, index=torch.arange(5))
    delta = (x_adv - x).flatten(1)
    assert bool((delta.norm(order, dim=1) <= radius * (1 + 1e-4)).all())
    size = weight.flatten().abs()
    best = radius * {torch.inf: size.sum(), 2: size.norm(), 1: size.topk(5).values.mean()}[order]  # l1: on 5 % of them
    gain = (delta * weight.flatten()).sum(1)
    assert bool((gain > 0.98 * best).all())
    assert model.training
    assert model.weight.requires_grad


def test_images_stay_in_the_range() -> None:
    x = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    model, y = Linear(torch.ones(3, 6, 6), 0.0), torch.zeros(4, dtype=torch.int64)
    for norm, radius in (("linf", 0.9), ("l2", 20.0), ("l1", 200.0)):
        x_adv = DensePGD(norm, radius, 5).perturb(model, x, y, seed=0, index=torch.arange(4))  # type: ignore[arg-type]
        assert x_adv.min() >= 0
        assert x_adv.max() <= 1


def test_the_projection_on_the_l1_ball_is_the_nearest_point() -> None:
    v = torch.tensor([[3.0, -1.0, 0.5], [0.2, 0.1, 0.0]])
    expected = torch.tensor([[2.0, 0.0, 0.0], [0.2, 0.1, 0.0]])
    torch.testing.assert_close(_into_l1(v, 2.0), expected)
    random = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)) * 3
    inside = _into_l1(random, 5.0)
    assert inside.abs().sum().item() == pytest.approx(5.0, rel=1e-5)
    rest = random - inside  # of the nearest point no corner of the ball, 5 or -5 in one entry, lies further that way
    assert 5.0 * rest.abs().max().item() == pytest.approx((rest * inside).sum().item(), rel=1e-4)


@pytest.mark.parametrize("most", [1, 5, 500])
def test_every_number_of_pixels_up_to_the_most_is_drawn(most: int) -> None:
    x = images(300, size=6)
    noisy = sparse_noise(x, sp.Budget(k=1).resolve((3, 6, 6)), most, torch.arange(300), 0)
    counts = (noisy != x).any(1).flatten(1).sum(1)
    assert set(counts.tolist()) == set(range(min(most, 35) + 1))
    assert noisy.min() >= 0
    assert noisy.max() <= 1


def test_noise_follows_the_pattern_the_size_and_the_allowed_pixels() -> None:
    x, rows = images(50, size=8), torch.arange(50)
    row = sparse_noise(x, sp.Budget(k=1, pattern=sp.Rows()).resolve((3, 8, 8)), 2, rows, 0)
    changed = (row != x).any(1)
    assert torch.equal(changed.all(2), changed.any(2))  # whole rows
    assert changed.any(2).sum(1).max() == 2
    small = sparse_noise(x, sp.Budget(k=1, eps=0.1).resolve((3, 8, 8)), 9, rows, 0)
    assert 0.05 < (small - x).abs().max() <= 0.1 + 1e-6
    half = torch.zeros(8, 8, dtype=torch.bool)
    half[:, :4] = True
    allowed = sparse_noise(x, sp.Budget(k=1, allowed=half).resolve((3, 8, 8)), 9, rows, 0)
    assert torch.equal(allowed[..., 4:], x[..., 4:])
    assert not torch.equal(allowed, x)


def test_the_noise_of_an_image_is_its_own() -> None:
    x, threat = images(6, size=6), sp.Budget(k=1).resolve((3, 6, 6))
    whole = sparse_noise(x, threat, 8, torch.arange(6), 3)
    assert torch.equal(whole[4:], sparse_noise(x[4:], threat, 8, torch.arange(4, 6), 3))
