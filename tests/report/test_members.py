"""What a record says of the members of a cascade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparsepgd as sp
from sparsepgd.report.entries import Entry, collect
from sparsepgd.report.members import members_of
from sparsepgd.report.page import render
from sparsepgd.runs.records import Record
from support.reported_runs import make, make_ensemble


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    return collect([make_ensemble(tmp_path_factory.mktemp("members") / "run")])[0]


def changed(record: Record, **settings: Any) -> Record:
    """As if the attack had other settings; "out" leaves one out."""
    attack = {name: value for name, value in {**record.configuration["attack"], **settings}.items() if value != "out"}
    return record.model_copy(update={"configuration": {**record.configuration, "attack": attack}})


def test_members_get_what_is_left_and_their_passes_add_up(entry: Entry) -> None:
    record, members = entry.record, entry.members
    assert [member.name for member in members] == ["spgd-unprojected", "spgd-projected", "sparse-rs"]
    left = sum(row.clean_correct for row in record.rows)
    for member in members:
        assert member.given == left
        assert member.broken == sum(row.broken_by == member.name for row in record.rows) == len(member.own_passes)
        left -= member.broken
        assert member.robust_accuracy == left / record.images
    assert members[-1].robust_accuracy == record.robust_accuracy
    assert sum(member.broken for member in members) > 0
    assert [member.pass_range for member in members] == [(0, 8), (8, 16), (16, 56)]  # 3 steps and the start; 40 queries
    assert sum(member.total_passes for member in members) == sum(row.forwards + row.backwards for row in record.rows)


def test_an_attack_alone_has_no_members(tmp_path: Path) -> None:
    assert collect([make(tmp_path / "run")])[0].members == ()


def test_a_record_without_the_version_has_it_by_its_name(entry: Entry) -> None:
    assert members_of(changed(entry.record, version="out", targeted="out")) == entry.members


def test_passes_that_do_not_fit_the_settings_are_left_out(entry: Entry) -> None:
    record = changed(entry.record, steps=50)
    members = members_of(record)
    assert [(one.name, one.broken, one.pass_range) for one in members] == [
        (one.name, one.broken, None) for one in entry.members
    ]
    page = render([Entry(0, "one", record, entry.x, entry.x_adv)])
    assert "Which attack broke what" in page
    assert "total passes" not in page
    assert "Against passes" not in page


def written(pattern: str) -> dict[str, Any]:
    return {"kind": "Budget", "k": 5, "pattern": {"kind": pattern}, "eps": 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"attacks": [{"kind": "SparsePGD"}]},
        {"budget": written("Hexagons")},  # of a later version
        {"version": "standard", "budget": written("Pixels")},  # whose last member has another name
    ],
)
def test_of_other_cascades_those_are_named_that_broke_an_image(entry: Entry, settings: dict[str, Any]) -> None:
    members = members_of(changed(entry.record, **settings))
    assert [(one.name, one.broken) for one in members if one.broken] == [
        (one.name, one.broken) for one in entry.members if one.broken
    ]


def test_cascades_by_hand_have_a_page(tmp_path: Path) -> None:
    budget = sp.Budget(k=5)
    attacks = (sp.SparseRS(budget, queries=20), sp.SparsePGD(budget, steps=8))
    (entry,) = collect([make(tmp_path / "run", sp.SparseAutoAttack(budget, attacks=attacks))])
    assert {member.name for member in entry.members} == {row.broken_by for row in entry.record.rows} - {None}
    assert "Which attack broke what" in render([entry])
