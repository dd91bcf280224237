"""`spgd evaluate` on models and data of a user's own: what is shown before the run, what the record says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from sparsepgd import zoo
from sparsepgd.cli import app
from sparsepgd.errors import BudgetError, PatternError, SourceError, UnsupportedError
from sparsepgd.sources.pictures import save_image
from sparsepgd.speed import bench
from support.grey_pictures import grey


def spgd(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_weights_in_a_file_and_a_folder_of_pictures(tmp_path: Path) -> None:
    save_file(
        {k: v.contiguous() for k, v in zoo.load("small-plain").state_dict().items()}, tmp_path / "mine.safetensors"
    )
    x, y = zoo.bundled_images(40)
    for number, (image, label) in enumerate(zip(x, y.tolist(), strict=True)):
        folder = tmp_path / "pictures" / zoo.CIFAR10_CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        save_image(image, folder / f"{number:02d}.png")
    model = ("--model", "small_preact_resnet", "--weights", tmp_path / "mine.safetensors")
    data = ("--data", f"folder:{tmp_path / 'pictures'}", "-n", 20, "--choose", "balanced", "--size", 32)
    said = spgd("evaluate", *model, *data, "--k", 5, "--steps", 3, "--out", tmp_path / "run", "-q")
    assert "small_preact_resnet:mine: input 32x32; normalised inside the network" in said
    assert "20 of 3x32x32, labels 0 to 9, 10 classes" in said
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["about"]["class_names"] == list(zoo.CIFAR10_CLASSES)
    assert record["clean_accuracy"] > 0.6, "the labels are those of the pictures"
    assert "reported successes confirmed" in spgd("verify", tmp_path / "run", *model)
    assert "reported successes confirmed" in spgd("verify", tmp_path / "run", *model, *data[:2], *data[4:])


def test_features_and_groups_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\ndef net():\n    model = torch.nn.Linear(6, 2, bias=False).eval()\n"
        "    model.weight.data = torch.tensor([[0.0] * 6, [1.0, 1, -2, 1, 1, -1]])\n    return model\n"
    )
    x = np.random.default_rng(0).random((9, 6), np.float32)
    y = (x @ np.array([1.0, 1, -2, 1, 1, -1], np.float32) > 0).astype(np.int64)
    np.savez(tmp_path / "d.npz", x=x, y=y, class_names=np.array(["low", "high"]))
    (tmp_path / "groups.json").write_text("[[0, 1], [2, 3], [4, 5]]")
    words = ("--model", f"{tmp_path / 'm.py'}:net", "--data", f"npz:{tmp_path / 'd.npz'}", "--out", tmp_path / "run")
    said = spgd("evaluate", *words, "--pattern", f"groups:{tmp_path / 'groups.json'}", "--k", 1, "--steps", 20, "-q")
    assert "9 of 6, labels 0 to 1, 2 classes" in said
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["configuration"]["attack"]["budget"]["pattern"]["sets"] == [[0, 1], [2, 3], [4, 5]]
    assert any(row["fooled"] for row in record["rows"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Which features are changed" in page
    assert {"low", "high"} <= set(re.findall(r"<text[^>]*>(\w+)", page))


def test_names_of_folders_reach_the_record_and_the_page(tmp_path: Path) -> None:
    for number, name in enumerate(("owl", "fox", "owl", "fox", "elk", "elk")):
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        image = torch.full((3, 8, 8), 0.2) + 0.1 * number
        save_image(image, tmp_path / "data" / name / f"{number}.png")
    (tmp_path / "m.py").write_text(
        "import torch\nfrom sparsepgd.sources import Source\n"
        "def net():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5)).eval()\n"
        "def named():\n    return Source('named', net(), ('elk', 'fox', 'owl', 'hen', 'cow'))\n"
        "def shuffled():\n    return Source('shuffled', net(), ('owl', 'elk', 'fox', 'hen', 'cow'))\n"
        "def other():\n    return Source('other', net(), ('car', 'bus', 'van', 'cab', 'bike'))\n"
    )

    def evaluated(factory: str) -> tuple[str, list[str], list[int], str]:
        run = tmp_path / factory
        words = ("--model", f"{tmp_path / 'm.py'}:{factory}", "--data", f"folder:{tmp_path / 'data'}", "--out", run)
        said = spgd("evaluate", *words, "--k", 2, "--steps", 2, "-q")
        record = json.loads((run / "run.json").read_text())
        labels = [row["label"] for row in record["rows"]]
        return said, record["about"]["class_names"], labels, (run / "report.html").read_text()

    said, names, labels, page = evaluated("net")
    assert (names, labels) == (["elk", "fox", "owl"], [0, 1, 2, 0, 1, 2])
    for words in ('"0": "elk"', '"1": "fox"', '"2": "owl"'):  # of the gallery
        assert words in page
    assert {"elk", "fox", "owl"} <= set(re.findall(r"<text[^>]*>(\w+)", page))  # of the figures
    assert evaluated("named")[1] == ["elk", "fox", "owl", "hen", "cow"]
    assert evaluated("shuffled")[1:3] == (["owl", "elk", "fox", "hen", "cow"], [1, 2, 0, 1, 2, 0])
    said, names, labels, _ = evaluated("other")
    assert (names, labels) == (["elk", "fox", "owl", "cab", "bike"], [0, 1, 2, 0, 1, 2])
    assert "warning: other: class 0 is 'elk' in the data and 'car' for the model" in said


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("--choose", "last"), UnsupportedError, "choose 'last'; use first or balanced"),
        (("--model", "resnet18"), SourceError, "resnet18 is a network without weights"),
        (("--model", "zoo:small-plain", "--normalise", "x"), UnsupportedError, "normalise 'x'; use none, imagenet"),
        (("--pattern", "groups:nowhere.json"), PatternError, "groups of 'nowhere.json': .*expected JSON"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CliRunner().invoke(app, ["evaluate", "--no-save", *words], catch_exceptions=False)


@pytest.fixture(scope="module")
def three_classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for weights in a file, and pictures of three classes, all of them right, in folders with their names.

    The folders are numbered 0 to 2, and the model has these classes at 2, 5 and 9: what does not renumber finds 0 %.
    """
    place = tmp_path_factory.mktemp("three")
    network = zoo.load("small-plain")
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, place / "mine.safetensors")
    (place / "m.py").write_text(
        "from sparsepgd import zoo\nfrom sparsepgd.sources import Source\n"
        "def net():\n    return Source('named', zoo.load('small-plain'), zoo.CIFAR10_CLASSES, 32)\n"
    )
    x, y = zoo.bundled_images(120)
    with torch.no_grad():
        right = network(x).argmax(1) == y
    for number in torch.nonzero(right & torch.isin(y, torch.tensor([2, 5, 9]))).flatten().tolist():
        folder = place / "pictures" / zoo.CIFAR10_CLASSES[int(y[number])]
        folder.mkdir(parents=True, exist_ok=True)
        save_image(x[number], folder / f"{number:03d}.png")
    return "--model", f"{place / 'm.py'}:net", "--data", f"folder:{place / 'pictures'}", "-n", "6", "-q"


