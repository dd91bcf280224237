"""CONTRIBUTING: the programs on its page are the files of examples/, and what they add works like the package's own."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from unittest import mock

import pytest

import sparsepgd as sp
from sparsepgd.search import registry
from sparsepgd.sources import data
from support.attacks import short, taken
from support.budgets import BUDGETS
from support.models import SmallConvNet, images, labelled
from support.promises import broken, left_behind, mixed

ROOT = Path(__file__).parent.parent
EXAMPLES = [ROOT / "examples" / f"new_{what}.py" for what in ("attack", "pattern", "data_source")]


def test_the_programs_of_the_page_are_the_files() -> None:
    shown = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    assert shown == [file.read_text() for file in EXAMPLES]


def test_the_attack_keeps_the_promises_of_all_attacks() -> None:
    with mock.patch.dict(registry.ENTRIES):
        runpy.run_path(str(EXAMPLES[0]))
        assert taken("promising") == BUDGETS
        model, x = SmallConvNet().eval(), images(4)
        y = labelled(model, x)
        for budget in BUDGETS:
            attack = short("promising", budget)
            assert broken(attack, attack(model, x, y), model, x, y) == []
        assert left_behind(attack, *mixed()) == []


def test_the_pattern_is_taken_by_every_kind_of_search() -> None:
    budget = sp.Budget(k=1, pattern=runpy.run_path(str(EXAMPLES[1]))["Bands"](2))
    model, x = SmallConvNet().eval(), images(4)
    y = labelled(model, x)
    for name in ("spgd-unprojected", "sparse-rs", "anneal", "saa"):
        attack = short(name, budget)
        assert broken(attack, attack(model, x, y), model, x, y) == []


def test_the_data_source_has_a_name_like_the_others() -> None:
    with mock.patch.dict(data.KINDS):
        runpy.run_path(str(EXAMPLES[2]))
        found = sp.load_data("stripes:8", n=6, choose="balanced")
        assert (found.x.shape, found.y.tolist(), found.class_names) == (
            (6, 1, 8, 8),
            [0, 1, 0, 1, 0, 1],
            ("horizontal", "vertical"),
        )
    with pytest.raises(sp.errors.SourceError, match="no data 'stripes:8'"):
        sp.load_data("stripes:8")
