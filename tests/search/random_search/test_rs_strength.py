"""How strong Sparse-RS is: known best answers of linear models, and more queries against fewer."""

from __future__ import annotations

import pytest
import torch

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.search.random_search.sparse_rs import SparseRS
from sparsepgd.threat import Frame
from support.models import Linear, SmallConvNet, images, labelled

CROSS = sp.Shape([[0, 1, 0], [1, 1, 1], [0, 1, 0]])


@pytest.mark.parametrize(("k", "channels", "eps"), [(1, 1, 1.0), (3, 1, 0.1), (2, 3, 1.0), (3, 3, 0.1)])
def test_finds_the_best_pixels_of_a_linear_model(k: int, channels: int, eps: float) -> None:
    """At the end no swap improves. With one channel that is the optimum; with more, a pixel can be left with
    its second-best colour, because a swap never changes the colour of a pixel that stays."""
    generator = torch.Generator().manual_seed(k)
    weight, x = torch.randn(channels, 4, 4, generator=generator), torch.rand(8, channels, 4, 4, generator=generator)
    ends = [weight * ((x + sign * eps).clamp(0, 1) - x) for sign in (-1, 1)]
    gain = torch.maximum(*ends).sum(1).flatten(1)
    attack = SparseRS(sp.Budget(k=k, eps=eps), 1500 if channels > 1 else 500, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(8, dtype=torch.int64))
    got = ((result.x_adv - x) * weight).sum(1).flatten(1)
    chosen = (result.x_adv != x).any(1).flatten(1)
    worst_chosen = got.masked_fill(~chosen, torch.inf).amin(1)
    assert bool((worst_chosen >= gain.masked_fill(chosen, -torch.inf).amax(1) - 1e-5).all())
    reached, best = got.sum(1), gain.topk(k).values.sum(1)
    assert bool((reached > 0.75 * best).all())
    assert bool((reached > best - 1e-4).all()) or channels > 1


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3), CROSS, Frame(1)], ids=repr)
def test_finds_the_best_group_of_a_linear_model(pattern: sp.Pattern) -> None:
    """One content is the best everywhere and one place is the best for it, so there is nothing to be trapped in.

    Where each place wants its own content, Sparse-RS may stay at a good place: see the test after this one.
    """
    i, j = torch.arange(8.0)[:, None], torch.arange(8.0)
    hill = 1 / (1 + (i - 5) ** 2 + (j - 2) ** 2)
    weight = torch.tensor([1.0, -1.0, 1.0])[:, None, None] * hill
    x = torch.full((2, 3, 8, 8), 0.5)
    budget = sp.Budget(k=1, pattern=pattern)
    best = budget.resolve((3, 8, 8)).gather(weight.abs()[None] / 2).max()
    attack = SparseRS(budget, 800, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(2, dtype=torch.int64))
    reached = ((result.x_adv - x) * weight).flatten(1).sum(1)
    torch.testing.assert_close(reached, best.expand(2))


@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3)], ids=repr)
def test_is_optimal_for_its_place_where_each_place_wants_its_own_content(pattern: sp.Pattern) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(3, 8, 8, generator=generator), torch.rand(4, 3, 8, 8, generator=generator)
    budget = sp.Budget(k=1, pattern=pattern)
    attack = SparseRS(budget, 800, loss="margin", early_stop=False)
    result = attack(Linear(weight, -1000.0), x, torch.zeros(4, dtype=torch.int64))
    gain = torch.maximum(weight * (1 - x), -weight * x)
    here = (gain * (result.x_adv != x).any(1, keepdim=True)).flatten(1).sum(1)
    torch.testing.assert_close(((result.x_adv - x) * weight).flatten(1).sum(1), here)


def test_more_queries_go_on_from_fewer_where_the_schedule_is_not_rescaled() -> None:
    """For points without rescaling a run is the beginning of a longer one; a rescaled schedule is another search."""
    model, x = SmallConvNet(dtype=torch.float64), images(8, dtype=torch.float64)
    y = labelled(model, x)
    short, long = (SparseRS(sp.Budget(k=5), n, rescale=False)(model, x, y) for n in (20, 120))
    assert bool((long.fooled | ~short.fooled).all())
    assert torch.equal(long.x_adv[short.fooled], short.x_adv[short.fooled])
    assert int(long.fooled.sum()) > int(short.fooled.sum())
    assert bool((long.loss >= short.loss)[~short.fooled & ~long.fooled].all())


def test_lowers_the_robust_accuracy_of_a_robust_model_the_more_the_longer() -> None:
    model, (x, y) = zoo.load("small-strades"), zoo.bundled_images(100)
    with torch.no_grad():
        probabilities = model.eval()(x).softmax(1)
    sure = probabilities.gather(1, y[:, None])[:, 0].masked_fill(probabilities.argmax(1) != y, torch.inf)
    pick = sure.topk(16, largest=False).indices  # right, but the least sure of all
    short, long = (SparseRS(sp.Budget(k=20), n, rescale=False)(model, x[pick], y[pick]) for n in (20, 200))
    assert 1 == long.clean_accuracy > short.robust_accuracy > long.robust_accuracy
