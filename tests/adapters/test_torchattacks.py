"""Our attacks in torchattacks' call shape, without what its users complain about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sparsepgd as sp
from sparsepgd.errors import ShapeError, UnsupportedError
from support.packages import (
    MEAN,
    STD,
    Normalised,
    changed,
    mixed_mode,
    modes,
    package,
    predictions,
    problem,
    spgd,
    watched,
)

torchattacks = package("torchattacks")
from sparsepgd.adapters.torchattacks import TorchAttack  # noqa: E402


def normalised(count: int = 6) -> tuple[Any, torch.Tensor, torch.Tensor, TorchAttack]:
    model, x, y = problem(count)
    behind = Normalised(model).eval()
    attack = TorchAttack(behind, spgd())
    attack.set_normalization_used(MEAN.flatten().tolist(), STD.flatten().tolist())
    return behind, (x - MEAN) / STD, y, attack


def test_it_is_a_torchattacks_attack_and_finds_what_ours_finds() -> None:
    model, x, y = problem()
    attack = TorchAttack(model, spgd(), seed=3)
    assert isinstance(attack, torchattacks.attack.Attack)
    assert "spgd-unprojected" in repr(attack)
    assert torch.equal(attack(x, y.int()), spgd()(model, x, y, seed=3).x_adv)
    assert torch.equal(attack(x[:1], y[:1]), spgd()(model, x[:1], y[:1], seed=3).x_adv)


def test_normalisation_leaves_untouched_pixels_as_they_were() -> None:
    """On the way to [0, 1] and back theirs changes some by round-off, so that a budget of k pixels is not kept."""
    behind, x, y, attack = normalised(24)
    x_adv = attack(x, y)
    assert int(changed(x, x_adv).max()) <= 12
    assert bool((predictions(behind, x_adv) != y).any())
    theirs = torchattacks.PGD(behind, eps=0.0, steps=1, random_start=False)
    theirs.set_normalization_used(MEAN.flatten().tolist(), STD.flatten().tolist())
    assert int(changed(x, theirs(x, y)).max()) > 0


def test_the_mode_of_every_module_is_restored_even_after_an_error() -> None:
    model, x, y = problem()
    before, seen = mixed_mode(model), watched(model)
    attack = TorchAttack(model, spgd())
    attack(x, y)
    assert seen
    assert not any(seen)
    assert modes(model) == before
    attack.set_mode_targeted_least_likely(quiet=True)
    attack(x, y)
    assert modes(model) == before
    with pytest.raises(ShapeError):
        TorchAttack(model, spgd())(x, y[:-1])
    assert modes(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_targeted_modes_lead_to_the_target() -> None:
    model, x, y = problem(12)
    attack = TorchAttack(model, spgd(k=40, steps=20))
    attack.set_mode_targeted_by_function(lambda _, labels: (labels + 1) % 5, quiet=True)
    by_function = attack(x, y)
    attack.set_mode_targeted_by_label(quiet=True)
    assert torch.equal(attack(x, (y + 1) % 5), by_function)
    assert bool((predictions(model, by_function) == (y + 1) % 5).any())


def test_it_takes_part_in_a_multi_attack() -> None:
    model, x, y = problem()
    both = torchattacks.MultiAttack([torchattacks.FGSM(model, eps=1 / 255), TorchAttack(model, spgd(k=30, steps=20))])
    assert bool((predictions(model, both(x, y)) != y).all())


def test_saved_levels_are_those_of_the_images(tmp_path: Path) -> None:
    """Theirs truncates, and after a normalisation a quarter of all levels lie just below their whole number."""
    _, x, y, attack = normalised()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    attack.save(loader, str(tmp_path / "saved.pt"), verbose=False, save_clean_inputs=True, save_type="int")
    saved = torch.load(tmp_path / "saved.pt")
    clean = (torch.cat([batch[0] for batch in loader]) * STD + MEAN) * 255
    assert torch.equal(saved["clean_inputs"], clean.round().to(torch.uint8))
    assert int(changed(saved["clean_inputs"], saved["adv_inputs"]).max()) <= 12


def test_what_cannot_be_done_is_refused() -> None:
    model, x, y = problem(2)
    attack = TorchAttack(model, spgd())
    with pytest.raises(UnsupportedError, match="images, labels"):
        attack(x)
    with pytest.raises(UnsupportedError, match="evaluation mode"):
        attack.set_model_training_mode(model_training=True)
    attack = TorchAttack(model, sp.SparseAutoAttack(sp.Budget(k=5), steps=2, queries=5))
    attack.set_mode_targeted_by_label(quiet=True)
    with pytest.raises(UnsupportedError, match="is untargeted"):
        attack(x, (y + 1) % 5)
