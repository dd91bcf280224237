"""Models by name, from all kinds of sources, and what is said when they are not there."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import MissingPackageError, NoGradientError, SourceError, UnsupportedError
from sparsepgd.sources import Data, load_model
from sparsepgd.sources.pictures import Framing
from sparsepgd.zoo.normalise import Normalisation, parse
from support.tiny_zoo import network, put

FACTORY = """
import torch, sparsepgd as sp
from sparsepgd.zoo.normalise import Normalisation
def tiny():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
def number():
    return 3
def known():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    return sp.Source("known", model, ("a", "b", "c"), 2, Normalisation((0.5,) * 3, (2.0,) * 3))
"""
X = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Evil:
    """What a pickle may do when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_zoo_models_come_with_class_names_and_what_is_shown_before_a_run() -> None:
    source = load_model("zoo:small-plain")
    assert source.class_name(3) == "cat"
    assert source.class_name(12) == "class 12"
    assert source.about == "small-plain: input 32x32; normalised inside the network; 10 classes"
    assert load_model("small-plain").about == source.about  # without zoo: in front
    assert load_model("small-plain", normalise="none").about == source.about, "the network still normalises its input"


def test_a_factory_in_a_file_makes_the_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    source = load_model(f"{file}:tiny")
    assert source.model(torch.rand(2, 3, 2, 2)).shape == (2, 3)
    assert source.model.training, "as the factory left it, so that it can be warned of"
    with pytest.raises(SourceError, match=r"has no function 'huge'; it has known, number, tiny"):
        load_model(f"{file}:huge")
    with pytest.raises(SourceError, match="returned a int; expected a torch"):
        load_model(f"{file}:number")


