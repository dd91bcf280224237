"""Words of the command line become values, and wrong words are told what is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.errors import PatternError, SourceError, UnsupportedError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pixel", sp.Pixels()),
        ("feature", sp.Features()),
        ("row", sp.Rows()),
        ("column", sp.Columns()),
        ("patch:3", sp.Patches(3)),
        ("patch:3x5", sp.Patches(3, 5)),
        ("frame:2", sp.Frame(2)),
        ("heart:9", sp.Shape.heart(9)),
        ("star:9", sp.Shape.star(9)),
        ("circle:18", sp.Shape.circle(18)),
        ("letter:A:12", sp.Shape.letter("A", 12)),
    ],
)
def test_patterns_have_names(words: str, expected: sp.Pattern) -> None:
    assert options.pattern(words) == expected


def test_the_engine_is_the_default_unless_something_is_chosen_and_compiled_only_on_a_gpu() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert options.engine(None, False, cpu) is None
    assert options.engine("bf16", False, cpu) == sp.Engine("bf16")
    assert options.engine(None, True, gpu) == sp.Engine(compile=True)
    with pytest.raises(UnsupportedError, match="--compile is for GPUs; omit it, or choose a GPU with --device cuda"):
        options.engine(None, True, cpu)


def test_a_budget_is_a_number_and_a_pattern() -> None:
    found = options.budget("2 patch:3x5", 0.5)
    assert (found.k, found.pattern, found.eps) == (2, sp.Patches(3, 5), 0.5)
    assert options.budget("20 pixel").pattern == sp.Pixels()


@pytest.mark.parametrize("words", ["row", "row:1", "1", "1.5 row", "-1 row", ""])
def test_a_budget_without_its_number_or_its_pattern_is_refused(words: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"budget '{words}'; use the number of groups .*, e.g. '1 row'"):
        options.budget(words)


def test_a_budget_of_nothing_or_of_an_unknown_pattern_is_refused() -> None:
    with pytest.raises(sp.errors.BudgetError, match="k=0; use k >= 1"):
        options.budget("0 row")
    with pytest.raises(sp.errors.PatternError, match="pattern 'rows'; use one of pixel"):
        options.budget("1 rows")


def test_a_picture_file_is_a_pattern(tmp_path: Path) -> None:
    cells = np.full((4, 6), 255, np.uint8)
    cells[1:3, 1:5] = 0
    Image.fromarray(cells).save(tmp_path / "sticker.png")
    assert options.pattern(f"image:{tmp_path / 'sticker.png'}") == sp.Shape(cells == 0)


@pytest.mark.parametrize(
    "words", ["", "pixels", "patch", "patch:a", "patch:3x", "row:2", "circle:", "letter:A", "x:y:z"]
)
def test_unknown_patterns_list_the_known_ones(words: str) -> None:
    with pytest.raises(PatternError, match="use one of pixel, feature, row"):
        options.pattern(words)


def test_errors_of_the_pattern_itself_come_through() -> None:
    for words in ("patch:-1", "patch:3x0"):
        with pytest.raises(PatternError, match="at least 1"):
            options.pattern(words)
    with pytest.raises(SourceError, match="nowhere"):
        options.pattern("image:nowhere.png")


@pytest.mark.parametrize(("words", "value"), [("8/255", 8 / 255), ("0.5", 0.5), ("1", 1.0)])
def test_eps_is_a_number_or_a_fraction(words: str, value: float) -> None:
    assert options.eps(words) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("words", ["eight", "8/0", "", "1e400"])
def test_other_eps_are_refused(words: str) -> None:
    with pytest.raises(UnsupportedError, match="such as 8/255"):
        options.eps(words)


def test_attacks_have_names() -> None:
    budget = sp.Budget(k=2)
    assert options.attack("spgd", budget, 7).name == "spgd-unprojected"
    assert options.attack("spgd-projected", budget, 7, quantize=True).quantize
    for unknown in ("fgsm", "spgd-near"):
        with pytest.raises(UnsupportedError, match=f"attack '{unknown}'; use one of anneal, .*, foolbox:NAME"):
            options.attack(unknown, budget, 7)


def test_anneal_has_a_name_and_a_length() -> None:
    anneal = options.attack("anneal", sp.Budget(k=2), 7, quantize=True)
    assert isinstance(anneal, sp.SparseAnneal)
    assert (anneal.name, anneal.quantize, options.length(anneal)) == ("anneal", True, "7 steps")
    assert options.preset("anneal", sp.Budget(k=2), "paper").evaluations == 1000
    assert options.COMPARED[0] == "anneal"


def test_black_boxes_and_cascades_have_names_too() -> None:
    budget = sp.Budget(k=2)
    box = options.attack("rs", budget, 7, queries=9)
    assert (box.name, options.length(box)) == ("sparse-rs", "9 queries")
    cascade = options.attack("saa", budget, 7, quantize=True, queries=9)
    assert (cascade.name, cascade.quantize, options.length(cascade)) == ("saa", True, "7 steps, 9 queries")
    assert options.length(options.attack("saa", budget, 1, queries=1000)) == "1 step, 1,000 queries"
    standard = options.attack("saa+", budget, 7, quantize=True, queries=9)
    assert (standard.name, standard.quantize, options.length(standard)) == ("saa+", True, "7 steps, 9 queries")
    assert [member.name for member in standard.members] == [
        "anneal",
        "spgd-unprojected",
        "spgd-projected",
        "cluster-rs",
    ]


def test_folders_of_saa_and_of_saa_plus_have_names_of_their_own() -> None:
    assert options.run_folder(("saa+", "patch:5", "k1"), ()).name.startswith("saa+-patch-5-k1-")


def test_every_attack_has_one_name_and_older_ones_still_do() -> None:
    patch, pixels = sp.Budget(k=1, pattern=sp.Patches(3)), sp.Budget(k=2)
    for name in options.ATTACKS:
        assert options.attack(name, patch if name == "loap" else pixels, 7).name == name
    old = {"rs": "sparse-rs", "spgd": "spgd-unprojected", "saif": "saif-published", "RS": "sparse-rs"}
    assert {name: options.attack(name, pixels, 7).name for name in old} == old


def test_several_attacks_are_named_with_commas() -> None:
    budget = sp.Budget(k=2)
    both = [options.attack(name, budget, 7) for name in options.named("spgd-projected, rs")]
    assert [attack.name for attack in both] == ["spgd-projected", "sparse-rs"]
    assert options.length(both[0]) == "7 steps"
    for empty in ("spgd,", ",", ""):
        with pytest.raises(UnsupportedError, match=f"attack '{empty}' contains an empty name"):
            options.named(empty)
    with pytest.raises(UnsupportedError, match=r"'spgd' and 'spgd-unprojected' in .* are the same attack"):
        options.named("spgd,rs,spgd-unprojected")
    with pytest.raises(UnsupportedError, match="attack 'rs' is named twice"):
        options.named("rs,rs")
