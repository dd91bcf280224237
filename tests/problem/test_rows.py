"""Rows of dataclasses of tensors."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass

import pytest
import torch
from torch import Tensor

from sparsepgd.problem import rows


@dataclass(frozen=True)
class Pair:
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Three:
    a: Tensor
    b: Tensor
    c: Tensor


OLD = Pair(torch.arange(4.0), torch.arange(8.0).view(4, 2))


@pytest.mark.parametrize("which", [[True, False, True, False], [False] * 4, [True] * 4])
@pytest.mark.parametrize("on_host", [True, False])
def test_renewed_computes_only_the_needed_rows_on_a_cpu_and_all_rows_on_a_gpu(
    which: list[bool], on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def new(pick: Tensor | slice) -> Pair:
        part = rows.select(OLD, pick)
        made.append(len(part.a))
        return Pair(-part.a, 10 * part.b)

    monkeypatch.setattr(rows, "waits_for_host", lambda device: not on_host)
    found = rows.renewed(torch.tensor(which), new, OLD)
    wanted = [(-a, 10 * b) if new else (a, b) for new, a, b in zip(which, OLD.a, OLD.b, strict=True)]
    assert torch.equal(found.a, torch.stack([a for a, _ in wanted]))
    assert torch.equal(found.b, torch.stack([b for _, b in wanted]))
    assert sum(made) == (sum(which) if on_host else 4)


@pytest.mark.parametrize("which", [[True, False, True, False], [False] * 4, [True] * 4])
@pytest.mark.parametrize("on_host", [True, False])
def test_put_overwrites_the_chosen_rows_in_place(
    which: list[bool], on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "waits_for_host", lambda device: not on_host)
    shared, mask = torch.arange(4.0), torch.tensor([True, False, False, True])
    new, into = Three(shared, -OLD.b.double(), ~mask), Three(shared, OLD.b.clone(), mask.clone())
    places = [into.a.data_ptr(), into.b.data_ptr(), into.c.data_ptr()]
    found = rows.put(torch.tensor(which), new, into)
    assert found is into
    assert [found.a.data_ptr(), found.b.data_ptr(), found.c.data_ptr()] == places
    chosen = torch.tensor(which)
    assert torch.equal(found.b, torch.where(chosen[:, None], -OLD.b, OLD.b))
    assert torch.equal(shared, OLD.a)
    assert torch.equal(found.c, torch.where(chosen, ~mask, mask))


def test_tensors_of_one_type_are_copied_together_and_identical_ones_not_at_all() -> None:
    names = [*"abcde"]
    Five = make_dataclass("Five", [(name, Tensor) for name in names])
    there = torch.arange(3)
    into = Five(torch.zeros(3), torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool), there, torch.zeros(2, 3))
    of = Five(torch.rand(3), torch.rand(3, 2), torch.tensor([True, False, True]), there, torch.rand(3, 2).T)
    copies: list[int] = []
    whole = torch._foreach_copy_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", lambda a, b: (copies.append(len(a)), whole(a, b)))
        rows.assign(into, of)
    assert sorted(copies) == [1, 1, 2]  # floats, a bool, and what lies in another order
    assert all(torch.equal(getattr(into, name), getattr(of, name)) for name in names)
