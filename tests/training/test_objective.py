"""The losses, by their formulas; and batch normalisation sees what is trained on, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sparsepgd as sp
from sparsepgd.training.objective import Mixed, Objective, SoftTargets
from sparsepgd.training.team import Team
from support.quadrants import network, quadrants

CPU = torch.device("cpu")


def outputs(trades: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss, and what the model says of x and of x_adv."""
    model, (x, y) = network(norm=False), quadrants(6)
    x_adv = 1 - x
    loss, _, _ = Objective(model, trades, 3.0, 0.9, Team())(x, x_adv, y, None)
    return loss, model(x).softmax(1), model(x_adv).softmax(1)


@pytest.mark.parametrize("trades", [False, True])
def test_right_answers_are_counted_on_what_the_adversary_made(trades: bool) -> None:
    y, wrong = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([0, 1, 3, 2, 1])  # three of five are wrong
    x, x_adv = (nn.functional.one_hot(said, 4).float().view(5, 1, 2, 2) for said in (y, wrong))
    assert int(Objective(nn.Flatten(), trades, 3.0, 0.9, Team())(x, x_adv, y, None)[1]) == 2


def test_adversarial_training_is_the_cross_entropy_of_what_the_adversary_made() -> None:
    loss, _, p_adv = outputs(trades=False)
    y = quadrants(6)[1]
    torch.testing.assert_close(loss, -p_adv[torch.arange(6), y].log().mean())


def test_trades_adds_lambda_times_the_divergence_from_the_clean_answer() -> None:
    loss, p, p_adv = outputs(trades=True)
    y = quadrants(6)[1]
    kl = (p * (p / p_adv).log()).sum(1).mean()
    torch.testing.assert_close(loss, -p[torch.arange(6), y].log().mean() + 3 * kl)


def test_soft_targets_follow_the_answers_and_weigh_the_images() -> None:
    y = quadrants(6)[1]
    before = nn.functional.one_hot(y, 4).float()
    before[0] = torch.tensor([0.4, 0.3, 0.2, 0.1])
    model, (x, _) = network(norm=False), quadrants(6)
    loss, _, t = Objective(model, False, 3.0, 0.9, Team())(x, 1 - x, y, before)
    p = model(1 - x).softmax(1).detach()
    torch.testing.assert_close(t, 0.9 * before + 0.1 * p)
    w = t.amax(1)
    torch.testing.assert_close(loss, (w * -(t * p.log()).sum(1)).sum() / w.sum())


def test_soft_targets_are_one_hot_until_they_are_written() -> None:
    kept, y = SoftTargets(10, 4, CPU), torch.tensor([1, 3])
    rows = torch.tensor([7, 2])
    assert torch.equal(kept.of(rows, y), nn.functional.one_hot(y, 4).float())
    kept.put(rows[:1], torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    assert torch.equal(kept.of(rows, y)[0], torch.tensor([0.1, 0.2, 0.3, 0.4]))
    kept.share(Team())
    assert torch.equal(kept.of(rows, y)[1], torch.tensor([0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("method", "forwards"), [("plain", 1), ("sat", 1), ("strades", 2), ("strades+sn", 2), ("fast-ls", 2), ("linf", 1)]
)
def test_batch_normalisation_moves_only_with_what_is_trained_on(method: str, forwards: int) -> None:
    model = network()
    sp.train(model, quadrants(40), method, sp.Budget(k=2), epochs=2, batch=12, multi_eps=2, soft_from=0.0)
    batches = 2 * (38 // 12)
    assert int(model[1].num_batches_tracked) == batches * forwards  # type: ignore[index, arg-type]


def test_reduced_precision_gives_logits_in_float32_and_the_extractor_is_used() -> None:
    model, (x, _) = network(), quadrants(4)
    logits = Mixed(model.eval(), CPU, True, lambda output: output * 2)(x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, 2 * model(x), rtol=0.05, atol=0.05)
    assert not torch.equal(logits, 2 * model(x))
