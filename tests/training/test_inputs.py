"""Networks and images by name or as they are, and what becomes of the images to test on."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.sources import Data, load_data
from sparsepgd.training.inputs import TEST
from support.quadrants import network, quadrants, same_weights

QUICK: dict[str, Any] = {"epochs": 1, "batch": 16, "steps": 1, "watch_steps": 0}


@pytest.fixture
def data(tmp_path: Path) -> str:
    x, y = quadrants(60)
    np.savez(tmp_path / "q.npz", x=x.numpy(), y=y.numpy())
    return f"npz:{tmp_path / 'q.npz'}"


def test_a_network_by_name_gets_a_card_and_images_by_name_bring_those_to_test_on(data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained = sp.train("digits_resnet", data, "sat", sp.Budget(k=2), out=out, device="cpu", **QUICK)
    assert trained.card == zoo.card("model", out)
    assert same_weights(zoo.load("model", out), trained.model)
    assert (trained.card.architecture, trained.card.command) == ("digits_resnet", "sp.train")
    assert trained.card.arguments == {"num_classes": 4}
    assert trained.figures is not None
    assert trained.figures.robust == trained.card.robust
    assert {(one.k, one.images, one.steps) for one in trained.card.robust} == {(2, 12, 100)}
    assert trained.set_apart
    assert trained.test is not None
    kept = load_data(f"npz:{out / TEST}")
    assert torch.equal(kept.x, trained.test.x)
    assert len(kept.x) == 12
    again = sp.train("digits_resnet", data, "sat", sp.Budget(k=2), out=out, device="cpu", **QUICK)
    assert again.card == trained.card


def test_the_name_of_a_fresh_network_may_say_its_activation(data: str, tmp_path: Path) -> None:
    made = sp.train("digits_resnet:softplus", data, "plain", out=tmp_path / "run", device="cpu", **QUICK)
    assert made.card is not None
    assert (made.card.architecture, made.card.arguments["activation"]) == ("digits_resnet", "softplus")
    again = zoo.load("model", tmp_path / "run")
    assert sum(isinstance(module, torch.nn.Softplus) for module in again.modules()) == 2
    with pytest.raises(UnsupportedError, match="activation='gelu'; use one of relu, softplus"):
        sp.train("digits_resnet:gelu", data, "plain", device="cpu", **QUICK)
    with pytest.raises(SourceError, match="vgg11:relu: vgg11 has a fixed activation; use vgg11"):
        sp.train("vgg11:relu", data, "plain", device="cpu", **QUICK)


def test_images_to_test_on_may_be_handed_over_and_give_figures_without_a_folder() -> None:
    test = Data(*quadrants(10, seed=1), ("a", "b", "c", "d"))
    trained = sp.train(network(), quadrants(40), "plain", sp.Budget(k=2), test=test, **QUICK)
    with torch.no_grad():
        clean = float((trained.model(test.x).argmax(1) == test.y).float().mean())
    assert trained.figures is not None
    assert trained.figures.clean_accuracy == pytest.approx(clean, abs=1e-5)
    assert (trained.card, trained.set_apart) == (None, False)
    assert trained.test is not None
    assert torch.equal(trained.test.x, test.x)
    inside = sp.train(
        Tuple(network()), quadrants(40), "plain", sp.Budget(k=2), test=test, logits=itemgetter(0), **QUICK
    )
    assert inside.figures == trained.figures
    alone = sp.train(network(), quadrants(40), "plain", sp.Budget(k=2), **QUICK)
    assert (alone.figures, alone.test) == (None, None)


def test_images_to_test_on_without_class_names_have_those_of_the_data(tmp_path: Path) -> None:
    x, y = quadrants(20)
    np.savez(tmp_path / "q.npz", x=x.numpy(), y=y.numpy(), class_names=["a", "b", "c", "d", "e"])
    name, model = f"npz:{tmp_path / 'q.npz'}", "digits_resnet"
    trained = sp.train(model, name, "plain", test=quadrants(6, seed=1), out=tmp_path / "run", device="cpu", **QUICK)
    assert trained.card is not None
    assert trained.card.classes == ["a", "b", "c", "d", "e"]
    assert trained.card.arguments == {"num_classes": 5}


@pytest.mark.parametrize("by_name", [False, True])
def test_images_to_test_on_may_number_the_classes_in_another_order(by_name: bool, tmp_path: Path) -> None:
    (x, y), names = quadrants(20), ("a", "b", "c", "d")
    np.savez(tmp_path / "q.npz", x=x.numpy(), y=y.numpy(), class_names=names)
    data = f"npz:{tmp_path / 'q.npz'}" if by_name else Data(x, y, names)
    x, y = quadrants(6, seed=1)
    trained = sp.train(network(), data, "plain", test=Data(x, 3 - y, names[::-1]), **QUICK)
    assert trained.test is not None
    assert torch.equal(trained.test.y, y)
    trained = sp.train(network(), data, "plain", test=(x, y), **QUICK)
    assert trained.test is not None
    assert trained.test.class_names == names


@pytest.mark.parametrize("name", ["nothing", "fcn_resnet50", "raft_large"])
def test_torchvision_networks_must_be_classifiers(name: str) -> None:
    with pytest.raises(SourceError, match=rf"torchvision has no classifier '{name}'; e\.g\. torchvision:resnet34"):
        sp.train(f"torchvision:{name}", quadrants(8), "plain", **QUICK)


class Tuple(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.inner(x),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model": network(), "device": "cpu"}, "device='cpu' was given with a module"),
        ({"validation": quadrants(4), "held_out": 3}, "held_out=3 with validation images; use one of them"),
        ({"size": 8}, "size=8; use at least 1, for data by name"),
        ({"data": TensorDataset(*quadrants(8))}, r"data are of type TensorDataset; use a pair \(x, y\)"),
        ({"data": list(zip(*quadrants(8), strict=True))}, r"data are of type list; use a pair \(x, y\)"),
    ],
)
def test_what_does_not_go_together_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sp.train(**{"model": "digits_resnet", "data": quadrants(8), "method": "plain", **QUICK, **words})
