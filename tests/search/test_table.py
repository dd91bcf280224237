"""The table of slots with the rules of a GPU, on a CPU: looks, batch sizes, confirmation and memory."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.problem.engine import metered
from sparsepgd.search import table
from sparsepgd.search.table import LookInterval, Table
from support.models import SmallConvNet, Tight, images, labelled


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "waits_for_host", lambda device: True)
    monkeypatch.setattr(table, "SMALLEST", 2)


class Counting(nn.Module):
    """A network that notes the sizes of its batches, while gradients are taken and otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallConvNet(dtype=torch.float64)
        self.sizes: list[int] = []
        self.others: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        (self.sizes if torch.is_grad_enabled() else self.others).append(len(x))
        out: Tensor = self.net(x)
        return out


X = images(60, dtype=torch.float64)


@pytest.mark.parametrize(
    "attack",
    [
        sp.SparsePGD(sp.Budget(k=2), 40),
        sp.SparseRS(sp.Budget(k=3), 40),
        sp.SparseAnneal(sp.Budget(k=3), 40),
        sp.SparseAnneal(sp.Budget(k=8), 40, early_stop=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("batch_size", [7, 100])
@pytest.mark.usefixtures("apart")
def test_empty_slots_late_looks_and_late_confirmation_do_not_change_who_is_fooled(
    attack: sp.Attack, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SmallConvNet(dtype=torch.float64)
    y = labelled(model, X)
    result = attack(model, X, y, batch_size=batch_size)
    monkeypatch.setattr(table, "waits_for_host", lambda device: False)
    expected = attack(model, X, y, batch_size=64)
    assert 0 < int(expected.fooled.sum()) < len(X)
    assert torch.equal(result.fooled, expected.fooled)
    assert torch.equal(result.steps, expected.steps)
    assert torch.equal(result.forwards, expected.forwards)
    assert attack.early_stop or torch.equal(result.groups, expected.groups)


@pytest.mark.usefixtures("apart")
def test_the_host_looks_a_few_times_and_the_batch_has_few_sizes() -> None:
    model = Counting()
    y = labelled(model, X)
    model.sizes.clear()
    with metered() as meter:
        result = sp.SparsePGD(sp.Budget(k=2), 200)(model, X, y)
    assert meter.steps == len(model.sizes)
    assert meter.slot_steps == sum(model.sizes)
    assert meter.looks <= 25  # one a step would be 201
    assert len(set(model.sizes)) <= 8
    assert int(result.forwards.sum()) >= 0.6 * meter.slot_steps  # the rest are empty or idle slots


@pytest.mark.parametrize(
    ("batch_size", "few"), [(None, {4, 8, 16, 32}), (24, {4, 8, 16, 24}), (3, {3})], ids=lambda value: repr(value)
)
@pytest.mark.usefixtures("apart")
def test_successes_are_confirmed_in_batches_of_few_sizes(
    batch_size: int | None, few: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "SMALLEST", 4)
    monkeypatch.setattr(table, "COARSE", 16)
    monkeypatch.setattr(table, "PATIENCE", 2)
    model = Counting()
    y = labelled(model, X)
    model.others.clear()
    result = sp.SparsePGD(sp.Budget(k=6), 60)(model, X, y, batch_size=batch_size)
    whole = -(-len(X) // (batch_size or 64))  # clean and final images
    confirmations = model.others[whole:-whole]
    assert len(confirmations) >= 4
    assert set(confirmations) <= few
    assert torch.equal(model.eval()(result.x_adv).argmax(1) != y, result.fooled)


def test_on_a_cpu_no_evaluation_is_wasted() -> None:
    model = Counting()
    y = labelled(model, X)
    model.sizes.clear()
    with metered() as meter:
        result = sp.SparsePGD(sp.Budget(k=2), 30)(model, X, y, batch_size=16)
    assert sum(model.sizes) == meter.slot_steps == int(result.forwards.sum())


@pytest.mark.usefixtures("apart")
def test_the_last_steps_do_not_run_past_the_end() -> None:
    model = Counting()
    y = labelled(model, X[:5])
    model.sizes.clear()
    sp.SparsePGD(sp.Budget(k=1), 20, early_stop=False)(model, X[:5], y)
    assert len(model.sizes) == 21


def test_looks_become_rare_if_no_images_finish_and_frequent_if_many_do() -> None:
    interval = LookInterval(64)
    seen = []
    for _ in range(8):
        interval.adapt(0, 100)
        seen.append(interval.every)
    assert seen == [2, 4, 8, 16, 32, 64, 64, 64]
    interval.adapt(50, 50)
    assert interval.every == 32
    interval.adapt(20, 80)  # as it should be
    assert interval.every == 32
    for _ in range(9):
        interval.adapt(50, 50)
    assert interval.every == 1


@pytest.mark.parametrize("room", [1, 20])
def test_a_batch_that_does_not_fit_into_memory_is_halved_and_the_result_is_the_same(room: int) -> None:
    attack, model = sp.SparsePGD(sp.Budget(k=2), 25), Tight(room)
    y = labelled(model.net, X)
    with metered() as meter:
        result = attack(model, X, y)
    assert meter.halved > 0
    expected = attack(model.net, X, y)
    assert torch.equal(result.fooled, expected.fooled)
    torch.testing.assert_close(result.x_adv, expected.x_adv, rtol=0, atol=1e-9)


class Sudden(nn.Module):
    """A network for which the memory does not suffice in one call, given by its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.net, self.number, self.calls = SmallConvNet(dtype=torch.float64), number, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.number:
            raise torch.OutOfMemoryError("no room")
        out: Tensor = self.net(x)
        return out


@pytest.mark.parametrize(
    ("attack", "number"),
    [
        (sp.SparseRS(sp.Budget(k=2), 40, early_stop=False), 21),
        (sp.ClusterRS(sp.Budget(k=2), 40), 21),
        (sp.SparseAnneal(sp.Budget(k=1), 60), 30),
        (sp.SparseAnneal(sp.Budget(k=4), 60, early_stop=False), 30),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("apart")
def test_memory_that_runs_out_between_two_looks_does_not_change_the_result(attack: sp.Attack, number: int) -> None:
    x, model = X[:16], Sudden(number)
    y = labelled(model.net, x)
    expected = attack(Sudden(0), x, y)
    with metered() as meter:
        result = attack(model, x, y)
    assert model.calls > number
    assert meter.looks < attack.evaluations / 2
    torch.testing.assert_close(result.x_adv, expected.x_adv, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.loss, expected.loss, rtol=0, atol=1e-6, equal_nan=True)
    assert torch.equal(result.steps, expected.steps)


def test_one_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        sp.SparsePGD(sp.Budget(k=2), 5)(Tight(0), X[:4], torch.zeros(4, dtype=torch.int64))


class Moody(nn.Module):
    """Has other logits while gradients are taken, so that the search sees false successes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallConvNet(dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out.roll(1, 1) if torch.is_grad_enabled() else out


@pytest.mark.usefixtures("apart")
def test_images_with_false_successes_are_attacked_until_their_steps_are_used_up() -> None:
    model = Moody()
    y = labelled(model.net, X)
    with metered() as meter:
        result = sp.SparsePGD(sp.Budget(k=1), 60)(model, X, y)
    assert meter.denied > 0
    assert torch.equal(result.fooled, model.net.eval()(result.x_adv).argmax(1) != y)
    assert bool((result.forwards[~result.fooled] == 61).all())


class Once(nn.Module):
    """Has other logits when the first gradient is taken, and never again."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.asked = SmallConvNet(dtype=torch.float64), 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += torch.is_grad_enabled()
        out: Tensor = self.net(x)
        return out.roll(1, 1) if torch.is_grad_enabled() and self.asked == 1 else out


def test_the_step_of_a_denied_success_is_forgotten() -> None:
    model = Once()
    y = labelled(model.net, X)
    with metered() as meter:
        result = sp.SparsePGD(sp.Budget(k=1, eps=0.01), 9)(model, X, y)
    assert meter.denied == len(X)
    assert not bool(result.fooled.any())
    assert result.steps.tolist() == [9] * len(X)
    assert result.forwards.tolist() == [10] * len(X)


def test_memory_does_not_grow_with_the_steps() -> None:
    """Tensors of the size of an image that are alive during the search, counted at every look."""
    model = SmallConvNet()
    x = images(8)
    y = labelled(model, x)
    alive: list[int] = []
    look = Table.look

    def counted(self: Table[object]) -> int:
        alive.append(sum(type(one) is Tensor and one.shape[1:] == x.shape[1:] for one in gc.get_objects()))
        return look(self)

    Table.look = counted  # type: ignore[method-assign, assignment]
    try:
        sp.SparsePGD(sp.Budget(k=1), 30, early_stop=False)(model, x, y)
    finally:
        Table.look = look  # type: ignore[method-assign]
    assert len(alive) == 31
    assert len(set(alive[2:])) == 1