def test_a_factory_may_say_more_and_its_normalisation_is_put_around_the_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    source, x = load_model(f"{file}:known"), torch.rand(2, 3, 2, 2)
    assert (source.classes, source.size) == (("a", "b", "c"), 2)
    assert "mean (0.5, 0.5, 0.5), std (2, 2, 2)" in source.about
    inner = source.model.model  # type: ignore[union-attr]
    torch.testing.assert_close(source.model(x), inner((x - 0.5) / 2))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "no model 'nothing'; use zoo:NAME"),
        ("zoo:nothing", "no model 'nothing'; use one of: .*small-plain"),
        ("nowhere.py:f", "no file 'nowhere.py'"),
        ("nowhere.pt2", "no file 'nowhere.pt2'; use a file written by torch.export.save"),
        ("nowhere.pth", "no file 'nowhere.pth'"),
        ("trained:nowhere", "no trained model in 'nowhere'"),
        ("resnet18", "resnet18 is a network without weights; give a file: --weights"),
        ("torchvision:resnet35", "torchvision has no classifier 'resnet35'; did you mean resnet"),
        ("torchvision:resnet34@V9", "resnet34 has no weights 'V9'; use IMAGENET1K_V1"),
    ],
)
def test_unknown_models_are_refused(name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        load_model(name)
    with pytest.raises(SourceError, match=message):
        load_model(Path(name))


def test_a_model_without_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(4, 2, device='meta')\n")
    with pytest.raises(SourceError, match=r"m\.py:make holds no values, its weights are on the device meta; build it"):
        load_model(f"{tmp_path / 'm.py'}:make")


@pytest.mark.parametrize("factory", ["tiny", "known"])
def test_a_network_in_a_file_takes_weights_as_training_writes_them(tmp_path: Path, factory: str) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    name, x = f"{tmp_path / 'mine.py'}:{factory}", torch.rand(2, 3, 2, 2)
    trained = load_model(name).model.eval()
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    torch.save(getattr(trained, "model", trained).state_dict(), tmp_path / "w.pth")  # without the normalisation
    for file in (tmp_path / "w.safetensors", tmp_path / "w.pth"):
        source = load_model(name, weights=file)
        assert torch.equal(source.model(x), trained(x))  # type: ignore[operator]
        assert not source.model.training
        assert source.name.endswith(f"{factory}:w")
    save_file(nn.Linear(12, 3).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(SourceError, match=r"these weights do not fit .*: 1.weight is missing"):
        load_model(name, weights=tmp_path / "other.safetensors")
    torch.save({"state_dict": trained.state_dict()}, tmp_path / "w.pth")
    with pytest.raises(SourceError, match=r"w\.pth' contains more than a state dict; load it in the factory of"):
        load_model(name, weights=tmp_path / "w.pth")


def test_a_trained_model_has_the_class_names_of_its_card(tmp_path: Path) -> None:
    put(tmp_path, "model", network(), classes=["owl", "fox", "elk", "emu"])
    source = load_model(f"trained:{tmp_path}")
    assert source.classes == ("owl", "fox", "elk", "emu")
    assert Data(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), ("elk", "owl")).for_classes(source.classes).y[0] == 2


def test_weights_of_another_network_in_the_folder_of_a_training_are_named(tmp_path: Path) -> None:
    save_file(nn.Linear(12, 3).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match=r"no trained model in .*: --model NETWORK --weights .*model\.safetensors"):
        load_model(f"trained:{tmp_path}")


def test_weights_beside_a_model_that_has_its_own_are_refused(tmp_path: Path) -> None:
    for name in ("zoo:small-plain", "small-plain"):
        with pytest.raises(SourceError, match=f"{name} has its own weights"):
            load_model(name, weights=tmp_path / "w.pt")


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_network_by_name_takes_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    own, file = zoo.load("small-plain"), tmp_path / f"w.{suffix}"
    state = {key: value.contiguous() for key, value in own.state_dict().items()}
    save_file(state, file) if suffix == "safetensors" else torch.save({"state_dict": state}, file)
    source, (x, _) = load_model("small_preact_resnet", weights=file), zoo.bundled_images(2)
    assert torch.equal(source.model(x), own(x))
    assert source.size == 32
    assert "normalised inside the network" in source.about
    assert load_model("small_preact_resnet:relu", weights=file).name == "small_preact_resnet:relu:w"
    with pytest.raises(SourceError, match="the batch normalisation shows small_preact_resnet:relu"):
        load_model("small_preact_resnet:softplus", weights=file)


def test_weights_of_unknown_origin_are_not_run(tmp_path: Path) -> None:
    mark, file = tmp_path / "ran", tmp_path / "w.pth"
    torch.save({"state_dict": zoo.load("small-plain").state_dict(), "more": Evil(mark)}, file)
    with pytest.raises(SourceError, match=r"is a pickle with more than tensors; reading it may run code.*--trust"):
        load_model("small_preact_resnet", weights=file)
    assert not mark.exists()
    load_model("small_preact_resnet", weights=file, trust=True)
    assert mark.exists()


def test_a_pickled_module_is_refused_unless_trusted(tmp_path: Path) -> None:
    model, file = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval(), tmp_path / "whole.pt"
    torch.save(model, file)
    with pytest.raises(SourceError, match=r"whole.pt' is a pickle; reading it may run code.*--trust"):
        load_model(str(file))
    assert torch.equal(load_model(str(file), trust=True).model(X), model(X))
    torch.save(model.state_dict(), file)
    with pytest.raises(SourceError, match="contains a OrderedDict, not a module; for weights"):
        load_model(str(file), trust=True)


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"hello world", b"junk", b"\x80\x04K\x01."])
def test_unreadable_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError, match=r"as weights: .*; give a .safe|is a pickle|the checkpoint is a int"):
            load_model("resnet18", weights=tmp_path / name)
    with pytest.raises(SourceError, match=r"no file 'nowhere.pth'; give a .safetensors"):
        load_model("resnet18", weights="nowhere.pth")


def test_torchvision_gives_size_normalisation_and_takes_weights_with_their_classes(tmp_path: Path) -> None:
    from torchvision.models import squeezenet1_1

    torch.manual_seed(0)
    own, file = squeezenet1_1(weights=None, num_classes=7).eval(), tmp_path / "w.safetensors"
    save_file(own.state_dict(), file)
    source, x = load_model("torchvision:squeezenet1_1", weights=file), torch.rand(1, 3, 64, 64)
    imagenet = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (source.size, source.normalisation) == (Framing(224, 256, "bilinear"), imagenet)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (imagenet.mean, imagenet.std))
    torch.testing.assert_close(source.model(x), own((x - mean) / std))
    bare = load_model("torchvision:squeezenet1_1", weights=file, normalise="none")
    assert torch.equal(bare.model(x), own(x))
    assert "normalised not at all" in bare.about
    with pytest.raises(SourceError, match="so it does not belong to resnet18"):
        load_model("torchvision:resnet18", weights=file)


