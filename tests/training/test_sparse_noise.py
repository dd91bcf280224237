"""Sparse noise: on random groups, at most as many as asked for, and nowhere else."""

from __future__ import annotations

import pytest
import torch

import sparsepgd as sp
from conftest import images
from sparsepgd.training.sparse_noise import sparse_noise


@pytest.mark.parametrize("most", [1, 5, 500])
def test_every_number_of_pixels_up_to_the_most_is_drawn(most: int) -> None:
    x = images(300, size=6)
    noisy = sparse_noise(x, sp.Budget(k=1).resolve((3, 6, 6)), most, torch.arange(300), 0)
    counts = (noisy != x).any(1).flatten(1).sum(1)
    assert set(counts.tolist()) == set(range(min(most, 35) + 1))
    assert noisy.min() >= 0
    assert noisy.max() <= 1


def test_noise_follows_the_pattern_the_size_and_the_allowed_pixels() -> None:
    x, rows = images(50, size=8), torch.arange(50)
    row = sparse_noise(x, sp.Budget(k=1, pattern=sp.Rows()).resolve((3, 8, 8)), 2, rows, 0)
    changed = (row != x).any(1)
    assert torch.equal(changed.all(2), changed.any(2))  # whole rows
    assert changed.any(2).sum(1).max() == 2
    small = sparse_noise(x, sp.Budget(k=1, eps=0.1).resolve((3, 8, 8)), 9, rows, 0)
    assert 0.05 < (small - x).abs().max() <= 0.1 + 1e-6
    half = torch.zeros(8, 8, dtype=torch.bool)
    half[:, :4] = True
    allowed = sparse_noise(x, sp.Budget(k=1, allowed=half).resolve((3, 8, 8)), 9, rows, 0)
    assert torch.equal(allowed[..., 4:], x[..., 4:])
    assert not torch.equal(allowed, x)


def test_the_noise_of_an_image_is_its_own() -> None:
    x, threat = images(6, size=6), sp.Budget(k=1).resolve((3, 6, 6))
    whole = sparse_noise(x, threat, 8, torch.arange(6), 3)
    assert torch.equal(whole[4:], sparse_noise(x[4:], threat, 8, torch.arange(4, 6), 3))
