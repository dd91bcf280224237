"""The watch on held-out images, and the alarm."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import sparsepgd as sp
from sparsepgd.training.data import resident
from sparsepgd.training.loop import catastrophic, watch
from sparsepgd.training.settings import make_settings
from sparsepgd.training.team import Team
from support.models import SmallConvNet, images, labelled


@pytest.mark.parametrize("size", [5, 23, 64])
def test_every_image_counts_once_whatever_the_batch(size: int) -> None:
    model, x = SmallConvNet(), images(23)
    y = labelled(model, x)
    y[:3] = (y[:3] + 1) % 5
    wanted = make_settings("sat", sp.Budget(k=2), {"watch_steps": 12})
    seen = watch(wanted, resident(x, y, torch.device("cpu")), size, Team())(model)
    assert seen["clean"] == pytest.approx(20 / 23)
    broken = torch.zeros(23, dtype=torch.bool)
    for attack in (sp.SparsePGD(sp.Budget(k=2), 12, "unprojected"), sp.SparsePGD(sp.Budget(k=2), 12, "projected")):
        broken |= attack(model, x, y).fooled
    robust = 20 / 23 - float(broken.sum()) / 23
    assert seen["robust"] == pytest.approx(robust, abs=3 / 23)  # the draws of an image depend on its place
    assert seen["robust"] < seen["clean"]
    assert model.training


def test_without_steps_only_clean_accuracy_is_watched() -> None:
    model, x = SmallConvNet(), images(6)
    wanted = make_settings("sat", sp.Budget(k=2), {"watch_steps": 0})
    assert watch(wanted, resident(x, labelled(model, x), torch.device("cpu")), 4, Team())(model) == {"clean": 1.0}


@pytest.mark.parametrize(
    ("attacked", "robust", "alarm"),
    [
        ((0.2, 0.4, 0.5, 0.9), (0.2, 0.5, 0.4, 0.0), True),
        ((0.2, 0.4, 0.5, 0.9), (None, 0.5, 0.5, 0.0), True),  # watched from the second epoch on
        ((0.2, 0.4, 0.5, 0.9), (None, None, None, 0.0), False),  # only once
        ((0.2, 0.4, 0.5, 0.6), (0.2, 0.3, 0.4, 0.45), False),  # both rise
        ((0.5, 0.5, 0.3, 0.2), (0.2, 0.5, 0.4, 0.0), False),  # both fall: diverged, not overfitted
        ((0.2, 0.4, 0.5, 0.9), (0.2, 0.5, 0.5, 0.45), False),  # within chance
    ],
)
def test_the_alarm_needs_a_rise_and_a_fall(
    attacked: Sequence[float], robust: Sequence[float | None], alarm: bool
) -> None:
    words = catastrophic({"attacked": attacked, "robust": robust}, 1000)
    assert (words is not None) == alarm
    if words is not None:
        assert "since epoch 2, accuracy under the training attack rose from 40.0% to 90.0%" in words
        assert "fell from 50.0% to 0.0%" in words


def test_few_images_need_a_larger_fall_and_no_watch_gives_no_alarm() -> None:
    curves = {"attacked": (0.2, 0.9), "robust": (0.5, 0.3)}
    assert catastrophic(curves, 1000) is not None
    assert catastrophic(curves, 40) is None
    assert catastrophic({"attacked": (0.2, 0.9)}, 1000) is None
