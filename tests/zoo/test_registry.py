"""The registry: cards, weights, bundled images, and what is said when something is wrong."""

import hashlib
import json
from dataclasses import FrozenInstanceError
from importlib.resources import files

import pytest
import torch
from safetensors.torch import save

from sparsepgd import zoo
from sparsepgd.errors import SourceError
from sparsepgd.zoo import small_preact_resnet
from sparsepgd.zoo.registry import IMAGES

BUNDLED = files("sparsepgd.zoo").joinpath("bundled")


def add_model(folder, name, network, **changes):
    """Write weights and card as the recipe does."""
    weights = save({key: value.contiguous() for key, value in network.state_dict().items()})
    about = {
        "name": name,
        "description": "for a test",
        "architecture": "small_preact_resnet",
        "arguments": {"num_classes": 4, "activation": "softplus"},
        "parameters": 1,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "method": "plain",
        "command": "none",
        "seed": 0,
        "epochs": 0,
        "hardware": "CPU",
        "torch_version": torch.__version__,
        "training_seconds": 0.0,
        "clean_accuracy": 0.25,
        "measured": "not at all",
        **changes,
    }
    (folder / f"{name}.safetensors").write_bytes(weights)
    (folder / f"{name}.json").write_text(json.dumps(about))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return small_preact_resnet(4, "softplus").eval()


def test_no_model_at_all(tmp_path):
    assert zoo.names(tmp_path) == []
    with pytest.raises(SourceError, match=r"no model 'small'; use one of: \(none found\)"):
        zoo.load("small", tmp_path)


def test_a_model_comes_back_as_it_was_written(tmp_path, network):
    add_model(tmp_path, "one", network)
    loaded = zoo.load("one", tmp_path)
    x = torch.rand(2, 3, 32, 32)
    assert not loaded.training
    assert torch.equal(loaded(x), network(x))


def test_names_are_sorted_and_need_both_files(tmp_path, network):
    for name in ("b", "a", "c"):
        add_model(tmp_path, name, network)
    (tmp_path / "c.json").unlink()
    (tmp_path / "notes.json").write_text("{}")
    assert zoo.names(tmp_path) == ["a", "b"]
    for unknown in ("c", "notes", "../a"):
        with pytest.raises(SourceError, match=r"no model .*; use one of: a, b"):
            zoo.card(unknown, tmp_path)


def test_changed_weights_are_refused(tmp_path, network):
    add_model(tmp_path, "one", network)
    file = tmp_path / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        SourceError, match=r"one.safetensors has sha256 .*, but its card says .*install or download it again"
    ):
        zoo.load("one", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clean_accuracy": 25}, "one.json is not a valid card: clean_accuracy=25; use at most 1; write it again"),
        ({"surprise": 1}, "one.json is not a valid card: 'surprise' is not known; write it again"),
        ({"robust_accuracy": {"sAA": 62}}, "one.json is not a valid card: robust_accuracy=62; use at most 1"),
        ({"robust": [{"attack": "saa"}]}, "one.json is not a valid card: robust_accuracy is missing"),
        ({"robust": ["saa"]}, "one.json is not a valid card: "),
        ({"robust": {"saa": 0.5}}, "one.json is not a valid card: robust={'saa': 0.5}; expected a list"),
        (
            {"robust": [{"attack": "all runs", "robust_accuracy": 0.5, "images": 9, "k": 3, "runs": 0}]},
            "runs=0; use at",
        ),
        ({"budgets": ["20 pixel"]}, "one.json is not a valid card: budgets.0='20 pixel'; expected a table"),
        ({"classes": "ant"}, "one.json is not a valid card: classes='ant'; expected a list"),
        ({"classes": ["ant", 1]}, "one.json is not a valid card: classes.1=1; expected text"),
        ({"seed": "one"}, "one.json is not a valid card: seed='one'; expected an integer"),
        ({"version": 3}, "one.json is not a valid card: version=3; use one of 2; write it again"),
        (
            {"architecture": "vgg"},
            "needs the unknown architecture 'vgg'; this sparsepgd has preact_resnet18, small_preact_resnet",
        ),
        ({"arguments": {"num_classes": 10}}, "the weights of one do not fit its card"),
        ({"arguments": {"depth": 3}}, "the weights of one do not fit its card"),
        ({"arguments": {"activation": "gelu"}}, "do not fit its card: activation='gelu'"),
    ],
)
def test_a_wrong_card_is_refused(tmp_path, network, changes, message):
    add_model(tmp_path, "one", network, **changes)
    with pytest.raises(SourceError, match=message):
        zoo.load("one", tmp_path)


