"""Moves of Sparse-RS: when they are small, and how a candidate is shown."""

from __future__ import annotations

from typing import Any

import torch

import sparsepgd as sp
from sparsepgd.search.loop import Images
from sparsepgd.search.random_search.moves import Candidate, render
from sparsepgd.search.random_search.sparse_rs import SparseRS

CROSS = sp.Shape([[0, 1, 0], [1, 1, 1], [0, 1, 0]])


def test_single_channels_begin_half_way_after_the_first_single_cell() -> None:
    attack = SparseRS(sp.Budget(k=1, pattern=sp.Patches(5)), 1000)
    moves: Any = attack.moves_of(attack.budget.resolve((3, 32, 32)))
    first = moves.sides.tolist().index([1, 1])
    assert first == 6  # tau = 60: sqrt(0.4 / 4) * 5 < 2
    assert moves.channel.tolist().index(True) == first + (1000 - first) // 2
    assert moves.relocate.tolist()[:9] == [True, False, False, False] * 2 + [True]
    assert not bool(moves.relocate[960:].any())  # nowhere to go any more


def test_overlapping_groups_show_the_later_one_and_holes_show_the_image() -> None:
    threat, x = sp.Budget(k=2, pattern=CROSS).resolve((1, 4, 4)), torch.full((1, 1, 4, 4), 0.5)
    y = torch.zeros(1, dtype=torch.int64)
    rows = Images(x, y, y, torch.zeros(1), y, y, None, torch.zeros_like(x), torch.ones_like(x))
    bits = torch.stack([torch.ones(9), torch.zeros(9)]).bool()[None, None]
    shown = render(threat, rows, Candidate(torch.tensor([[0, 1]]), bits))
    expected = [[0.5, 1, 0, 0.5], [1, 0, 0, 0], [0.5, 1, 0, 0.5], [0.5, 0.5, 0.5, 0.5]]
    assert shown[0, 0].tolist() == expected
