"""Random search over index sets: legal candidates without a look at the device, and moves that reach everything."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import sparsepgd as sp
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.random_search.moves import Candidate, render
from sparsepgd.threat.norms import group_l0
from support.models import NoLook, images

SETS = [[0, 1, 2, 3], [4], [5, 6], [3, 7, 11], [8, 9, 10], [2, 9]]


def walk(budget: sp.Budget, queries: int = 60) -> list[tuple[Candidate, torch.Tensor, torch.Tensor]]:
    """Every proposal accepted: the candidates with their pictures and the clean ones."""
    x = images(3, channels=2, size=4)
    threat = budget.resolve((2, 4, 4))
    allowed, usable = threat.masks(3) or (None, None)
    y, (low, high) = torch.arange(3), threat.box(x, allowed, quantize=False)
    rows, noise = Images(x, y, y, torch.zeros(3), y, y, usable, low, high), Noise(0)
    moves = sp.SparseRS(budget, queries).moves_of(threat)
    found = [moves.start(rows, noise)]
    with NoLook():
        for step in range(1, queries):
            found.append(moves.after(found[-1], rows, torch.full((3,), step), noise))
    return [(one, render(threat, rows, one), x) for one in found]


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_candidates_stay_within_the_budget_and_differ(k: int, features: bool) -> None:
    pattern = sp.Groups(SETS, features=features)
    seen = set()
    for candidate, x_adv, x in walk(sp.Budget(k=k, pattern=pattern, eps=0.25)):
        assert all(len(set(row)) == k for row in candidate.groups.tolist())
        assert bool((group_l0(x_adv != x, pattern) <= k).all())
        assert float((x_adv - x).abs().max()) <= 0.25
        seen |= set(candidate.groups.flatten().tolist())
    assert seen == set(range(len(SETS))), "every group has its turn"


def test_groups_outside_the_mask_are_never_chosen() -> None:
    allowed = torch.zeros(4, 4, dtype=torch.bool)
    allowed.view(-1)[[4, 5, 9]] = True
    for candidate, x_adv, x in walk(sp.Budget(k=2, pattern=sp.Groups(SETS), allowed=allowed)):
        assert {1, 2, 4, 5}.issuperset(candidate.groups.flatten().tolist())
        assert not bool(((x_adv != x).any(1) & ~allowed).any())


def test_every_proposal_changes_something_and_single_cells_flip_in_one_channel() -> None:
    pictures = [x_adv for _, x_adv, _ in walk(sp.Budget(k=1, pattern=sp.Groups(SETS)), 200)]
    last = [(a != b).flatten(1).sum(1) for a, b in pairwise(pictures[150:])]
    assert all(bool((one == 1).all()) for i, one in enumerate(last, 151) if i % 4)
