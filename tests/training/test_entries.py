"""A training run as an entry of the zoo, with figures that were measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.training.api import Trained
from sparsepgd.training.entries import Figures, add_robust, measure, round_to_half, zoo_entry
from sparsepgd.training.settings import make_settings
from sparsepgd.training.state import write_weights
from support.quadrants import network, quadrants, same_weights

ENSEMBLES = ["saa+", "saa"]


def test_a_run_becomes_an_entry_that_the_zoo_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data, test = quadrants(60), quadrants(20, seed=1)
    model = zoo.digits_resnet(num_classes=4)
    trained = sp.train(model, data, "sat", sp.Budget(k=1), epochs=1, batch=20, steps=2, seed=3, held_out=5)
    arguments = {"num_classes": 4}
    card = zoo_entry(trained, tmp_path / "new", "mine", "digits_resnet", test, arguments=arguments, images=8, steps=4)
    assert same_weights(zoo.load("mine", tmp_path / "new"), model)
    assert card == zoo.card("mine", tmp_path / "new")
    assert (card.method, card.seed, card.epochs, card.parameters) == ("sat", 3, 1, 19_444)
    with torch.no_grad():
        clean = float((model(test[0]).argmax(1) == test[1]).float().mean())
    assert card.clean_accuracy == pytest.approx(clean, abs=1e-5)
    assert [str(one) for one in card.robust] == [f"{one}, k=1, 4 steps, 8 queries, 8 images" for one in ENSEMBLES]
    assert all(one.robust_accuracy * 8 == round(one.robust_accuracy * 8) for one in card.robust)
    assert (card.robust[0].pattern, card.robust[0].eps, card.robust[0].seed) == ({"kind": "Pixels"}, 1.0, 0)
    assert len(card.curves["loss"]) == 1


def test_a_curve_without_a_value_in_the_first_epochs_goes_onto_the_card(trained: Trained, tmp_path: Path) -> None:
    late = replace(trained, curves={"loss": [1.0, 0.5], "clean": [None, 0.1234567]})
    assert written(late, tmp_path, half=False) == zoo.card("mine", tmp_path)
    assert zoo.card("mine", tmp_path).curves == {"loss": [1.0, 0.5], "clean": [None, 0.12346]}


def test_the_figures_are_those_of_the_attacks() -> None:
    model, (x, y) = network().eval(), quadrants(12)
    y = model(x).argmax(1)
    y[:3] = (y[:3] + 1) % 4
    found = measure(model, (x, y), [sp.Budget(k=3)], images=6, steps=5)
    standard, paper = (sp.SparseAutoAttack(sp.Budget(k=3), 5, 10, version=one) for one in ("standard", "paper"))
    assert found.clean_accuracy == 0.75
    assert [one.attack for one in found.robust] == ENSEMBLES
    for figure, attack in zip(found.robust, (standard, paper), strict=True):
        assert figure.robust_accuracy == pytest.approx(attack(model, x[:6], y[:6]).robust_accuracy, abs=1e-5)
    assert found.measured == "float32; clean: 12 test images; robust: the first 6 of them"


@pytest.fixture
def trained() -> Trained:
    torch.manual_seed(0)
    model = zoo.digits_resnet(num_classes=4).eval()
    return Trained(model, make_settings("sat", sp.Budget(k=3), {"epochs": 1}), {"loss": [1.0]}, (), 1.0)


def written(trained: Trained, folder: Path, half: bool = True) -> zoo.Card:
    words = {"arguments": {"num_classes": 4}, "images": 8, "steps": 4}
    return zoo_entry(trained, folder, "mine", "digits_resnet", quadrants(20, seed=1), half=half, **words)


def test_half_precision_is_what_is_written_what_is_loaded_and_what_the_model_has_afterwards(
    trained: Trained, tmp_path: Path
) -> None:
    before = {key: value.clone() for key, value in trained.model.state_dict().items()}
    card = written(trained, tmp_path)
    stored, after = load_file(tmp_path / "mine.safetensors"), trained.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before), "rounding shows at all"
    for key, value in before.items():
        wide = value.is_floating_point()
        assert stored[key].dtype == (torch.float16 if wide else torch.int64)
        assert after[key].dtype == value.dtype
        assert torch.equal(after[key], value.half().float() if wide else value)
    assert same_weights(zoo.load("mine", tmp_path), trained.model)
    assert card.measured.startswith("weights rounded to float16; float32; clean: 20 test images")
    size = (tmp_path / "mine.safetensors").stat().st_size
    assert size < 2.5 * card.parameters


def test_the_figures_of_an_entry_in_half_precision_are_those_of_the_rounded_weights(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(model: torch.nn.Module, *rest: Any) -> Figures:
        seen.append(all(torch.equal(p, p.half().float()) for p in model.parameters()))
        return measure(model, *rest)

    monkeypatch.setattr("sparsepgd.training.entries.measure", spy)
    card = written(trained, tmp_path)
    assert seen == [True]
    again = measure(zoo.load("mine", tmp_path), quadrants(20, seed=1), [sp.Budget(k=3)], 8, 4)
    assert (card.clean_accuracy, card.robust) == (again.clean_accuracy, again.robust)


def test_without_half_the_weights_stay_as_they_were_trained(trained: Trained, tmp_path: Path) -> None:
    before = {key: value.clone() for key, value in trained.model.state_dict().items()}
    card = written(trained, tmp_path, half=False)
    assert all(torch.equal(before[key], value) for key, value in zoo.load("mine", tmp_path).state_dict().items())
    assert "float16" not in card.measured


def test_weights_beyond_half_precision_are_refused_and_left_alone() -> None:
    model = network()
    model[1].running_var.fill_(1e6)  # type: ignore[index, union-attr, operator]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match=r"1.running_var has the value 1e\+06, beyond 65504"):
        round_to_half(model)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_further_figures_go_onto_the_card(trained: Trained, tmp_path: Path) -> None:
    old = written(trained, tmp_path)
    figures = [
        zoo.Figure("saa", 0.621234, 1000, 3, steps=10_000, queries=10_000),
        zoo.Figure("sparse-rs", 0.7, 1000, 3, queries=10_000),
    ]
    for _ in range(2):  # the same once more changes nothing
        add_robust(tmp_path, "mine", figures, "sAA and SparseRS: the first 1000")
    new = zoo.card("mine", tmp_path)
    assert new.robust == [*old.robust, replace(figures[0], robust_accuracy=0.62123), figures[1]]
    assert new.measured == f"{old.measured}; sAA and SparseRS: the first 1000"
    assert replace(new, robust=old.robust, measured=old.measured) == old
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.json", "mine.safetensors"]


def test_a_figure_of_all_runs_takes_the_place_of_one_of_fewer_runs(trained: Trained, tmp_path: Path) -> None:
    old = written(trained, tmp_path)
    assert old.budgets == [{"k": 3, "pattern": {"kind": "Pixels"}, "eps": 1.0}]
    two, three, other = (
        zoo.Figure(zoo.ALL_RUNS, share, images, **old.budgets[0], runs=runs)
        for share, images, runs in ((0.5, 9, 2), (0.4, 9, 3), (0.6, 5, 2))
    )
    for new, expected in ((two, [two]), (other, [two, other]), (three, [other, three])):
        assert add_robust(tmp_path, "mine", [new], "by hand").robust == [*old.robust, *expected]


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (("saa", 62.0), r"robust_accuracy=62.0; use at most 1; the card of mine was not changed"),
        (("saa", float("nan")), "robust_accuracy=nan; expected a number; the card of mine was not changed"),
        (("known", 0.25), "the card of mine has 0.5 under known, k=3, 9 images, not 0.25; say what differs"),
    ],
)
def test_figures_that_cannot_be_are_refused_and_the_card_stays(
    figures: tuple[str, float], message: str, trained: Trained, tmp_path: Path
) -> None:
    written(trained, tmp_path)
    add_robust(tmp_path, "mine", [zoo.Figure("known", 0.5, 9, 3)], "by hand")
    before = (tmp_path / "mine.json").read_bytes()
    with pytest.raises(UnsupportedError, match=message):
        add_robust(tmp_path, "mine", [zoo.Figure("new", 0.1, 9, 3), zoo.Figure(*figures, 9, 3)], "by hand")
    assert (tmp_path / "mine.json").read_bytes() == before


def test_figures_of_other_weights_are_refused(trained: Trained, tmp_path: Path) -> None:
    written(trained, tmp_path)
    before = (tmp_path / "mine.json").read_bytes()
    file = tmp_path / "mine.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"ab")
    with pytest.raises(SourceError, match=r"mine.safetensors has sha256 .*, but its card says"):
        add_robust(tmp_path, "mine", [zoo.Figure("saa", 0.5, 9, 3)], "by hand")
    assert (tmp_path / "mine.json").read_bytes() == before


def test_weights_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    file, weights = tmp_path / "model.safetensors", {"w": torch.arange(3.0)}
    first, inode = write_weights(file, weights), file.stat().st_ino
    assert (write_weights(file, weights), file.stat().st_ino) == (first, inode)
    assert write_weights(file, {"w": torch.zeros(3)}) != first
    assert torch.equal(load_file(file)["w"], torch.zeros(3))
