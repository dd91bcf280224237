"""mAP and IoU by torchmetrics: what they are given, and what is said where they are missing."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from sparsepgd.detection import Prediction, Target, TorchvisionDetector, mean_average_precision, mean_iou
from sparsepgd.detection.study import BACKENDS, predictions_of
from sparsepgd.errors import InputError, MissingPackageError
from support.models import images
from support.small_detectors import SIZE, made, targets


def right(target: Target) -> Prediction:
    return Prediction(target.boxes, target.labels, torch.ones(len(target)), target.masks)


@pytest.fixture
def _torchmetrics() -> None:
    pytest.importorskip("torchmetrics", reason="not installed; pip install 'sparsepgd[detection]'")
    pytest.importorskip("pycocotools", reason="not installed; pip install 'sparsepgd[detection]'")


@pytest.mark.usefixtures("_torchmetrics")
class TestPrecision:
    @pytest.mark.parametrize("over", ["boxes", "masks"])
    def test_the_truth_scores_one_and_another_class_scores_less(self, over: Any) -> None:
        truth = targets(3)
        said = [right(target) for target in truth]
        perfect = mean_average_precision(said, truth, over)
        assert (perfect.map50, perfect.map50_95) == pytest.approx((1, 1))
        said[0] = dataclasses.replace(said[0], labels=said[0].labels + 1)
        assert mean_average_precision(said, truth, over).map50 < 1

    def test_a_loose_box_counts_at_one_half_but_not_at_all_thresholds(self) -> None:
        truth = targets(1)
        wide = truth[0].boxes + torch.tensor([0, 0, 8, 0])  # IoU 20 / 28
        said = Prediction(wide, truth[0].labels, torch.ones(1))
        scores = mean_average_precision([said], truth)
        assert scores.map50 == pytest.approx(1)
        assert scores.map50_95 == pytest.approx(0.5)  # 0.5, 0.55, 0.6, 0.65, 0.7

    def test_of_many_predictions_the_surest_hundred_count(self) -> None:
        truth = targets(1)
        far = torch.tensor([[0.0, 0.0, 2.0, 2.0]]).expand(100, 4)
        labels = torch.zeros(101, dtype=torch.int64)
        sure = Prediction(torch.cat([far, truth[0].boxes]), labels, torch.linspace(1, 0.1, 101))
        assert mean_average_precision([sure], truth).map50 == 0
        others = dataclasses.replace(sure, labels=labels + (torch.arange(101) < 100))  # of another class
        assert mean_average_precision([others], truth).map50 == 0, "a hundred of the image, not of each class"
        unsure = dataclasses.replace(sure, scores=sure.scores.flip(0))
        assert mean_average_precision([unsure], truth).map50 == pytest.approx(1)

    def test_nothing_found_scores_zero(self) -> None:
        nothing = Prediction(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
        assert mean_average_precision([nothing], targets(1)).map50_95 == 0

    def test_mean_iou_leaves_ignored_pixels_out(self) -> None:
        said = torch.tensor([[[0, 0, 1, 1]]])
        assert mean_iou(said, torch.tensor([[[0, 0, 1, 255]]]), 2) == pytest.approx(1)
        assert mean_iou(said, torch.tensor([[[0, 1, 1, 1]]]), 2) == pytest.approx((1 / 2 + 2 / 3) / 2)

    def test_masks_must_be_there(self) -> None:
        bare = dataclasses.replace(targets(1)[0], masks=None)
        with pytest.raises(InputError, match="over masks"):
            mean_average_precision([right(bare)], [bare], "masks")


def test_one_prediction_for_each_target() -> None:
    with pytest.raises(InputError, match="1 predictions for 2 targets"):
        mean_average_precision([right(targets(1)[0])], targets(2))


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchmetrics", "torchmetrics.detection"):  # the second may be there already
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sparsepgd\[detection\]'"):
        mean_average_precision([right(targets(1)[0])], targets(1))
    monkeypatch.setitem(sys.modules, "torchmetrics", ModuleType("torchmetrics"))
    monkeypatch.setitem(sys.modules, "torchmetrics.detection", Mock())
    for name in BACKENDS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="mAP needs pycocotools"):
        mean_average_precision([right(targets(1)[0])], targets(1))


def test_predictions_do_not_depend_on_the_batch_and_the_model_is_given_back() -> None:
    model, x = made("ssd").train(), images(3, size=SIZE)
    together, alone = (predictions_of(TorchvisionDetector(), model, x, x.device, size) for size in (3, 1))
    assert model.training
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes)
        assert isinstance(one.scores, Tensor)
        assert not one.scores.requires_grad
