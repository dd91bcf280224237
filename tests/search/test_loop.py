"""The loop: slots, looks and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.problem import rows
from sparsepgd.problem.oracle import Evaluation, Oracle, borrowed
from sparsepgd.search import loop, table
from sparsepgd.search.attack import queue
from sparsepgd.search.noise import Noise
from sparsepgd.search.stepwise import Stepwise
from support.models import Dial, Moved, NoLook, SmallConvNet, images, labelled


@pytest.mark.parametrize("every", [2, 7, 50])
@pytest.mark.parametrize("early_stop", [True, False])
def test_how_often_the_host_looks_does_not_change_who_is_fooled(
    every: int, early_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = SmallConvNet(dtype=torch.float64), images(9, dtype=torch.float64)
    y = labelled(model, x)
    attack = sp.SparsePGD(sp.Budget(k=2), steps=12, early_stop=early_stop)
    expected = attack(model, x, y, batch_size=4)
    assert 0 < int(expected.fooled.sum()) < 9
    monkeypatch.setattr(table, "waits_for_host", lambda device: True)
    monkeypatch.setattr(table, "LONGEST", every)
    result = attack(model, x, y, batch_size=4)
    assert torch.equal(result.fooled, expected.fooled)
    assert torch.equal(result.steps, expected.steps)
    assert torch.equal(result.forwards, expected.forwards)
    same = slice(None) if not early_stop else ~expected.fooled  # a success may grow until the host looks
    torch.testing.assert_close(result.x_adv[same], expected.x_adv[same], rtol=0, atol=1e-9)
    assert bool((result.loss >= expected.loss - 1e-9).all())


@dataclass(frozen=True, eq=False)
class At:
    """The number of the next point."""

    step: Tensor


@dataclass(frozen=True, eq=False)
class Turning(Stepwise[At]):
    """Turns the dial of `conftest.Dial` as it is told."""

    tenths: tuple[int, ...] = ()
    name = "turning"
    needs_gradient = False

    @property
    def evaluations(self) -> int:
        return len(self.tenths)

    def start(self, threat: Any, images: loop.Images, noise: Noise) -> At:
        return At(torch.zeros_like(images.y))

    def propose(self, threat: Any, images: loop.Images, state: At) -> Tensor:
        x = images.x.clone()
        x[:, 0, 0, 0] = 0.1 * torch.tensor(self.tenths)[state.step.clamp(max=len(self.tenths) - 1)]
        return x

    def update(self, threat: Any, images: loop.Images, state: At, *rest: Any) -> At:
        return At(state.step + 1)


@pytest.mark.parametrize(
    ("tenths", "kept"), [((1, 2), 1), ((2, 1), 1), ((1, 3), 3), ((3, 1), 3), ((1, 2, 3, 2), 3), ((0, 2), 2)]
)
def test_a_success_beats_a_failure_of_larger_loss_and_among_equals_the_larger_loss_wins(
    tenths: tuple[int, ...], kept: int
) -> None:
    attack = Turning(sp.Budget(k=1), tenths=tenths, early_stop=False)
    model, x, y = Dial(), torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)
    for x_adv in (attack(model, x, y).x_adv, attack.perturb(model, x, y)):
        assert (10 * x_adv[:, 0, 0, 0]).round().tolist() == [kept, kept]


@dataclass(frozen=True, eq=False)
class Judged(Turning):
    """Says which of its points count, and which success is to be kept."""

    counts: tuple[bool, ...] = ()
    keeps: loop.Keeps = "largest"  # type: ignore[assignment]

    def aim(self, state: At) -> loop.Aim:
        return loop.Aim(torch.tensor(self.counts)[state.step.clamp(max=len(self.counts) - 1)])


@pytest.mark.parametrize(
    ("tenths", "counts", "keeps", "kept"),
    [
        ((3, 1), (False, True), "largest", 1),
        ((1, 3), (True, False), "largest", 1),
        ((3, 2), (False, True), "largest", 2),
        ((3, 3), (False, False), "largest", 0),
        ((3, 1), (True, True), "latest", 1),
        ((3, 2), (True, True), "latest", 3),
        ((1, 3, 1, 2), (True, True, True, True), "latest", 1),
        ((1, 3), (True, False), "latest", 1),
        ((1, 3), (True, True), "first", 1),
        ((2, 1, 3), (True, True, True), "first", 1),
    ],
)
def test_points_that_do_not_count_are_not_kept_and_keeps_decides_between_several_successes(
    tenths: tuple[int, ...], counts: tuple[bool, ...], keeps: loop.Keeps, kept: int
) -> None:
    attack = Judged(sp.Budget(k=1), tenths=tenths, counts=counts, keeps=keeps, early_stop=False)
    model, x, y = Dial(), torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)
    result = attack(model, x, y)
    for x_adv in (result.x_adv, attack.perturb(model, x, y)):
        assert (10 * x_adv[:, 0, 0, 0]).round().tolist() == [kept, kept]
    assert result.fooled.tolist() == [kept in (1, 3)] * 2
    early = Judged(sp.Budget(k=1), tenths=tenths, counts=counts, keeps=keeps)(model, x, y)
    first = next((i for i, (at, does) in enumerate(zip(tenths, counts, strict=True)) if does and at in (1, 3)), None)
    assert early.forwards.tolist() == [len(tenths) if first is None else first + 1] * 2


def test_finished_images_make_room_for_waiting_ones() -> None:
    sizes = []
    net = SmallConvNet()

    def model(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(x))
        return net.eval()(x)

    x = images(12)
    result = sp.SparsePGD(sp.Budget(k=6), steps=30)(model, x, labelled(net, x), batch_size=4)
    waiting = 12 - 4
    assert max(sizes) == 4
    assert int(result.fooled.sum()) > waiting // 2
    full = sizes[: len(sizes) - next(i for i, size in enumerate(reversed(sizes)) if size == 4)]
    assert set(full) == {4}  # as long as images wait, every slot is taken
    assert sum(sizes) == int(result.forwards.sum())


def test_progress_ends_at_the_total_and_never_goes_back() -> None:
    seen: list[tuple[int, int, int]] = []
    model, x = SmallConvNet(), images(9)
    result = sp.SparsePGD(sp.Budget(k=4), steps=15)(
        model, x, labelled(model, x), batch_size=4, progress=lambda *report: seen.append(report)
    )
    done = [report[0] for report in seen]
    assert done == sorted(done)
    assert seen[-1] == (9 * 16, 9 * 16, int(result.fooled.sum()))


def test_select_and_join_are_inverse_on_nested_rows() -> None:
    step = torch.arange(4)
    best = loop.Best(torch.rand(4, 1, 2, 2), torch.rand(4), step > 1, step)
    both = rows.join(rows.select(best, slice(0, 3)), rows.select(best, torch.tensor([3])))
    for name in ("x_adv", "loss", "fooled", "step"):
        assert torch.equal(getattr(both, name), getattr(best, name))


def test_rows_of_two_are_chosen_one_by_one_whatever_their_shape() -> None:
    step = torch.arange(3)
    one = loop.Best(torch.zeros(3, 1, 2, 2), torch.zeros(3), step > 5, step)
    other = loop.Best(torch.ones(3, 1, 2, 2), torch.ones(3), step < 5, step + 10)
    mixed = rows.choose(torch.tensor([True, False, True]), one, other)
    assert mixed.x_adv.flatten(1).tolist() == [[0] * 4, [1] * 4, [0] * 4]
    assert mixed.loss.tolist() == [0, 1, 0]
    assert mixed.fooled.tolist() == [False, True, False]
    assert mixed.step.tolist() == [0, 11, 2]


@pytest.mark.parametrize("pattern", [sp.Pixels(), sp.Rows(), sp.Patches(3)], ids=repr)
@pytest.mark.parametrize("gradient", ["unprojected", "projected"])
def test_steps_do_not_synchronise_with_the_device_and_leave_parameters_without_gradient(
    pattern: sp.Pattern, gradient: Any
) -> None:
    net, x = SmallConvNet(), images(5)
    wants = set()

    def model(z: Tensor) -> Tensor:
        wants.update(p.requires_grad for p in net.parameters())
        return net(z)

    attack = sp.SparsePGD(sp.Budget(k=1, pattern=pattern), 6, gradient)
    threat, y = attack.budget.resolve((3, 12, 12)), labelled(net, x)
    with borrowed(net, x.device):
        oracle = Oracle(model, sp.Untargeted())
        waiting = queue(threat, oracle, x, y, oracle.answers(x, 5), None)
        here = loop.Images.entering(waiting, threat, quantize=False)
        with NoLook():
            loop.run_whole_batch(attack, oracle, threat, here, Noise(0))
    assert wants == {False}
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("attack", "most"),
    [
        (sp.SparsePGD(sp.Budget(k=20), 300), 90),
        (sp.SparseAnneal(sp.Budget(k=20), 1000), 90),
        (sp.SparseRS(sp.Budget(k=20), 1000), 40),
    ],
    ids=["spgd", "anneal", "sparse-rs"],
)
def test_a_step_moves_little_memory_besides_the_model(attack: Stepwise[Any], most: int) -> None:
    """Read and written for an image, as multiples of its size. small-strades moves 330 in a forward pass, 790 with the
    gradient."""
    net, x = SmallConvNet(), images(8, size=32)
    threat, y = attack.budget.resolve((3, 32, 32)), labelled(net, x)
    seen = Evaluation(torch.rand(8), torch.zeros(8, dtype=torch.bool), torch.randn(8, 3, 32, 32))

    @dataclass
    class Mute:
        def evaluate(self, *asked: object) -> Evaluation:
            return seen

    with borrowed(net, x.device):
        oracle = Oracle(net)
        here = loop.Images.entering(queue(threat, oracle, x, y, oracle.answers(x, 8), None), threat, quantize=False)
    step: loop.Step[Any] = loop.Step(attack, Mute(), threat, Noise(0), attack.keeps)  # type: ignore[arg-type]
    live = step(loop.start(attack, threat, here, Noise(0)))
    with Moved() as moved:
        step(live)
    assert moved.bytes <= most * x.nbytes