def test_weights_that_cannot_be_fetched_are_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(
        SourceError, match=r"torchvision:squeezenet1_1 cannot be downloaded from https.*no route.*--weights FILE"
    ):
        load_model("torchvision:squeezenet1_1")


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("timm", "timm:resnet18", "timm"),
        ("robustbench", "robustbench:Standard", "robustbench"),
        ("onnxruntime", "model.onnx", "onnx"),
    ],
)
def test_a_missing_package_is_named_with_its_pip_command(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"{module}.utils", raising=False)
    with pytest.raises(
        MissingPackageError,
        match=rf"{name}'? needs {module}, which is not installed; pip install 'sparsepgd\[{extra}\]'",
    ):
        load_model(name)


def test_timm_gives_size_and_normalisation(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    own = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=6).eval()
    torch.save(own.state_dict(), tmp_path / "w.pth")
    source, x = load_model("timm:mobilenetv3_small_050", weights=tmp_path / "w.pth"), torch.rand(1, 3, 64, 64)
    assert source.size == Framing(224, 256, "bicubic")
    assert isinstance(source.normalisation, Normalisation)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (source.normalisation.mean, source.normalisation.std))
    torch.testing.assert_close(source.model(x), own((x - mean) / std))
    with pytest.raises(SourceError, match=r"timm has no model 'resnet_18'; did you mean"):
        load_model("timm:resnet_18")


@pytest.mark.filterwarnings("ignore")
def test_robustbench_loads_by_its_own_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("robustbench.utils", reason="needs robustbench", exc_type=ImportError)
    from robustbench.model_zoo import model_dicts

    monkeypatch.chdir(tmp_path)
    entry = next(zoos[t] for d, zoos in model_dicts.items() for t in zoos if (d.value, t.value) == ("cifar10", "L2"))
    own = entry["Rice2020Overfitting"]["model"]().eval()
    place = tmp_path / "models" / "cifar10" / "L2"
    place.mkdir(parents=True)
    torch.save(own.state_dict(), place / "Rice2020Overfitting.pt")
    source, (x, _) = load_model("robustbench:cifar10/L2/Rice2020Overfitting"), zoo.bundled_images(2)
    assert torch.equal(source.model(x), own(x))
    assert (source.size, len(source.classes)) == (Framing(32), 10)
    with pytest.raises(SourceError, match="no model 'Rice2020Overfit' for cifar10, Linf; did you mean Rice2020"):
        load_model("robustbench:Rice2020Overfit")
    with pytest.raises(SourceError, match="use robustbench:DATASET/THREAT/NAME with cifar10"):
        load_model("robustbench:mnist/L1/Any")


def test_a_threat_without_models_in_robustbench_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package, which need not be installed."""
    cifar10, imagenet, linf = Enum("Keys", {"cifar10": "cifar10", "imagenet": "imagenet", "linf": "Linf"})
    package: Any = ModuleType("robustbench")
    package.model_zoo = SimpleNamespace(model_dicts={cifar10: {linf: {"Standard": {}}}, imagenet: {linf: {}}})
    package.utils = SimpleNamespace(load_model=lambda name, dataset, threat_model: {}[name])
    monkeypatch.setitem(sys.modules, "robustbench", package)
    for name, message in (
        ("imagenet/L2/Standard", "no model 'Standard' for imagenet, L2; see the list of its models"),
        ("cifar10/Linf/Standart", "no model 'Standart' for cifar10, Linf; did you mean Standard"),
    ):
        with pytest.raises(SourceError, match=message):
            load_model(f"robustbench:{name}")


def test_words_of_a_normalisation() -> None:
    assert parse("none") is None
    assert parse("0.5,0.5/0.1,0.2") == Normalisation((0.5, 0.5), (0.1, 0.2))
    for wrong in ("image", "0.5", "0.5,a/1,1"):
        with pytest.raises(UnsupportedError, match=r"normalise .*; use none, imagenet, cifar10"):
            parse(wrong)
    for wrong in ("0.5/0", "0.5,0.5/1", "nan/1", "0.5/inf", "0.5/nan"):
        with pytest.raises(UnsupportedError, match="expected one mean and one positive std per channel"):
            parse(wrong)


def test_what_is_exported_at_the_top() -> None:
    assert sp.load_model is load_model
    assert issubclass(NoGradientError, RuntimeError)
