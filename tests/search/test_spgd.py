"""Sparse-PGD: finds known optima, keeps the algorithm's rules, and draws the same whatever the batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.oracle import Oracle
from sparsepgd.search.attack import queue
from sparsepgd.search.loop import Images, run_whole_batch
from sparsepgd.search.noise import Noise
from sparsepgd.search.spgd import default_pace
from support import linear
from support.models import Linear, SmallConvNet, images, labelled
from support.updates import GRADIENT, one_update


@pytest.mark.parametrize(("gradient", "steps"), [("unprojected", 2000), ("projected", 3000)])
@pytest.mark.parametrize(
    "budget",
    [
        sp.Budget(k=1),
        sp.Budget(k=4),
        sp.Budget(k=3, pattern=sp.Features()),
        sp.Budget(k=1, pattern=sp.Rows()),
        sp.Budget(k=1, pattern=sp.Columns()),
        sp.Budget(k=1, pattern=sp.Patches(3)),
        sp.Budget(k=1, pattern=sp.Shape([[0, 1, 0], [1, 1, 1], [0, 1, 0]])),
        sp.Budget(k=3, eps=0.1),
        sp.Budget(k=1, pattern=sp.Patches(3), eps=0.1),
    ],
    ids=repr,
)
def test_finds_the_best_groups_of_a_linear_model(budget: sp.Budget, gradient: Any, steps: int) -> None:
    weight, x, best = linear.problem(budget)
    pace = {"alpha": 0.1, "beta": 0.1, "tolerance": 8} if budget.pattern.structured else {}
    attack = sp.SparsePGD(budget, steps, gradient, loss="margin", early_stop=False, **pace)
    model = Linear(weight, -1000.0)  # far from the boundary: nothing stops the search
    result = attack(model, x, torch.zeros(4, dtype=torch.int64))
    reached = ((result.x_adv - x) * weight).flatten(1).sum(1)
    assert bool((reached <= best * (1 + 1e-5) + 1e-5).all())
    torch.testing.assert_close(reached, best, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_fools_a_linear_model_if_and_only_if_the_budget_suffices(gradient: Any) -> None:
    budget = sp.Budget(k=3)
    weight, x, best = linear.problem(budget)
    score = (x * weight).flatten(1).sum(1)
    for i in range(len(x)):
        for slack, expected in ((1e-2, True), (-1e-2, False)):
            model = Linear(weight, float(-score[i] - best[i] + slack))
            result = sp.SparsePGD(budget, steps=1500, gradient=gradient)(model, x[i : i + 1], torch.tensor([0]))
            assert bool(result.fooled) is expected


@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_a_kernel_of_one_cell_is_the_unstructured_attack(gradient: Any) -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    shared = {"steps": 30, "gradient": gradient, "alpha": 0.25, "beta": 0.25, "tolerance": 3}
    pixels = sp.SparsePGD(sp.Budget(k=3), **shared)(model, x, y, seed=5)
    for pattern in (sp.Patches(1), sp.Shape([[1]])):
        other = sp.SparsePGD(sp.Budget(k=3, pattern=pattern), **shared)(model, x, y, seed=5)
        assert torch.equal(other.x_adv, pixels.x_adv)
        assert torch.equal(other.steps, pixels.steps)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(7)), st.sampled_from([1, 2, 3, 7]), st.booleans())
def test_batch_size_and_order_do_not_change_the_result(order: list[int], batch_size: int, structured: bool) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(7, dtype=torch.float64)
    y = labelled(model, x)
    pattern = sp.Patches(2) if structured else sp.Pixels()
    attack = sp.SparsePGD(sp.Budget(k=2, pattern=pattern), steps=25)
    whole = attack(model, x, y, seed=3, batch_size=7)
    pick = torch.tensor(order)
    parts = attack(model, x[pick], y[pick], seed=3, batch_size=batch_size, index=pick)
    assert torch.equal(parts.fooled, whole.fooled[pick])
    assert torch.equal(parts.steps, whole.steps[pick])
    torch.testing.assert_close(parts.x_adv, whole.x_adv[pick], rtol=0, atol=1e-9)


def test_seeds_differ_and_repeat() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    attack = sp.SparsePGD(sp.Budget(k=2), steps=3, early_stop=False)
    first, again, other = (attack(model, x, y, seed=seed).x_adv for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_defaults_are_the_papers_and_depend_on_the_pattern() -> None:
    plain, patch = sp.SparsePGD(sp.Budget(k=20)), sp.SparsePGD(sp.Budget(k=1, pattern=sp.Patches(5)))
    assert (plain.steps, plain.alpha, plain.beta, plain.tolerance, plain.gamma) == (
        10_000,
        0.25,
        0.25,
        3,
        2e-8,
    )
    assert (patch.steps, patch.alpha, patch.beta, patch.tolerance) == (10_000, 0.0125, 0.0125, 50)
    assert plain.gradient == "unprojected"
    assert dataclasses.replace(plain, gradient="projected").gradient == "projected"


@pytest.mark.parametrize(
    ("steps", "pace", "tolerance", "projected"),
    [  # 0.15625 up to 100 steps, 0.15625 * (100 / steps) ** (1 / 3) up to 5,518, then 0.0125 * (10,000 / steps) ** 2
        (20_000, 0.0125, 50, 50),
        (10_000, 0.0125, 50, 50),
        (8_000, 0.01953125, 32, 50),
        (3_000, 0.0502859, 13, 32),
        (1_000, 0.0725248, 9, 22),
        (800, 0.078125, 8, 20),
        (300, 0.1083377, 6, 15),
        (100, 0.15625, 4, 10),
        (26, 0.15625, 4, 10),
        (25, 0.25, 3, 3),
        (1, 0.25, 3, 3),
    ],
)
def test_short_runs_on_structures_have_a_faster_pace_unless_told(
    steps: int, pace: float, tolerance: int, projected: int
) -> None:
    rows, shape = sp.Budget(k=1, pattern=sp.Rows()), sp.Budget(k=2, pattern=sp.Shape([[1, 1], [1, 0]]))
    pace = pytest.approx(pace, abs=1e-7)
    for budget in (rows, shape):
        found = sp.SparsePGD(budget, steps)
        assert (found.alpha, found.beta, found.tolerance) == (pace, pace, tolerance)
        found = sp.SparsePGD(budget, steps, "projected")
        assert (found.alpha, found.beta, found.tolerance) == (pace, pace, projected)
        assert sp.SparsePGD(budget, steps, "random").tolerance == tolerance
    told = sp.SparsePGD(rows, steps, alpha=0.5, tolerance=7)
    assert (told.alpha, told.beta, told.tolerance) == (0.5, pace, 7)
    for pattern in (sp.Pixels(), sp.Features()):
        pixels = sp.SparsePGD(sp.Budget(k=2, pattern=pattern), steps, "projected")
        assert (pixels.alpha, pixels.beta, pixels.tolerance) == (0.25, 0.25, 3)


def test_the_pace_at_10_000_steps_is_exactly_the_papers_and_at_25_that_for_pixels() -> None:
    for gradient in ("unprojected", "projected", "random"):
        assert default_pace(10_000, True, gradient) == (0.0125, 50)
        assert default_pace(25, True, gradient) == default_pace(25, False, gradient) == (0.25, 3)


@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_the_pace_never_rises_with_the_steps_and_the_tolerance_never_falls(gradient: str) -> None:
    paces, tolerances = zip(*(default_pace(steps, True, gradient) for steps in range(1, 10_100)), strict=True)
    assert list(paces) == sorted(paces, reverse=True)
    assert list(tolerances) == sorted(tolerances)


def test_a_replaced_length_keeps_the_pace_unless_told_to_choose_it_anew() -> None:
    short = sp.SparsePGD(sp.Budget(k=1, pattern=sp.Rows()), 800)
    kept = dataclasses.replace(short, steps=10_000)
    assert (kept.alpha, kept.beta, kept.tolerance) == (0.078125, 0.078125, 8)
    anew = dataclasses.replace(short, steps=10_000, alpha=None, beta=None, tolerance=None)
    assert (anew.alpha, anew.beta, anew.tolerance) == (0.0125, 0.0125, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient": "sparse"}, "gradient='sparse'; use one of 'unprojected', 'projected', 'random'"),
        ({"steps": 0}, "steps=0; expected a number larger than 0"),
        ({"steps": 2.5}, "steps=2.5; expected an integer"),
        ({"steps": "9"}, "steps='9'; expected an integer"),
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"alpha": "0.1"}, "alpha='0.1'; expected a number larger than 0"),
        ({"tolerance": 0}, "tolerance=0"),
        ({"beta_scale": "pixel"}, "beta_scale='pixel'; use one of 'image', 'grid'"),
        ({"loss": "hinge"}, "loss='hinge'; use one of 'ce', 'margin', 'dlr'"),
    ],
)
def test_unusable_hyper_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sp.SparsePGD(sp.Budget(k=1), **arguments)


# One update at a time, beside the algorithm.


def test_projected_update_leaves_magnitudes_off_the_mask_alone() -> None:
    before, after, _ = one_update(sp.SparsePGD(sp.Budget(k=2), gradient="projected"), GRADIENT)
    off = (before.v == 0).expand_as(before.p)
    assert torch.equal(after.p[off], before.p[off])
    assert bool((after.p[~off] != before.p[~off]).any())


def test_unprojected_update_moves_every_magnitude_by_alpha_along_the_sign() -> None:
    before, after, rows = one_update(sp.SparsePGD(sp.Budget(k=2)), GRADIENT)
    expected = (before.p + 0.25 * GRADIENT.sign()).clamp(-rows.x, 1 - rows.x)
    torch.testing.assert_close(after.p, expected)


def test_mask_step_follows_the_normalised_dense_gradient() -> None:
    before, after, _ = one_update(sp.SparsePGD(sp.Budget(k=2), gradient="projected"), GRADIENT)
    s = before.w.sigmoid()
    g_w = (GRADIENT * before.p).sum(1, keepdim=True) * s * (1 - s)
    expected = before.w + 0.25 * 6 * g_w / g_w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(after.w, expected)


def test_structured_mask_step_is_the_convolution_of_the_gradient() -> None:
    attack = sp.SparsePGD(sp.Budget(k=1, pattern=sp.Patches(2)))
    before, after, _ = one_update(attack, GRADIENT)
    s = before.w.sigmoid()
    product = (GRADIENT * before.p).sum(1)
    summed = product.unfold(1, 2, 1).unfold(2, 2, 1).sum((-1, -2))[:, None]
    g_w = summed * s * (1 - s)
    direction = g_w / g_w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(after.w, before.w + 0.0125 * 5 * direction)  # a 5x5 grid of groups


@pytest.mark.parametrize(
    ("gradient", "scale", "length"),
    [
        ("unprojected", None, 6**0.5),
        ("projected", None, 6.0),
        ("unprojected", "image", 6.0),
        ("projected", "grid", 6**0.5),
    ],
)
def test_mask_steps_of_rows_are_scaled_by_grid_or_image(gradient: Any, scale: Any, length: float) -> None:
    attack = sp.SparsePGD(sp.Budget(k=1, pattern=sp.Rows()), gradient=gradient, beta_scale=scale)
    before, after, _ = one_update(attack, GRADIENT)
    moved = (after.w - before.w).flatten(1).norm(dim=1)
    torch.testing.assert_close(moved, torch.full((2,), 0.0125 * length))


def test_no_step_where_the_gradient_vanishes() -> None:
    g = GRADIENT.clone()
    g[0] = 0
    before, after, _ = one_update(sp.SparsePGD(sp.Budget(k=2)), g)
    assert torch.equal(after.w[0], before.w[0])
    assert torch.equal(after.p[0], before.p[0])
    assert not torch.equal(after.w[1], before.w[1])


def test_a_stuck_mask_is_drawn_afresh_for_that_image_alone_and_magnitudes_go_on() -> None:
    attack = sp.SparsePGD(sp.Budget(k=2), tolerance=3)
    normal = one_update(attack, GRADIENT, n=2)[1]
    before, after, rows = one_update(attack, GRADIENT, n=3)
    fresh = Noise(0).normal(2, rows.index, torch.ones(2, dtype=torch.int64), (1, 6, 6))  # type: ignore[arg-type]
    step = normal.w[0] - before.w[0]  # by the gradient that is at hand, whether the mask stays or not
    torch.testing.assert_close(after.w[0], fresh[0] + step)
    assert torch.equal(after.w[1], normal.w[1])
    assert torch.equal(after.p, normal.p)
    assert int(after.n[0]) == 0


def test_unchanged_masks_are_counted_for_each_image_alone_and_a_change_takes_nothing_back() -> None:
    w = torch.zeros(2, 1, 6, 6)
    w[:, :, 0, :2] = 10.0  # far ahead: no step of this size changes the choice
    attack = sp.SparsePGD(sp.Budget(k=2), beta=1e-6)
    _, after, _ = one_update(attack, GRADIENT, n=1, w=w)
    assert after.n.tolist() == [2, 1]
    w[1] = 0.0
    w[1, 0, 0, 0], w[1, 0, 0, 1], w[1, 0, 0, 2] = 1.0, 1e-9, 0.0
    changed = sp.SparsePGD(sp.Budget(k=2), beta=10.0)
    _, after, _ = one_update(changed, GRADIENT, n=1, w=w)
    assert after.n.tolist()[1] == 0


@pytest.mark.parametrize("tolerance", [1, 3, 7])
def test_redraws_after_exactly_tolerance_unchanged_evaluations(tolerance: int) -> None:
    """With a constant model w never moves, so masks change only when they are drawn afresh."""
    seen: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        seen.append((x.detach() != x0).any(1))
        return torch.tensor([[3.0, 0.0]]).expand(len(x), 2) + 0 * x.sum((1, 2, 3))[:, None]

    x0 = torch.full((1, 3, 8, 8), 0.5)
    attack = sp.SparsePGD(sp.Budget(k=4), steps=4 * (tolerance + 1), tolerance=tolerance)
    attack(model, x0, torch.tensor([0]))
    masks = seen[1:-1]  # without the clean and the verifying pass
    changes = [i for i in range(1, len(masks)) if not torch.equal(masks[i], masks[i - 1])]
    assert changes == [i * (tolerance + 1) for i in range(1, len(changes) + 1)]
    assert len(changes) == 4


def test_random_gradient_tosses_one_coin_for_the_call() -> None:
    attack = sp.SparsePGD(sp.Budget(k=2), gradient="random")
    chosen = {attack.for_call(Noise(seed)).gradient for seed in range(20)}
    assert chosen == {"unprojected", "projected"}
    assert attack.for_call(Noise(4)).gradient == attack.for_call(Noise(4)).gradient


def test_the_random_start_is_tried_too() -> None:
    model, x = Linear(torch.ones(1, 4, 4), -8.0), torch.full((1, 1, 4, 4), 0.499)
    result = sp.SparsePGD(sp.Budget(k=16), steps=50)(model, x, torch.tensor([0]), seed=1)
    assert bool(result.fooled)
    hits = [int(sp.SparsePGD(sp.Budget(k=16), steps=50)(model, x, torch.tensor([0]), seed=s).steps) for s in range(12)]
    assert 0 in hits
    assert max(hits) >= 1


def test_full_length_keeps_the_best_loss_and_goes_on_after_success() -> None:
    model, x = SmallConvNet(), images(8)
    y = labelled(model, x)
    early = sp.SparsePGD(sp.Budget(k=6), steps=40)(model, x, y)
    full = sp.SparsePGD(sp.Budget(k=6), steps=40, early_stop=False)(model, x, y)
    assert bool((full.fooled | ~early.fooled).all())
    assert bool((full.loss >= early.loss)[early.fooled].all())
    assert float(full.loss[early.fooled].mean()) > float(early.loss[early.fooled].mean())
    assert full.forwards.tolist() == [41] * 8


def test_perturb_equals_the_verified_attack_point_for_point() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(8, dtype=torch.float64)
    y = labelled(model, x)
    y[0] = (y[0] + 1) % 5  # wrong from the start: comes back as it is
    attack = sp.SparsePGD(sp.Budget(k=3), steps=20)
    x_adv = attack.perturb(model, x, y, seed=2)
    assert torch.equal(x_adv[0], x[0])
    torch.testing.assert_close(x_adv, attack(model, x, y, seed=2).x_adv, rtol=0, atol=1e-9)


def test_sweep_and_slots_agree() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(5, dtype=torch.float64)
    y = labelled(model, x)
    attack = sp.SparsePGD(sp.Budget(k=2), steps=15)
    oracle = Oracle(model.eval(), sp.Untargeted())
    threat = attack.budget.resolve((3, 12, 12))
    rows = Images.entering(queue(threat, oracle, x, y, model(x).detach(), None), threat, quantize=False)
    best = run_whole_batch(attack, oracle, threat, rows, Noise(0))
    torch.testing.assert_close(best.x_adv, attack(model, x, y, seed=0, batch_size=2).x_adv, rtol=0, atol=1e-9)
