"""The registry: every attack of the package is in it, under the name that its results carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import sparsepgd as sp
from sparsepgd import baselines
from sparsepgd.search import registry


def test_every_attack_is_registered() -> None:
    kinds = {entry.kind for entry in registry.ENTRIES.values()}
    own = {sp.SparseAnneal, sp.SparseAutoAttack, sp.SparsePGD, sp.SparseRS, sp.ClusterRS}
    assert kinds == own | {getattr(baselines, name) for name in baselines.__all__}
    names = [name for entry in registry.ENTRIES.values() for name in (entry.name, *entry.aliases)]
    assert len(set(names)) == len(names)


def test_black_boxes_are_those_that_need_no_gradient() -> None:
    boxes = {name for name in registry.ENTRIES if registry.black_box(name)}
    assert boxes == {"sparse-rs", "cluster-rs", "corner-search", "one-pixel"}
    assert registry.black_box("sparse-rs-2")
    assert registry.black_box("one-pixel-smallest-k")
    assert not registry.black_box("sparse-rsx")
    assert not registry.black_box("")


def test_one_line_registers_a_new_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENTRIES", dict(registry.ENTRIES))

    @registry.registered("old-name")
    @dataclass(frozen=True, eq=False)
    class Mine(sp.SparseRS):
        name: ClassVar[str] = "mine"

    entry = registry.find("old-name")
    assert entry is not None
    assert entry is registry.find("mine")
    assert entry.kind.at_cost(sp.Budget(k=2), 50).queries == 50
    assert entry.kind.quick(sp.Budget(k=2)).queries == 300
    assert registry.black_box("mine")
    assert registry.find("yours") is None