def test_a_card_of_version_1_had_robust_accuracies_by_sentences(tmp_path, network):
    said = {"sPGD projected, k=20, 100 steps": 0.5, "Sparse-RS, k=20, 500 queries, 200 images": 0.25}
    add_model(tmp_path, "one", network, robust_accuracy=said, measured="float32; robust: the first 1000 of them")
    assert zoo.card("one", tmp_path).robust == [
        zoo.Figure("spgd-projected", 0.5, 1000, 20, steps=100),
        zoo.Figure("sparse-rs", 0.25, 200, 20, queries=500),
    ]


def test_the_lowest_figure_is_that_of_the_budget_trained_for_on_enough_images(tmp_path, network):
    row, pixels = ({"k": k, "pattern": {"kind": kind}, "eps": 1.0} for k, kind in ((1, "Rows"), (20, "Pixels")))
    figures = [
        zoo.Figure("saa+", 0.10, 1000, **pixels, steps=9),
        zoo.Figure("saa+", 0.40, 200, **row, steps=9),
        zoo.Figure("saa+", 0.52, 1000, **row, steps=9),
        zoo.Figure("saa+", 0.51, 1000, **row, steps=9, seed=1),
        zoo.Figure(zoo.ALL_RUNS, 0.48, 1000, **row, runs=2),
    ]

    def lowest(*, budgets, robust):
        add_model(tmp_path, "one", network, budgets=budgets, robust=[vars(one) for one in robust])
        return zoo.card("one", tmp_path).lowest

    assert lowest(budgets=[row, pixels], robust=figures) == figures[4]
    assert str(figures[4]) == "all 2 runs, k=1, rows, 1000 images"
    assert lowest(budgets=[row], robust=figures[:4]) == figures[3]
    assert str(figures[3]) == "saa+, k=1, rows, 9 steps, 1000 images, seed 1"
    assert lowest(budgets=[row], robust=figures[:2]) == figures[1], "no other has more images"
    assert lowest(budgets=[row], robust=figures[:1]) is None, "not measured under its budget"
    assert lowest(budgets=[], robust=figures) == figures[0], "an older card"


def test_a_card_that_is_not_json(tmp_path, network):
    add_model(tmp_path, "one", network)
    (tmp_path / "one.json").write_text("{")
    with pytest.raises(SourceError, match=r"one.json is not a valid card: Expecting property name"):
        zoo.card("one", tmp_path)


def test_a_card_cannot_be_changed(tmp_path, network):
    add_model(tmp_path, "one", network)
    with pytest.raises(FrozenInstanceError):
        zoo.card("one", tmp_path).seed = 1


@pytest.mark.parametrize("name", zoo.bundled_names())
def test_shipped_models(name):
    about, network = zoo.card(name), zoo.load(name)
    assert about.name == name
    assert about.parameters == sum(p.numel() for p in network.parameters())
    x, y = zoo.bundled_images()
    with torch.no_grad():
        accuracy = (network(x).argmax(1) == y).float().mean().item()
    assert accuracy == pytest.approx(about.clean_accuracy, abs=0.06)  # 500 of 10,000 images
    assert BUNDLED.joinpath(f"{name}.safetensors").stat().st_size < 2_000_000


def test_bundled_images():
    x, y = zoo.bundled_images()
    assert x.shape == (500, 3, 32, 32)
    assert x.dtype == torch.float32
    assert y.shape == (500,)
    assert y.dtype == torch.int64
    assert x.min() == 0
    assert x.max() == 1
    assert torch.equal((x * 255).round() / 255, x), "on the 8-bit grid"
    assert y.unique().tolist() == list(range(len(zoo.CIFAR10_CLASSES)))
    assert [zoo.CIFAR10_CLASSES[i] for i in y[:4]] == ["cat", "ship", "ship", "airplane"]


def test_bundled_images_are_lossless_and_small():
    x, _ = zoo.bundled_images()
    pixels = (x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    about = json.loads(BUNDLED.joinpath(f"{IMAGES}.json").read_text())
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == about["pixels_sha256"]
    assert tuple(about["classes"]) == zoo.CIFAR10_CLASSES
    assert BUNDLED.joinpath(f"{IMAGES}.webp").stat().st_size < 1_000_000


def test_some_of_the_bundled_images():
    x, y = zoo.bundled_images(7)
    every, labels = zoo.bundled_images()
    assert torch.equal(x, every[:7])
    assert torch.equal(y, labels[:7])


@pytest.mark.parametrize("n", [0, -1, 501])
def test_more_images_than_there_are(n):
    with pytest.raises(SourceError, match=rf"n={n}, but 500 images are bundled; use 1 <= n <= 500"):
        zoo.bundled_images(n)
