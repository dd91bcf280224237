"""YOLO models of ultralytics, random and small; skipped where ultralytics is not installed."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.detection import Target, Yolo, attack_detector, load_yolo
from sparsepgd.errors import InputError, MissingPackageError, UnsupportedError
from sparsepgd.sources.factories import load_module
from support.models import images
from support.small_detectors import CLASSES, SIZE, gradients, targets

os.environ.setdefault("YOLO_VERBOSE", "false")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ.setdefault("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("ultralytics")))
    return pytest.importorskip("ultralytics.nn.tasks", reason="ultralytics is not installed; it is AGPL-3.0")


@pytest.fixture(scope="module", params=["detect", "segment"])
def model(request: pytest.FixtureRequest, tasks: Any) -> Any:
    kind, file = {
        "detect": (tasks.DetectionModel, "yolov8n.yaml"),
        "segment": (tasks.SegmentationModel, "yolov8n-seg.yaml"),
    }[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(file, nc=CLASSES, verbose=False).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    model(images(8, size=SIZE))  # statistics of the images, so that what is seen reaches the outputs
    return model.eval()


def test_losses_and_gradients_of_a_batch_are_those_of_its_images_alone(model: Any) -> None:
    """The loss divides by what the whole batch was assigned, so that it must be asked image by image."""
    objective, x, there = Yolo.of(model), images(3, size=SIZE), targets(3)
    loss, g = gradients(lambda point: objective.losses(model, point, there), x)
    for i in range(3):
        alone, slope = gradients(lambda point, i=i: objective.losses(model, point, there[i : i + 1]), x[i : i + 1])
        torch.testing.assert_close(loss[i : i + 1], alone, rtol=1e-4, atol=1e-4)
        assert float((g[i] - slope[0]).norm()) < 1e-3 * float(slope.norm())  # kernels round by batch size
    assert bool((g.flatten(1).abs().sum(1) > 0).all())


def test_settings_are_lent_and_given_back(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "args", {"box": 1.0, "cls": 0.0, "dfl": 0.0}, raising=False)
    boxes = Yolo.of(model).losses(model, images(1, size=SIZE), targets(1))
    assert model.args == {"box": 1.0, "cls": 0.0, "dfl": 0.0}
    monkeypatch.setattr(model, "args", None)
    everything = Yolo.of(model).losses(model, images(1, size=SIZE), targets(1))
    assert float(everything.detach()) > float(boxes.detach())


def test_the_loss_is_made_once_and_where_the_images_are(model: Any) -> None:
    objective, x = Yolo.of(model), images(1, size=SIZE)
    assert objective.criteria == {}  # the model may yet be moved
    objective.losses(model, x, targets(1))
    (made,) = objective.criteria.values()
    objective.losses(model, x, targets(1))
    assert objective.criteria == {x.device: made}


def test_an_image_without_objects_has_a_loss_too(model: Any) -> None:
    nothing = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, SIZE, SIZE, dtype=torch.bool))
    assert bool(Yolo.of(model).losses(model, images(1, size=SIZE), [nothing]).isfinite().all())


def test_predictions_are_boxes_in_pixels_the_surest_first(model: Any) -> None:
    detector = dataclasses.replace(Yolo.of(model), confidence=0.0)
    with torch.no_grad():
        (said,) = detector.predict(model, images(1, size=SIZE))
    assert 0 < len(said) <= 300
    assert bool((said.scores.diff() <= 0).all())
    assert bool((said.boxes[:, 2:] >= said.boxes[:, :2]).all())
    assert 0 <= float(said.boxes.min()) <= float(said.boxes.max()) <= SIZE
    if detector.masked:
        assert said.masks is not None
        assert said.masks.shape == (len(said), SIZE, SIZE)


def test_decoded_rows_become_predictions_without_doubles() -> None:
    """Two anchors on one object, one of another class, one unsure."""
    yolo = Yolo(classes=2, masked=False, confidence=0.1)
    rows = torch.tensor(
        [
            [10, 10, 8, 8, 0.9, 0.0],
            [10, 11, 8, 8, 0.8, 0.0],
            [10, 10, 8, 8, 0.0, 0.7],
            [40, 40, 8, 8, 0.05, 0.05],
        ]
    )
    (said,) = yolo.predict(lambda x: (rows.T[None], None), images(1, size=SIZE))
    assert said.boxes.tolist() == [[6, 6, 14, 14]] * 2
    assert said.labels.tolist() == [0, 1]
    torch.testing.assert_close(said.scores, torch.tensor([0.9, 0.7]))


def test_masks_are_prototypes_within_boxes() -> None:
    yolo = Yolo(classes=1, masked=True, confidence=0.1)
    rows = torch.tensor([[16.0, 32, 32, 64, 0.9, 1.0, 0.0], [48.0, 32, 32, 64, 0.8, 0.0, -1.0]])
    prototypes = torch.ones(1, 2, SIZE // 4, SIZE // 4)
    (said,) = yolo.predict(lambda x: ((rows.T[None], prototypes), None), images(1, size=SIZE))
    assert said.masks is not None
    first, second = said.masks
    assert bool(first[:, :32].all())
    assert not bool(first[:, 32:].any())
    assert not bool(second.any())


@pytest.mark.parametrize("attack", [sp.SparsePGD(sp.Budget(40), 6), sp.SparseRS(sp.Budget(2, sp.Patches(4)), 6)])
def test_attacks_make_the_loss_grow_within_the_budget(model: Any, attack: Any) -> None:
    x = images(2, size=SIZE)
    content = torch.zeros(2, SIZE, SIZE, dtype=torch.bool)
    content[:, 8:56] = True
    result = attack_detector(attack, model, x, targets(2), Yolo.of(model), content=content)
    assert bool((result.loss >= result.clean_loss - 1e-4).all())
    assert int(result.groups.max()) <= attack.budget.k
    assert not bool(((result.x_adv != x).any(1) & ~content).any())
    if isinstance(attack, sp.SparsePGD):
        assert bool((result.loss > result.clean_loss).all())


def test_a_checkpoint_gives_the_same_network(model: Any, tmp_path: Path) -> None:
    model.names = {i: f"thing {i}" for i in range(CLASSES)}
    torch.save({"model": model, "ema": None}, tmp_path / "net.pt")
    state = torch.get_rng_state()
    again, names = load_yolo(tmp_path / "net.pt")
    assert torch.equal(state, torch.get_rng_state())
    assert names == ("thing 0", "thing 1", "thing 2")
    assert type(again) is type(model)
    x = images(1, size=SIZE)
    there = targets(1)
    assert torch.equal(Yolo.of(again).losses(again, x, there), Yolo.of(model).losses(model, x, there))


def test_masks_are_asked_for(tasks: Any) -> None:
    model = tasks.SegmentationModel("yolov8n-seg.yaml", nc=CLASSES, verbose=False).eval()
    bare = dataclasses.replace(targets(1)[0], masks=None)
    with pytest.raises(InputError, match="trained on masks"):
        Yolo.of(model).losses(model, images(1, size=SIZE), [bare])


def test_other_models_and_heads_are_refused(tasks: Any) -> None:
    with pytest.raises(UnsupportedError, match="Linear is not a detection model"):
        Yolo.of(torch.nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="the head Pose is not supported"):
        Yolo.of(tasks.PoseModel("yolov8n-pose.yaml", verbose=False))


def test_without_ultralytics_the_command_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ultralytics", "ultralytics.nn", "ultralytics.nn.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"AGPL-3.0.*pip install 'sparsepgd\[yolo\]'"):
        Yolo.of(torch.nn.Linear(2, 2))


def test_an_export_is_read_back_as_a_network_with_gradients(tasks: Any, tmp_path: Path) -> None:
    """examples/yolo_onnx.py; the file has what exports have: the weights of the fused network, and other constants."""
    onnx = pytest.importorskip("onnx")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = tasks.SegmentationModel("yolo11n-seg.yaml", verbose=False).fuse(verbose=False).eval()
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items() if "dfl" not in name}
    tensors["/model.23/dfl/Constant_output_0"] = torch.arange(4).numpy()
    kept = [onnx.numpy_helper.from_array(values, name) for name, values in tensors.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "export", [], [], kept)), tmp_path / "export.onnx")
    read = load_module(Path(__file__).parents[2] / "examples" / "yolo_onnx.py").read
    back, x = read(tmp_path / "export.onnx", "yolo11n-seg.yaml"), images(1, size=SIZE)
    for ours, exported in zip(back(x)[0], network(x)[0], strict=True):
        torch.testing.assert_close(ours, exported)
    assert Yolo.of(back).masked
    g = gradients(lambda point: back(point)[0][0].sum().view(1), x)[1]
    assert float(g.abs().sum()) > 0
