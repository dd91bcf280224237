"""`sp.train`: robust models come out, nothing else is touched, and a stopped run goes on to the same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsepgd as sp
from sparsepgd.errors import (
    DTypeError,
    LabelError,
    MissingPackageError,
    ModelError,
    RangeError,
    SourceError,
    UnsupportedError,
    UnusableDeviceError,
)
from sparsepgd.threat.norms import group_l0
from sparsepgd.training import METHODS, api
from sparsepgd.training.adversaries import Adversary, adversary
from sparsepgd.training.data import Batch
from support.quadrants import ENVIRONMENT, QUICK, network, quadrants, same_weights


def test_training_makes_a_model_robust_and_the_plain_one_is_not() -> None:
    data, (x, y) = quadrants(256, size=6), quadrants(100, seed=1, size=6)
    budget, robust = sp.Budget(k=2), {}
    for method in ("plain", "strades"):
        options: dict[str, Any] = {"batch": 32, "schedule": "one-cycle", "lr": 0.2, "multi_eps": 2, "clip": 1.0}
        trained = sp.train(network(norm=False), data, method, budget, epochs=12, steps=10, watch_steps=0, **options)
        result = sp.SparseAutoAttack(budget, steps=60, queries=100)(trained.model, x, y)
        assert result.clean_accuracy > 0.8
        robust[method] = result.robust_accuracy
    assert robust["strades"] > robust["plain"] + 0.2


@pytest.mark.parametrize("method", [*METHODS, "sat+sn", "pgd0-t+s"])
def test_every_method_runs_and_lowers_its_loss(method: str) -> None:
    pattern = sp.Patches(2) if method.startswith("loap") else sp.Pixels()
    model, before = network(), network()
    options = {**QUICK, "steps": 1 if method == "fast-ls" else 3, "lam": 1.0, "schedule": "constant"}
    trained = sp.train(model, quadrants(), method, sp.Budget(k=1, pattern=pattern), epochs=4, **options)
    assert trained.model is model
    assert not model.training
    assert not same_weights(model, before)
    assert set(trained.curves) == {"loss", "attacked", "lr", "clean", "robust", "seconds"}
    assert trained.curves["loss"][-1] < trained.curves["loss"][0]


@pytest.mark.parametrize("gradient", ["random", "alternating", "unprojected", "projected"])
@pytest.mark.parametrize("pattern", [sp.Rows(), sp.Patches(3), sp.Shape.heart(5)], ids=["rows", "patches", "shape"])
def test_structured_budgets_are_trained_against(
    pattern: sp.Pattern, gradient: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []

    def observed(*about: Any) -> Adversary:
        real = adversary(*about)

        def attack(model: nn.Module, batch: Batch, iteration: int, done: float = 0.0) -> Tensor:
            x_adv = real(model, batch, iteration, done)
            groups.append(group_l0(x_adv - batch.x, pattern))
            return x_adv

        return attack

    monkeypatch.setattr(api, "adversary", observed)
    model, options = network(), {**QUICK, "steps": 2, "gradient": gradient}
    sp.train(model, quadrants(32), "strades+n", sp.Budget(k=1, pattern=pattern), epochs=2, **options)
    assert not same_weights(model, network())
    assert len(groups) == 2
    assert torch.cat(groups).min() >= 0  # -1: outside the pattern
    assert 0 < torch.cat(groups).max() <= 2


def test_the_same_seed_gives_the_same_weights_and_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    models = []
    for seed in (0, 0, 1):
        model = network(dropout=0.5)
        sp.train(model, quadrants(), "sat+sn", sp.Budget(k=1), epochs=2, seed=seed, ema=0.9, **QUICK)
        models.append(model)
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert sp.train(network(), quadrants(), "sat", sp.Budget(k=1), epochs=1, seed=seed, **QUICK).settings.seed == seed


def test_a_dataset_a_loader_and_tensors_train_alike() -> None:
    x, y = quadrants()
    forms: list[Any] = [(x, y), ((x * 255).byte(), y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), 4)]
    models = [sp.train(network(), form, "sat", sp.Budget(k=1), epochs=1, **QUICK).model for form in forms]
    assert all(same_weights(models[0], model) for model in models[1:])


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> tuple[str, Tensor]:
        return "logits", self.network(x)


def test_logits_are_picked_out_of_what_the_model_returns() -> None:
    trained = sp.train(Tuple(), quadrants(), "sat", sp.Budget(k=1), epochs=1, logits=lambda out: out[1], **QUICK)
    assert trained.curves["clean"]


def test_a_validation_set_is_watched_instead_of_held_out_images() -> None:
    x, y = quadrants()
    wrong = (y + 1) % 4
    trained = sp.train(network(), (x, y), "plain", epochs=8, validation=(x, wrong), lr=0.2, **QUICK)
    assert trained.curves["clean"][-1] < 0.3 < trained.curves["attacked"][-1]


def test_the_average_is_what_is_returned(tmp_path: Path) -> None:
    trained = sp.train(network(), quadrants(), "plain", epochs=2, ema=0.99, out=tmp_path, **QUICK)
    kept = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    first = next(trained.model.parameters())
    assert torch.equal(first, kept["average"][0])
    assert not torch.equal(first, kept["network"]["0.weight"])


def test_models_are_loaded_attacked_and_trained_without_pydantic() -> None:
    program = (
        "import sys\n"
        "sys.modules['pydantic'] = None\n"
        "import sparsepgd as sp\n"
        "from sparsepgd import zoo\n"
        "from support.quadrants import network, quadrants\n"
        "sp.train(network(), quadrants(), 'sat', sp.Budget(k=1), epochs=1, batch=16, steps=1)\n"
        "sp.SparsePGD(sp.Budget(k=1), 1)(zoo.load('small-plain'), *zoo.bundled_images(2))\n"
        "print({'typer', 'rich', 'sklearn'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_what_cannot_be_trained_is_refused_before_anything_runs() -> None:
    x, y = quadrants(8)
    with pytest.raises(ModelError, match="no trainable parameter"):
        sp.train(nn.Flatten(), (x, y), "plain")
    with pytest.raises(RangeError, match="divide by 255"):
        sp.train(network(), (x * 255, y), "plain")
    with pytest.raises(LabelError, match="label 9 of image 0"):
        sp.train(network(), (x, y + 9 - y), "plain")
    with pytest.raises(LabelError, match="label 9 of image 0"):
        sp.train(network(), (x, y), "plain", validation=(x, y + 9 - y))
    with pytest.raises(DTypeError, match=r"labels of type torch.float32; expected integers"):
        sp.train(network(), (x, y + 0.5), "plain")
    with pytest.raises(ModelError, match=r"the model is a function; expected a torch.nn.Module"):
        sp.train(lambda x: x, (x, y), "plain")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="tensorboard=True needs a folder"):
        sp.train(network(), (x, y), "plain", tensorboard=True)
    with pytest.raises(UnsupportedError, match="out=3; expected a folder"):
        sp.train(network(), (x, y), "plain", out=3)  # type: ignore[arg-type]
    with pytest.raises(sp.errors.BudgetError, match="k=99 pixels, but a 8x8 image has 64"):
        sp.train(network(), (x, y), "sat", sp.Budget(k=99))
    with torch.inference_mode():
        model = network()
    with pytest.raises(ModelError, match=r"Sequential was built under torch.inference_mode; build it outside"):
        sp.train(model, (x, y), "plain")


@pytest.mark.parametrize("name", ["test", "validation"])
def test_images_to_measure_on_are_checked_before_anything_runs(name: str, tmp_path: Path) -> None:
    x, y = quadrants(8)
    model: Any = network()
    for wrong, error, message in (
        ((x * 255, y), RangeError, "divide by 255"),
        ((x, y + 4), LabelError, "label . of image 0; the model has classes 0 to 3"),
        ((x, y + 0.5), DTypeError, "expected integers"),
        ((x.expand(-1, 3, -1, -1), y), ModelError, r"the model fails on images of shape \(2, 3, 8, 8\)"),
    ):
        with pytest.raises(error, match=message):
            sp.train(model, (x, y), "plain", out=tmp_path / "run", epochs=1, **{name: wrong}, **QUICK)
    assert not (tmp_path / "run").exists()
    with pytest.raises(sp.errors.BudgetError, match="k=99 pixels, but a 8x8 image has 64"):
        sp.train(model, (x, y), "plain", sp.Budget(k=99), epochs=1, **{name: (x, y)}, **QUICK)
    assert same_weights(model, network())


def test_a_model_that_fails_in_training_is_named_in_one_line() -> None:
    x, y = quadrants(9)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    with pytest.raises(ModelError, match=r"the model fails on images of shape \(1, 1, 8, 8\): ValueError: Expected"):
        sp.train(model, (x, y), "plain", epochs=1, **{**QUICK, "batch": 1})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data of type NoneType; expected a pair"),
        ({"x": torch.zeros(2, 1, 8, 8)}, "data of type dict; expected a pair"),
        ("nothing", "no data .nothing.; use bundled, digits"),
        ((torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64)), "the data holds no images"),
    ],
    ids=["none", "dict", "name", "empty"],
)
def test_what_holds_no_images_is_refused(data: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        sp.train(network(), data, "plain")


def test_a_budget_that_is_not_trained_against_is_not_asked_to_fit() -> None:
    data: Any = quadrants(40, size=4)
    for method in ("plain", "linf", "plain+n"):
        trained = sp.train(network(), data, method, epochs=1, **QUICK)
        assert trained.settings.budget.k == 16  # 20 pixels, or all there are
    sp.train(network(), data, "plain", sp.Budget(k=20), epochs=1, **{**QUICK, "watch_steps": 0})


@pytest.mark.parametrize(("method", "budget"), [("sat", None), ("plain", sp.Budget(k=20)), ("l2+n", sp.Budget(k=20))])
def test_a_budget_that_is_used_must_fit_and_is_refused_before_anything_runs(
    method: str, budget: sp.Budget | None
) -> None:
    model = network()
    with pytest.raises(sp.errors.BudgetError, match="k=20 pixels, but a 4x4 image has 16"):
        sp.train(model, quadrants(40, size=4), method, budget, epochs=1, **QUICK)
    assert same_weights(model, network())


def test_tensorboard_that_is_missing_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'sparsepgd\[tensorboard\]'"):
        sp.train(network(), quadrants(), "plain", out=tmp_path, tensorboard=True)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnusableDeviceError, match=r"device 'tpu9' cannot be used: .*; try cpu"):
        sp.train("small_preact_resnet", "bundled", device="tpu9")
