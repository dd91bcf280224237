"""Methods and settings: what is asked for is used or refused."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

import numpy as np
import pytest

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.training.settings import METHODS, Settings, make_settings, method


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fast-ls"])
@pytest.mark.parametrize(("more", "soft", "noise"), [("+s", True, False), ("+n", False, True), ("+sn", True, True)])
def test_soft_targets_and_noise_are_added_to_any_method(name: str, more: str, soft: bool, noise: bool) -> None:
    wanted = make_settings(name + more, sp.Budget(k=2, pattern=sp.Patches(3)), {})
    assert (wanted.soft_targets, wanted.noise) == (soft, noise)
    assert wanted.kind.adversary == METHODS[name].adversary


def test_the_methods_bring_their_own_values_and_options_win() -> None:
    budget = sp.Budget(k=20)
    fast = make_settings("fast-ls", budget, {})
    assert (fast.steps, fast.alpha, fast.beta, fast.lam, fast.soft_targets, fast.noise) == (
        1,
        1.0,
        1.0,
        6.0,
        True,
        True,
    )
    assert make_settings("fast-ls", budget, {"alpha": 0.5, "noise": False}).alpha == 0.5
    assert make_settings("strades", budget, {}).lam == 3.0
    assert make_settings("strades+sn", budget, {}).lam == 6.0
    assert make_settings("linf", budget, {}).radius == 8 / 255


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
        ("sat", {"ema": 1.5}, "ema=1.5; use at most 1"),
        ("sat", {"schedule": "cosine"}, "schedule='cosine'; use one of 'paper'"),
        ("sat", {"gradient": "both"}, "gradient='both'; use one of 'random', 'alternating'"),
        ("sat", {"mode": "F"}, "only sTRADES supports an adversary"),
        ("sat", {"multi_size": (3, 5)}, "needs a pattern of patches"),
        ("sat", {"multi_size": (3, 0)}, "multi_size=\\(3, 0\\); expected sides of at least 1"),
        ("sat", {"multi_size": (3, 2.5)}, r"multi_size\.1=2.5; expected an integer"),
        ("sat", {"lr": "fast"}, "lr='fast'; expected a number"),
        ("sat", {"lr": float("nan")}, "lr=nan; expected a number"),
        ("sat", {"clip": float("inf")}, "clip=inf; expected a number"),
        ("sat", {"lr": True}, "lr=True; expected a number"),
        ("sat", {"lr": None}, "lr=None; expected a number"),
        ("sat", {"epochs": 2.5}, "epochs=2.5; expected an integer"),
        ("sat", {"early_stop": "False"}, "early_stop='False'; expected true or false"),
        ("sat", {"nesterov": 1}, "nesterov=1; expected true or false"),
        ("sat", {"bf16": "no"}, "bf16='no'; expected true or false"),
        ("sat", {"near": 0.1}, "no setting 'near'; use one of alpha, augment, "),
        ("sat", {"lam": -3}, "lam=-3; use at least 0"),
        ("sat", {"weight_decay": -1e-4}, "weight_decay=-0.0001; use at least 0"),
        ("sat", {"watch_steps": -1}, "watch_steps=-1; use at least 0"),
        ("sat", {"tolerance": 0}, "tolerance=0; use at least 1"),
        ("sat", {"loader_workers": -1}, "loader_workers=-1; use at least 0"),
        ("sat", {"nesterov": True, "momentum": 0}, "nesterov=True with momentum=0; use a momentum"),
        ("l2", {"radius": None}, "radius=None with 'l2'; expected a number"),
        ("loap-at", {}, r"'loap-at' with Budget\(k=2, Pixels\(\)\); LOAP places patches: .*--pattern patch:3"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        make_settings(name, sp.Budget(k=2), options)


@pytest.mark.parametrize("field", [field for field in fields(Settings) if field.name not in ("method", "budget")])
def test_no_setting_takes_a_value_of_another_kind(field: Field[Any]) -> None:
    for wrong in ("words that mean nothing", object(), {"a": 1}):
        with pytest.raises(UnsupportedError, match=rf"^{field.name}(\.0)?=.*(expected|use one of) "):
            make_settings("sat", sp.Budget(k=2, pattern=sp.Patches(3)), {field.name: wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"searched": 0.5}, "searched=0.5 without keep; the search needs it: use keep=True"),
        ({"searched": 1.5, "keep": True}, "searched=1.5; use at most 1"),
        ({"searched": 0.5, "keep": True, "mixed": 0.6}, "mixed=0.6 and searched=0.5; .* use at most 1 in all"),
        ({"queries": 8, "keep": True}, r"queries=8 without searched; omit it, or use e\.g\. searched=0.25"),
        ({"queries": 0, "searched": 0.5, "keep": True}, "queries=0; use at least 1"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        make_settings("anneal-at", sp.Budget(k=2), options)


def test_a_search_needs_a_budget_of_single_points() -> None:
    rows, options = sp.Budget(k=2, pattern=sp.Rows()), {"searched": 0.5, "keep": True}
    with pytest.raises(UnsupportedError, match=r"searched=0.5 with Budget\(k=2, Rows\(\)\); .* pixels and features"):
        make_settings("anneal-at", rows, options)
    assert make_settings("anneal-at", rows, {**options, "others": sp.Budget(k=2)}).searched == 0.5


def test_a_budget_and_a_method_of_another_kind_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="budget=20; expected a Budget"):
        make_settings("sat", 20, {})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="method None; use one of plain"):
        make_settings(None, sp.Budget(k=2), {})  # type: ignore[arg-type]


def test_one_number_or_a_list_stands_for_a_tuple_and_numbers_of_numpy_are_numbers() -> None:
    options = {"multi_size": [3, 5], "epochs": np.int64(7), "lr": np.float32(0.5), "lam": 6}
    wanted = make_settings("sat", sp.Budget(k=2, pattern=sp.Patches(3)), options)
    assert wanted.multi_size == (3, 5)
    assert make_settings("sat", wanted.budget, {"multi_size": 3}).multi_size == (3,)
    assert (wanted.epochs, wanted.lr, wanted.lam) == (7, 0.5, 6)
    assert (type(wanted.epochs), type(wanted.lr), type(wanted.lam)) == (int, float, float)


def test_every_purpose_and_number_has_a_seed_of_its_own() -> None:
    first, second = (make_settings("sat", sp.Budget(k=2), {"seed": seed}) for seed in (0, 1))
    drawn = [one.seed_for(purpose, i) for one in (first, second) for purpose in ("attack", "order") for i in range(50)]
    assert len(set(drawn)) == 200
    assert first.seed_for("attack", 7) == make_settings("strades", sp.Budget(k=9), {}).seed_for("attack", 7)
