"""The loop: no look inside an epoch, back to the last good state after NaN, the same curves whatever interrupts it."""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import ModelError, SparsePGDError, TrainingWarning
from sparsepgd.training import api
from sparsepgd.training.data import images
from sparsepgd.training.loop import Run, rate
from sparsepgd.training.settings import make_settings
from sparsepgd.training.team import Team
from support.models import NoLook
from support.quadrants import network, quadrants, same_weights

CPU = torch.device("cpu")


def prepared(model: nn.Module, method: str = "strades+sn", **options: Any) -> Run:
    wanted = make_settings(method, sp.Budget(k=2), {"batch": 16, "steps": 2, "multi_eps": 2, "epochs": 3, **options})
    return api._run(model, images(quadrants(), wanted, CPU), wanted, None, 4, None, Team(), None)


@pytest.mark.parametrize("method", ["strades+sn", "sat", "fast-ls", "plain", "l2"])
def test_the_host_waits_for_the_device_once_an_epoch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"steps": 1} if method == "fast-ls" else {}
    run = prepared(network(), method, soft_from=0.0, ema=0.9, clip=1.0, gradient="alternating", **options)
    looks = []
    real = Tensor.tolist

    def counted(self: Tensor) -> Any:
        looks.append(self)
        return [0.0, 0.0]

    monkeypatch.setattr(Tensor, "tolist", counted)
    with NoLook():
        run.epoch()
    monkeypatch.setattr(Tensor, "tolist", real)
    assert len(looks) == 1
    assert run.state.iteration == 3


def test_an_error_of_the_optimiser_is_not_one_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepared(network(), "plain")

    def fails() -> None:
        raise RuntimeError("no step")

    monkeypatch.setattr(run.state.optimizer, "step", fails)
    with pytest.raises(RuntimeError, match=r"^no step$"):
        run.epoch()


def test_an_error_of_the_backward_pass_is_one_of_the_model() -> None:
    model = network()
    next(model.parameters()).register_hook(lambda g: g.view(3))
    with pytest.raises(
        ModelError, match=r"the model fails on images of shape .*: RuntimeError: shape '\[3\]' is invalid"
    ):
        prepared(model, "plain").epoch()


class Explosive(nn.Module):
    """Answers NaN in training mode on some calls, as a network does whose weights have run away."""

    def __init__(self, calls: set[int]) -> None:
        super().__init__()
        self.network, self.calls, self.count = network(norm=False), calls, 0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        self.count += self.training
        return logits * math.nan if self.training and self.count in self.calls else logits


def test_after_nan_the_epoch_begins_again_with_half_the_learning_rate() -> None:
    model = Explosive({5})  # in the second epoch of three batches
    run = prepared(model, "sat", lr=0.1, schedule="constant")
    before = []
    with pytest.warns(TrainingWarning, match=r"the loss was nan in epoch 2: the epoch is repeated with 0.5"):
        run.train(lambda: before.append(run.state.epoch))
    assert before == [1, 2, 3]
    assert run.state.curves["lr"] == pytest.approx([0.1, 0.05, 0.05])
    assert all(map(math.isfinite, run.state.curves["loss"]))
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    assert run.state.notices[0].startswith("the loss was nan")


def test_the_state_after_nan_is_that_before_the_epoch() -> None:
    run = prepared(Explosive({2}), "sat", ema=0.9)
    good = {name: value.clone() for name, value in run.state.network.state_dict().items()}
    kept = deepcopy(run.state.dump())
    assert math.isnan(run.epoch()["loss"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        run.roll_back(kept, math.nan)
    assert (run.state.iteration, run.state.epoch) == (0, 0)
    assert all(torch.equal(value, good[name]) for name, value in run.state.network.state_dict().items())
    assert all(bool(value.isfinite().all()) for value in run.state.average)


def test_a_run_that_always_breaks_is_given_up_with_a_word_of_advice() -> None:
    run = prepared(Explosive(set(range(1000))), "sat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        with pytest.raises(SparsePGDError, match=r"the loss is nan in epoch 1, even with 0.125 .* use a lower lr"):
            run.train(lambda: None)


def test_what_is_not_watched_in_every_epoch_keeps_its_last_value_and_has_none_before_the_first() -> None:
    run, told = prepared(network(), "plain", watch_every=2, epochs=5), []
    seen = iter([{"clean": 0.25}, {"clean": 0.5}, {"clean": 0.75}])
    run.watch = lambda model: next(seen)  # type: ignore[assignment]
    run.progress = lambda done, total, last: told.append(last.get("clean"))
    run.train(lambda: None)
    curves = run.state.curves
    assert curves["clean"] == [None, 0.25, 0.25, 0.5, 0.75]
    assert [len(curves[name]) for name in ("loss", "attacked", "lr", "seconds")] == [5] * 4
    assert None not in curves["loss"]
    assert told == [None] * 6 + [0.25] * 6 + [0.5] * 3  # three batches an epoch, of what was seen before


def test_the_alarm_is_raised_by_what_is_measured_not_by_values_that_were_kept() -> None:
    run = prepared(network(), "sat")
    assert run.watch is not None
    monitored = replace(run.watch, images=replace(run.watch.images, x=torch.zeros(1000, 1, 8, 8)))
    run.watch, run.state.epoch = monitored, 1
    for attacked, seen in ((0.4, {"robust": 0.5}), (0.4, {"robust": 0.0}), (0.9, {})):
        run.extend_curves({"attacked": attacked, "seconds": 1.0, **seen})
        run.state.epoch += 1
    assert run.state.notices == []
    with pytest.warns(TrainingWarning, match="catastrophic overfitting: since epoch 1"):
        run.extend_curves({"attacked": 0.9, "seconds": 1.0, "robust": 0.0})


def test_the_average_is_lent_to_the_network_and_taken_away_again() -> None:
    run = prepared(network(), "plain", ema=0.99)
    run.epoch()
    before = network()
    before.load_state_dict(run.state.network.state_dict())
    with run.state.averaged():
        assert not same_weights(run.state.network, before)
        assert all(torch.equal(a, b) for a, b in zip(run.state.live, run.state.average, strict=True))
    assert same_weights(run.state.network, before)


def test_soft_targets_begin_when_they_are_told_to() -> None:
    run = prepared(network(), "sat+s", epochs=4, soft_from=0.5)
    assert run.state.targets is not None
    written = []
    run.train(lambda: written.append(int((run.state.targets.t.sum(1) > 0).sum())))  # type: ignore[union-attr]
    assert written[:2] == [0, 0]
    assert written[2] == 48  # three batches of sixteen
    assert written[3] >= 48
    sums = run.state.targets.t.sum(1)
    torch.testing.assert_close(sums[sums > 0], torch.ones(written[3]))


def test_the_paper_divides_by_ten_at_a_quarter_and_at_three_quarters() -> None:
    rates = [rate("paper", 0.05, i, 100) for i in range(100)]
    assert rates[:25] == [0.05] * 25
    assert rates[25:75] == pytest.approx([0.005] * 50)
    assert rates[75:] == pytest.approx([0.0005] * 25)


def test_one_cycle_rises_to_the_peak_and_falls_to_nothing() -> None:
    rates = [rate("one-cycle", 0.06, i, 1000) for i in range(1001)]
    assert rates.index(max(rates)) == 250
    assert max(rates) == pytest.approx(0.06)
    assert rates[0] == pytest.approx(0.06 / 25)
    assert rates[1000] == pytest.approx(0, abs=1e-9)
    assert rates[:251] == sorted(rates[:251])
    assert rates[250:] == sorted(rates[250:], reverse=True)
