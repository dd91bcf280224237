"""Methods and settings: what is asked for is used or refused."""

from __future__ import annotations

from typing import Any

import pytest

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.training.methods import METHODS, method
from sparsepgd.training.settings import settings


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fast-ls"])
@pytest.mark.parametrize(("more", "soft", "noise"), [("+s", True, False), ("+n", False, True), ("+sn", True, True)])
def test_soft_targets_and_noise_are_added_to_any_method(name: str, more: str, soft: bool, noise: bool) -> None:
    wanted = settings(name + more, sp.Budget(k=2), {})
    assert (wanted.soft_targets, wanted.noise) == (soft, noise)
    assert wanted.kind.adversary == METHODS[name].adversary


def test_the_methods_bring_their_own_values_and_options_win() -> None:
    budget = sp.Budget(k=20)
    fast = settings("fast-ls", budget, {})
    assert (fast.steps, fast.alpha, fast.beta, fast.lam, fast.soft_targets, fast.noise) == (
        1,
        1.0,
        1.0,
        6.0,
        True,
        True,
    )
    assert settings("fast-ls", budget, {"alpha": 0.5, "noise": False}).alpha == 0.5
    assert settings("strades", budget, {}).lam == 3.0
    assert settings("strades+sn", budget, {}).lam == 6.0
    assert settings("linf", budget, {}).radius == 8 / 255


@pytest.mark.parametrize("name", ["sTRADES2", "", "strades+", "strades+x", "strades+s+n"])
def test_an_unknown_method_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"use one of plain, sat, strades, fast-ls"):
        method(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sat", {"epoch": 3}, "no setting 'epoch'; use one of alpha"),
        ("sat", {"epochs": 0}, "epochs=0; use at least 1"),
        ("sat", {"lr": -1.0}, "lr=-1.0; expected a number larger than 0"),
        ("sat", {"ema": 1.5}, "ema=1.5; expected a share"),
        ("sat", {"schedule": "cosine"}, "schedule='cosine'; use one of 'paper'"),
        ("sat", {"gradient": "both"}, "gradient='both'; use one of 'random', 'alternating'"),
        ("sat", {"mode": "F"}, "only sTRADES has an adversary by divergence"),
        ("sat", {"multi_size": (3, 5)}, "needs a pattern of patches"),
        ("linf", {"near": (0.1,)}, "only sPGD starts near the clean image"),
        ("sat", {"near": (0.1, 2.0)}, "near=\\(0.1, 2.0\\); expected shares of eps"),
        ("strades", {"near": (0.1,), "mode": "F"}, "the divergence has no gradient at the clean image"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        settings(name, sp.Budget(k=2), options)


def test_every_purpose_and_number_has_a_seed_of_its_own() -> None:
    first, second = (settings("sat", sp.Budget(k=2), {"seed": seed}) for seed in (0, 1))
    drawn = [one.seed_for(purpose, i) for one in (first, second) for purpose in ("attack", "order") for i in range(50)]
    assert len(set(drawn)) == 200
    assert first.seed_for("attack", 7) == settings("strades", sp.Budget(k=9), {}).seed_for("attack", 7)
