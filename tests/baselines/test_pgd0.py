"""PGD_0: the projection is exact, the linear problem is solved, restarts and targets are the paper's."""

from __future__ import annotations

import itertools

import pytest
import torch

import sparsepgd as sp
from sparsepgd.baselines import PGD0
from sparsepgd.baselines.pgd0 import _project
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.loop import Images
from support.linear import problem, reached, with_slack
from support.models import Linear, NoLook, SmallConvNet, images, labelled

BUDGETS = [
    sp.Budget(k=1),
    sp.Budget(k=4),
    sp.Budget(k=3, pattern=sp.Features()),
    sp.Budget(k=2, pattern=sp.Rows()),
    sp.Budget(k=1, pattern=sp.Columns()),
    sp.Budget(k=3, eps=0.1),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_finds_the_best_groups_of_a_linear_model(budget: sp.Budget) -> None:
    weight, x, best = problem(budget)
    attack = PGD0(budget, steps=30, eta=1e6, restarts=1, targets=0, early_stop=False, loss="margin")
    torch.testing.assert_close(reached(attack, weight, x), best, rtol=1e-4, atol=1e-5)


def test_fools_a_linear_model_if_and_only_if_the_budget_suffices() -> None:
    budget = sp.Budget(k=3)
    weight, x, best = problem(budget)
    attack = PGD0(budget, steps=30, eta=1e6, restarts=2, targets=1)
    for i, (slack, expected) in itertools.product(range(4), ((1e-2, True), (-1e-2, False))):
        model = with_slack(weight, x[i : i + 1], best[i], slack)
        assert bool(attack(model, x[i : i + 1], torch.tensor([0])).fooled) is expected


def test_projection_is_the_nearest_point_of_the_budget() -> None:
    """Against all pairs of four pixels, each clipped to the box."""
    budget = sp.Budget(k=2, eps=0.6)
    threat = budget.resolve((3, 2, 2))
    x, y = images(5, size=2), torch.zeros(5, dtype=torch.int64)
    low, high = threat.box(x, None, quantize=False)
    rows = Images(x, y, y, torch.zeros(5), torch.arange(5), torch.arange(5), None, low, high)
    d = 2 * torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    distance = (_project(d, threat, rows).d - d).flatten(1).norm(dim=1)
    every = []
    for pair in itertools.combinations(range(4), 2):
        keep = torch.zeros(4).index_fill(0, torch.tensor(pair), 1).view(1, 1, 2, 2)
        every.append((d.clamp(low - x, high - x) * keep - d).flatten(1).norm(dim=1))
    torch.testing.assert_close(distance, torch.stack(every).amin(0))


def test_a_step_is_eta_long_in_the_l1_norm_before_the_projection() -> None:
    """On a grey image a short step of one pixel is seen as it is: eta times its share of the gradient."""
    weight = torch.zeros(1, 4, 4)
    weight[0, 1, 2], weight[0, 3, 3] = 3.0, -1.0
    x = torch.full((1, 1, 4, 4), 0.5)
    seen: list[torch.Tensor] = []

    class Watched(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.detach().clone())
            return super().forward(x)

    PGD0(sp.Budget(k=16), steps=2, eta=0.1, restarts=1, targets=0)(Watched(weight, -5.0), x, torch.tensor([0]))
    start, first = seen[1], seen[2]  # after the clean image
    moved = (first - start)[0, 0]
    inside = (first > 0) & (first < 1)
    assert bool(inside[0, 0, 1, 2]) or bool(inside[0, 0, 3, 3])
    expected = torch.zeros(4, 4)
    expected[1, 2], expected[3, 3] = 0.075, -0.025
    torch.testing.assert_close(moved[inside[0, 0]], expected[inside[0, 0]], rtol=0, atol=1e-6)


def test_the_defaults_are_those_of_the_paper() -> None:
    attack = PGD0(sp.Budget(k=20))
    assert (attack.steps, attack.eta, attack.restarts, attack.targets) == (300, 120_000 / 255, 5, 9)
    assert attack.evaluations == 50 * 301
    assert attack.name == "pgd0"


def test_perturb_is_one_attempt_without_a_word_to_the_host() -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(6, dtype=torch.float64)
    y = labelled(model, x)
    budget = sp.Budget(k=3)
    once = PGD0(budget, steps=8, restarts=1, targets=0)(model, x, y, seed=4).x_adv
    with NoLook():
        x_adv = PGD0(budget, steps=8).perturb(model, x, y, seed=4)
    torch.testing.assert_close(x_adv, once, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("eta", 0.0), ("restarts", 0), ("targets", -1)])
def test_unusable_hyper_parameters_are_refused(name: str, value: float) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}={value}"):
        PGD0(sp.Budget(k=1), **{name: value})  # type: ignore[arg-type]


def test_overlapping_groups_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"PGD0 supports Pixels or .* not Patches.*SparsePGD"):
        PGD0(sp.Budget(k=2, pattern=sp.Patches(3)))