def test_evaluate_compare_and_bench_number_the_labels_as_the_model_does(
    three_classes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    few = (*three_classes, "--k", 1)
    spgd("evaluate", *few, "--eps", "1/255", "--steps", 2, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["clean_accuracy"] == 1
    spgd("compare", *few, "--eps", "1/255", "--attack", "spgd", "--equal-cost", 10, "--out", tmp_path / "c.json")
    (line,) = json.loads((tmp_path / "c.json").read_text())["lines"]
    assert line["clean_accuracy"] == 1
    spgd("bench", *few, "--steps", 2, "--out", tmp_path / "b.json")
    assert all(row["robust"][0] >= 3 for row in json.loads((tmp_path / "b.json").read_text())["attacks"])


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_compare_and_bench_take_weights_sizes_and_choices_as_evaluate_does(
    command: str, three_classes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    place = Path(three_classes[1]).parent
    words = ("--weights", place / "mine.safetensors", "--size", 24, "--choose", "first", "--normalise", "none")
    length = ("--attack", "spgd", "--equal-cost", 10) if command == "compare" else ("--steps", 2)
    out = tmp_path / "out.json"
    spgd(command, "--model", "small_preact_resnet", *three_classes[2:], "--k", 1, *words, *length, "--out", out)
    record = json.loads(out.read_text())
    assert record["model"] == "small_preact_resnet:mine"
    assert record.get("shape", [3, 24, 24]) == [3, 24, 24]
    with pytest.raises(UnsupportedError, match="choose 'last'; use first or balanced"):
        CliRunner().invoke(app, [command, "--choose", "last"], catch_exceptions=False)


def test_compare_and_bench_warn_of_classes_with_other_names(
    tmp_path: Path, three_classes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REPEAT", 0.01)
    (tmp_path / "m.py").write_text(
        "from sparsepgd import zoo\nfrom sparsepgd.sources import Source\n"
        "def other():\n    return Source('other', zoo.load('small-plain'), ('car', 'bus', 'van'), 32)\n"
    )
    words = ("--model", f"{tmp_path / 'm.py'}:other", *three_classes[2:], "--k", 1)
    message = "warning: other: class 0 is 'bird' in the data and 'car' for the model"
    assert message in spgd("compare", *words, "--attack", "spgd", "--equal-cost", 10)
    assert message in spgd("bench", *words, "--steps", 2)


def test_several_models_have_labels_and_sizes_of_their_own(tmp_path: Path) -> None:
    for number, name in enumerate(("owl", "fox", "elk") * 2):
        grey(tmp_path / "data" / name / f"{number}.png", 25 * number, (16, 16))
    (tmp_path / "m.py").write_text(
        "import torch\nfrom sparsepgd.sources import Source\n"
        "def net(side):\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * side**2, 3)).eval()\n"
        "def first():\n    return Source('first', net(16), ('elk', 'fox', 'owl'), 16)\n"
        "def second():\n    return Source('second', net(8), ('owl', 'elk', 'fox'), 8)\n"
    )
    models = [word for name in ("first", "second") for word in ("--model", f"{tmp_path / 'm.py'}:{name}")]
    words = (*models, "--data", f"folder:{tmp_path / 'data'}", "--k", 1, "--steps", 2, "-q")
    said = spgd("evaluate", *words, "--out", tmp_path / "runs")
    assert "for first: 6 of 3x16x16, labels 0 to 2, 3 classes" in said
    assert "for second: 6 of 3x8x8, labels 0 to 2, 3 classes" in said
    records = {name: json.loads((tmp_path / "runs" / name / "run.json").read_text()) for name in ("first", "second")}
    assert {name: [row["label"] for row in record["rows"]] for name, record in records.items()} == {
        "first": [0, 1, 2, 0, 1, 2],
        "second": [1, 2, 0, 1, 2, 0],
    }
    assert (tmp_path / "runs" / "report.html").stat().st_size > 10_000
    with pytest.raises(BudgetError, match="k=100 pixels, but a 8x8 image has 64"):
        CliRunner().invoke(app, ["evaluate", "--no-save", *map(str, words), "--k", "100"], catch_exceptions=False)
