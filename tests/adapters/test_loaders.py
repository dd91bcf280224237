"""Loader in, loader out."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sparsepgd.adapters import OnLoader
from sparsepgd.errors import SourceError
from support.packages import MEAN, STD, Normalised, mixed_mode, modes, package, predictions, problem, spgd, watched


@pytest.mark.parametrize("size", [1, 4, 7])
def test_the_loader_holds_what_one_call_finds_whatever_its_batches(size: int) -> None:
    model, x, y = problem(7, torch.float64)
    before = mixed_mode(model)
    found = OnLoader(spgd(), seed=2)(model, DataLoader(TensorDataset(x, y.int()), batch_size=size))
    assert found.batch_size == size
    x_adv, labels = (torch.cat(part) for part in zip(*found, strict=True))
    assert torch.equal(x_adv, spgd()(model, x, y, seed=2).x_adv)
    assert torch.equal(labels, y.int())
    assert modes(model) == before


def test_a_shuffled_loader_keeps_images_and_labels_together() -> None:
    model, x, y = problem(7)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True, generator=generator)
    x_adv, labels = (torch.cat(part) for part in zip(*OnLoader(spgd())(model, loader), strict=True))
    origin = (x_adv[:, None] != x[None]).flatten(2).sum(2).argmin(1)
    assert sorted(origin.tolist()) == list(range(7))
    assert torch.equal(labels, y[origin])


def test_results_come_batch_by_batch_with_options() -> None:
    model, x, y = problem(4)
    search = OnLoader(spgd(), options=(("logits", lambda output: output["scores"]),))
    results = search.results(lambda point: {"scores": model(point)}, [(x[:3], y[:3]), (x[3:], y[3:])])
    assert [len(result) for result, _ in results] == [3, 1]


def test_a_loader_of_something_else_is_refused() -> None:
    model, x, _ = problem(2)
    with pytest.raises(SourceError, match="pairs"):
        OnLoader(spgd())(model, DataLoader(x))  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="empty"):
        OnLoader(spgd())(model, [])


def test_the_classifier_of_secml_torch_with_its_preprocessing() -> None:
    classifiers = package("secmlt.models.pytorch.base_pytorch_nn")
    model, x, y = problem()
    before, seen = mixed_mode(model), watched(model)
    behind = Normalised(model)
    behind.training = False
    wrapped = classifiers.BasePyTorchClassifier(behind, preprocessing=lambda point: (point - MEAN) / STD)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    x_adv, _ = (torch.cat(part) for part in zip(*OnLoader(spgd())(wrapped, loader), strict=True))
    assert int((x_adv != x).any(1).flatten(1).sum(1).max()) <= 12
    assert seen
    assert not any(seen)
    assert modes(model) == before
    assert bool((predictions(model.eval(), x_adv) != y).any())
