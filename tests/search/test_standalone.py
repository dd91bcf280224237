"""Attacks with a loop of their own: queries are counted and split, the best points are kept, progress is reported."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.goals import Divergence
from sparsepgd.problem.oracle import Evaluation, Oracle
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.standalone import Claims, Queries, Standalone, changed, keep_best
from sparsepgd.threat import Threat
from support.models import SmallConvNet, Tight, images, labelled


@dataclass(frozen=True, eq=False)
class Blackening(Standalone):
    """Turns one more pixel black with each query, from the upper left."""

    @property
    def name(self) -> str:
        return "blackening"

    @property
    def evaluations(self) -> int:
        return self.budget.k

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims = Claims.none(images)
        for count in range(1, self.budget.k + 1):
            rows = self.remaining(claims)
            if not len(rows):
                break
            x = images.x[rows].flatten(2).clone()
            x[:, :, :count] = 0
            x = x.view_as(images.x[rows])
            claims.offer(x, rows, oracle.evaluate(x, rows))
        return claims.x_adv


def entered(count: int, budget: sp.Budget | None = None) -> tuple[Images, Threat]:
    x = images(count)
    threat = (budget or sp.Budget(k=2)).resolve((3, 12, 12))
    low, high = threat.box(x, None, quantize=False)
    number = torch.arange(count)
    return Images(x, number % 5, number % 5, torch.zeros(count), number, number, None, low, high), threat


def asking(count: int, size: int, model: SmallConvNet) -> Queries:
    rows, _ = entered(count)
    zero = torch.zeros(count, dtype=torch.int64)
    return Queries(Oracle(model.eval(), sp.Untargeted()), rows, size, zero, zero.clone())


def test_evaluations_do_not_depend_on_how_queries_are_split_and_are_counted_by_image() -> None:
    model = SmallConvNet(dtype=torch.float64)
    x, rows = images(7, dtype=torch.float64), torch.tensor([0, 2, 2, 1, 0, 2, 2])
    one, other = asking(4, 3, model), asking(4, 100, model)
    few, all_ = one.evaluate(x, rows, gradient=True), other.evaluate(x, rows, gradient=True)
    assert few.gradient is not None
    torch.testing.assert_close(few.gradient, all_.gradient)
    torch.testing.assert_close(few.loss, all_.loss)
    assert torch.equal(few.fooled, all_.fooled)
    torch.testing.assert_close(one.logits(x, rows), other.logits(x, rows))
    assert one.forwards.tolist() == [4, 2, 8, 0]
    assert one.backwards.tolist() == [2, 1, 4, 0]
    judged = one.judge(other.logits(x, rows), rows)
    torch.testing.assert_close(judged.loss, few.loss)
    assert torch.equal(judged.fooled, few.fooled)
    assert one.forwards.tolist() == [4, 2, 8, 0]  # what is known is not asked again


def test_slopes_are_the_gradients_of_each_function() -> None:
    model = SmallConvNet(dtype=torch.float64)
    x, rows = images(5, dtype=torch.float64), torch.tensor([3, 0, 1, 1, 2])
    oracle, wanted = asking(4, 2, model), torch.tensor([4, 3, 2, 1, 0])
    logits, slopes = oracle.slopes(x, rows, lambda said, place: said.gather(1, wanted[place][:, None]) * torch.ones(2))
    point = x.clone().requires_grad_()
    said = model.eval()(point)
    (g,) = torch.autograd.grad(said.gather(1, wanted[:, None]).sum(), point)
    torch.testing.assert_close(slopes, torch.stack([g, g], 1))
    torch.testing.assert_close(logits, said.detach())
    assert oracle.forwards.tolist() == [1, 2, 1, 1]
    assert oracle.backwards.tolist() == [2, 4, 2, 2]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_slopes_that_are_not_finite_are_zero(bad: float) -> None:
    oracle, spoilt = asking(3, 2, SmallConvNet(dtype=torch.float64)), torch.tensor([1.0, bad, 1.0], dtype=torch.float64)
    x, rows = images(3, dtype=torch.float64), torch.arange(3)
    values = [lambda said, place: said[:, :2], lambda said, place: said[:, :2] * spoilt[place][:, None]]
    (_, good), (_, found) = (oracle.slopes(x, rows, value) for value in values)
    assert bool(good[1].any())
    assert not bool(found[1].any())
    assert torch.equal(found[[0, 2]], good[[0, 2]])


@pytest.mark.parametrize("room", [1, 2, 5])
def test_queries_that_do_not_fit_into_memory_are_split(room: int) -> None:
    model = Tight(room)
    oracle, plenty = (
        Queries(Oracle(one.eval(), sp.Untargeted()), *rest)
        for one, rest in ((model, room_for(7)), (model.net, room_for(7)))
    )
    x, rows = images(7, dtype=torch.float64), torch.tensor([0, 2, 2, 1, 0, 2, 2])
    few, all_ = oracle.evaluate(x, rows, gradient=True), plenty.evaluate(x, rows, gradient=True)
    torch.testing.assert_close(few.gradient, all_.gradient)
    torch.testing.assert_close(few.loss, all_.loss)
    refused = model.refused
    assert refused > 0
    torch.testing.assert_close(oracle.logits(x, rows), plenty.logits(x, rows))
    slopes = [one.slopes(x, rows, lambda said, place: said[:, :3])[1] for one in (oracle, plenty)]
    torch.testing.assert_close(*slopes)
    assert model.refused == refused  # what fits is known from then on
    assert oracle.forwards.tolist() == plenty.forwards.tolist()
    assert oracle.backwards.tolist() == plenty.backwards.tolist()


def room_for(size: int) -> tuple[Images, int, Tensor, Tensor]:
    zero = torch.zeros(4, dtype=torch.int64)
    return entered(4)[0], size, zero, zero.clone()


HUNGRY = [
    baselines.CWL0(sp.Budget(k=4), 4, lr=0.2, c_first=1, c_last=10, c_factor=10, rounds=2),
    baselines.CornerSearch(sp.Budget(k=4), 8, 2, candidates=20, levels=2),
    baselines.GreedyFool(sp.Budget(k=4), 12),
    baselines.L1APGD(sp.Budget(k=4), 4, targets=1),
    baselines.OnePixel(sp.Budget(k=4), 8, 3),
    baselines.SAIF(sp.Budget(k=4), 4, targets=1),
    baselines.SigmaZero(sp.Budget(k=4), 8),
    baselines.SparseFool(sp.Budget(k=4), 2, deepfool_steps=3, classes=3),
]


@pytest.mark.parametrize("attack", HUNGRY, ids=lambda attack: attack.name)
@pytest.mark.parametrize("room", [1, 3])
def test_an_attack_that_does_not_fit_into_memory_continues_with_the_same_result(attack: sp.Attack, room: int) -> None:
    model, x = Tight(room), images(6, dtype=torch.float64)
    y = labelled(model.net, x)
    result, expected = attack(model, x, y), attack(model.net, x, y)
    assert model.refused > 0
    assert torch.equal(result.fooled, expected.fooled)
    assert torch.equal(result.forwards, expected.forwards)
    assert torch.equal(result.backwards, expected.backwards)
    torch.testing.assert_close(result.x_adv, expected.x_adv, rtol=0, atol=1e-6)


def test_queries_without_points_have_empty_evaluations() -> None:
    oracle, x, rows = asking(4, 3, SmallConvNet()), images(4)[:0], torch.zeros(0, dtype=torch.int64)
    found = oracle.evaluate(x, rows, gradient=True)
    assert found.gradient is not None
    assert (len(found.loss), found.gradient.shape) == (0, (0, 3, 12, 12))
    assert oracle.logits(x, rows).shape == (0, 5)
    assert oracle.slopes(x, rows, lambda said, place: said[:, :2])[1].shape == (0, 2, 3, 12, 12)


def test_one_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        Blackening(sp.Budget(k=2))(Tight(0), images(4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))


def test_a_batch_whose_own_tensors_do_not_fit_into_memory_is_halved_and_restarted() -> None:
    @dataclass(frozen=True, eq=False)
    class Wide(Blackening):
        def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
            x_adv = super().attack_batch(oracle, threat, images, noise)
            if len(images.x) > 2:
                raise torch.OutOfMemoryError("no room")
            return x_adv

    model, x = SmallConvNet(dtype=torch.float64), images(9, dtype=torch.float64)
    y = labelled(model, x)
    wide, plain = (kind(sp.Budget(k=60))(model, x, y) for kind in (Wide, Blackening))
    assert torch.equal(wide.fooled, plain.fooled)
    assert torch.equal(wide.forwards, plain.forwards)  # what was asked in vain is not counted
    assert torch.equal(wide.x_adv, plain.x_adv)


def seen(loss: list[float], fooled: list[bool]) -> Evaluation:
    return Evaluation(torch.tensor(loss), torch.tensor(fooled), None)


def test_a_success_beats_a_failure_and_among_equals_the_larger_worth_wins() -> None:
    rows, _ = entered(2)
    claims = Claims.none(rows)
    points, which = images(4, seed=7), torch.tensor([0, 0, 0, 0])
    claims.offer(points, which, seen([-1.0, -3.0, -2.0, -4.0], [False] * 4))  # the clean loss is 0
    assert torch.equal(claims.x_adv, rows.x)
    claims.offer(points, which, seen([1.0, 3.0, 3.0, 2.0], [False] * 4))
    assert torch.equal(claims.x_adv[0], points[1])  # of equals the first
    claims.offer(points, which, seen([9.0, 0.1, 0.2, 0.2], [False, True, True, False]))
    assert torch.equal(claims.x_adv[0], points[2])
    claims.offer(points[:1], which[:1], seen([99.0], [False]))
    assert torch.equal(claims.x_adv[0], points[2])
    claims.offer(points[:2], which[:2], seen([0.0, 0.0], [True, True]), torch.tensor([0.3, 0.4]))
    assert torch.equal(claims.x_adv[0], points[1])
    assert claims.fooled.tolist() == [True, False]
    assert torch.equal(claims.x_adv[1], rows.x[1])  # the other image was not spoken of


def test_points_with_non_finite_logits_are_never_kept() -> None:
    rows, _ = entered(2)
    claims = Claims.none(rows)
    claims.offer(images(2, seed=7), torch.tensor([0, 1]), seen([-torch.inf, torch.nan], [False, False]))
    assert torch.equal(claims.x_adv, rows.x)
    assert not bool(claims.fooled.any())


def test_images_that_are_fooled_leave_and_are_counted_up_to_then() -> None:
    model, x = SmallConvNet(), images(9)
    y = labelled(model, x)
    attack = Blackening(sp.Budget(k=140))
    result = attack(model, x, y, batch_size=4)
    assert int(result.fooled.sum()) >= 1
    assert torch.equal(result.forwards[result.fooled], result.l0[result.fooled])
    assert bool((result.forwards[~result.fooled] == 140).all())
    assert torch.equal(result.steps, result.forwards)
    full = Blackening(sp.Budget(k=140), early_stop=False)(model, x, y)
    assert full.forwards.tolist() == [140] * 9
    assert bool((full.loss >= result.loss - 1e-6).all())


def test_progress_grows_to_its_end_while_a_batch_is_under_way() -> None:
    model, x = SmallConvNet(), images(9)
    told: list[tuple[int, int, int]] = []
    Blackening(sp.Budget(k=30))(model, x, labelled(model, x), batch_size=4, progress=lambda *at: told.append(at))
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert len(set(done)) > 20
    assert {total for _, total, _ in told} == {9 * 30}
    assert done[-1] == 9 * 30


def test_a_goal_that_an_attack_does_not_support_is_refused() -> None:
    model, x = SmallConvNet(), images(2)
    y = labelled(model, x)
    with pytest.raises(UnsupportedError, match=r"does not support the goal Divergence.*use Untargeted\(...\)"):
        Blackening(sp.Budget(k=3))(model, x, y, goal=Divergence(torch.zeros(2, 5)))


def test_the_k_best_groups_are_kept_and_changed_ones_counted() -> None:
    rows, threat = entered(2, sp.Budget(k=2))
    x = rows.x.clone()
    x[:, 0, 0, :3], x[:, 1, 0, 0] = 0.123, 0.321
    score = torch.zeros(2, 1, 12, 12)
    score[:, 0, 0, :3] = torch.tensor([3.0, 1.0, 2.0])
    kept = keep_best(Blackening(sp.Budget(k=2)), threat, rows, x, score)
    assert (kept != rows.x).any(1).nonzero().tolist() == [[0, 0, 0], [0, 0, 2], [1, 0, 0], [1, 0, 2]]
    assert changed(threat, rows, x).tolist() == [3, 3]
    features = sp.Budget(k=2, pattern=sp.Features()).resolve((3, 12, 12))
    assert changed(features, rows, x).tolist() == [4, 4]


def test_the_search_is_in_full_precision_whatever_the_caller_does() -> None:
    model, x = SmallConvNet(), images(6)
    y = labelled(model, x)
    plain = Blackening(sp.Budget(k=60))(model, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = Blackening(sp.Budget(k=60))(model, x, y)
    assert torch.equal(plain.x_adv, lowered.x_adv)
    assert torch.equal(plain.forwards, lowered.forwards)
