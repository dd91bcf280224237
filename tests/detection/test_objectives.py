"""Ready objectives: one loss an image, that of the image alone; the model and the random state as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsepgd.detection import COCO_CATEGORIES, OutputLoss, SemanticSegmentation, Target, TorchvisionDetector
from sparsepgd.errors import InputError, ModelError, ShapeError, UnsupportedError
from support.models import images
from support.small_detectors import KINDS, SIZE, gradients, made, targets

OBJECTIVE = TorchvisionDetector()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_of_a_batch_are_those_of_its_images_alone(kind: str) -> None:
    model, x, there = made(kind), images(3, size=SIZE), targets(3)
    loss, g = gradients(lambda point: OBJECTIVE.losses(model, point, there), x)
    for i in range(3):
        alone, slope = gradients(lambda point, i=i: OBJECTIVE.losses(model, point, there[i : i + 1]), x[i : i + 1])
        torch.testing.assert_close(loss[i : i + 1], alone)
        torch.testing.assert_close(g[i : i + 1], slope)
    assert bool((g.flatten(1).abs().sum(1) > 0).all())
    assert len(set(loss.tolist())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_depends_on_the_boxes_and_not_on_chance(kind: str) -> None:
    model, x, there = made(kind), images(1, size=SIZE), targets(1)
    state = torch.get_rng_state()
    first = OBJECTIVE.losses(model, x, there)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert torch.equal(first, OBJECTIVE.losses(model, x, there))
    moved = Target(there[0].boxes + 16, there[0].labels, there[0].masks)
    assert not torch.equal(first, OBJECTIVE.losses(model, x, [moved]))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_losses_leaves_modes_and_statistics_alone(kind: str) -> None:
    model = made(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    OBJECTIVE.losses(model, images(2, size=SIZE), targets(2))
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError):
        OBJECTIVE.losses(model, images(2, size=SIZE), targets(1))
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_objects_has_a_loss_too(kind: str) -> None:
    nothing = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, SIZE, SIZE, dtype=torch.bool))
    assert bool(OBJECTIVE.losses(made(kind), images(1, size=SIZE), [nothing]).isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_count_classes_as_targets_do(kind: str) -> None:
    said = OBJECTIVE.predict(made(kind), images(2, size=SIZE))
    assert len(said) == 2
    assert all(len(one) > 0 and 0 <= int(one.labels.min()) <= int(one.labels.max()) < 3 for one in said)
    assert all((one.masks is not None) == (kind == "mask-rcnn") for one in said)


class Reports(nn.Module):
    """Stands for a pretrained detector: it finds one object of each category it is given."""

    def __init__(self, categories: list[int]) -> None:
        super().__init__()
        self.categories = torch.tensor(categories)

    def forward(self, x: list[Tensor]) -> list[dict[str, Tensor]]:
        n = len(self.categories)
        return [{"boxes": torch.zeros(n, 4), "labels": self.categories, "scores": torch.ones(n)} for _ in x]


def test_coco_categories_become_the_80_classes_and_others_are_left_out() -> None:
    assert (len(COCO_CATEGORIES), COCO_CATEGORIES[0], COCO_CATEGORIES[79]) == (80, 1, 90)
    (said,) = TorchvisionDetector(COCO_CATEGORIES).predict(Reports([1, 12, 13, 90]), images(1))
    assert said.labels.tolist() == [0, 11, 79]  # person, (street sign), stop sign, toothbrush


def test_categories_are_what_the_loss_is_told() -> None:
    model, x, there = made("ssd"), images(1, size=SIZE), targets(1)
    shifted = Target(there[0].boxes, there[0].labels + 1, there[0].masks)
    renumbered = TorchvisionDetector((2, 3, 1)).losses(model, x, there)
    assert torch.equal(renumbered, OBJECTIVE.losses(model, x, [shifted]))


def test_mask_rcnn_says_that_it_needs_masks() -> None:
    bare = Target(targets(1)[0].boxes, targets(1)[0].labels)
    with pytest.raises(InputError, match="trained on masks"):
        OBJECTIVE.losses(made("mask-rcnn"), images(1, size=SIZE), [bare])


def test_a_model_of_another_kind_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedError, match=r"Conv2d is not a torchvision detector.*OutputLoss"):
        OBJECTIVE.losses(nn.Conv2d(3, 3, 1), images(1), targets(1))


class Segmenter(nn.Module):
    def __init__(self, wrap: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3, generator=generator))
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        scores = nn.functional.conv2d(x, self.weight, padding=1)
        return {"out": scores} if self.wrap else scores


def test_semantic_segmentation_is_the_mean_cross_entropy_of_counted_pixels() -> None:
    model, x, objective = Segmenter(), images(2), SemanticSegmentation()
    label = torch.randint(0, 4, (2, 12, 12), generator=torch.Generator().manual_seed(3))
    label[0, :6] = 255
    loss = objective.losses(model, x, list(label))
    log = model(x)["out"].log_softmax(1)
    expected = [-log[i].gather(0, label[i].clamp(max=3)[None])[0][label[i] != 255].mean() for i in range(2)]
    torch.testing.assert_close(loss, torch.stack(expected))
    assert torch.equal(objective.predict(model, x), objective.predict(Segmenter(wrap=False), x))


def test_semantic_segmentation_takes_torchvisions_models() -> None:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    label = [torch.ones(32, 32, dtype=torch.int64)] * 2
    _, g = gradients(lambda point: SemanticSegmentation().losses(model, point, label), images(2, size=32))
    assert bool((g.flatten(1).abs().sum(1) > 0).all())


def test_semantic_segmentation_refuses_what_are_no_scores_of_pixels() -> None:
    label = [torch.zeros(12, 12, dtype=torch.int64)]
    with pytest.raises(ModelError, match=r"a dict with keys \['masks'\]"):
        SemanticSegmentation().losses(lambda x: {"masks": x}, images(1), label)
    with pytest.raises(ShapeError, match="one per class and pixel"):
        SemanticSegmentation().losses(lambda x: x[:, :, ::2], images(1), label)


def test_any_loss_of_the_outputs_is_an_objective() -> None:
    x = images(2)
    objective = OutputLoss(lambda output, there: output.flatten(1).sum(1) * torch.tensor(there))
    assert torch.equal(
        objective.losses(lambda x: 2 * x, x, [1.0, 3.0]), (2 * x).flatten(1).sum(1) * torch.tensor([1, 3])
    )
