"""Random numbers keyed by (seed, image, step)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparsepgd.errors import UnsupportedError
from sparsepgd.search.noise import Noise, Stream

INDEX = torch.arange(64)


def test_draws_do_not_depend_on_batch_or_order() -> None:
    noise = Noise(7)
    step = torch.arange(64) % 5
    whole = noise.normal(Stream.MASK, INDEX, step, (1, 8, 8))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise.normal(Stream.MASK, INDEX[order], step[order], (1, 8, 8)), whole[order])
    assert torch.equal(noise.normal(Stream.MASK, INDEX[5:6], step[5:6], (1, 8, 8)), whole[5:6])


def test_seed_image_step_and_stream_each_change_the_draw() -> None:
    base = Noise(0).uniform(Stream.MASK, INDEX, 0, (16,))
    for other in (
        Noise(1).uniform(Stream.MASK, INDEX, 0, (16,)),
        Noise(0).uniform(Stream.MASK, INDEX, 1, (16,)),
        Noise(0).uniform(Stream.MAGNITUDE, INDEX, 0, (16,)),
        Noise(0).uniform(Stream.MASK, INDEX + 1000, 0, (16,)),
    ):
        assert float((base == other).float().mean()) < 0.01


def test_seeds_of_any_size_and_sign_are_accepted() -> None:
    draws = [Noise(seed).uniform(Stream.MASK, INDEX[:2], 0, (4,)) for seed in (-1, 0, 2**63, 2**64 - 1, 10**30)]
    assert torch.equal(draws[0], draws[3])  # equal modulo 2**64
    assert not torch.equal(draws[1], draws[2])


def test_integers_of_numpy_are_seeds_and_other_numbers_are_not() -> None:
    for seed in (0, 7, 2**62):
        drawn, expected = (Noise(one).again(1).uniform(Stream.MASK, INDEX, 0, (4,)) for one in (np.int64(seed), seed))
        assert torch.equal(drawn, expected)
    for wrong in (0.5, "0", None):
        with pytest.raises(UnsupportedError, match=f"seed={wrong!r}; expected an integer"):
            Noise(wrong)  # type: ignore[arg-type]


def test_uniform_is_uniform_and_open() -> None:
    u = Noise(3).uniform(Stream.MAGNITUDE, INDEX, 0, (4096,)).double().flatten()
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    counts = torch.histc(u, 64, 0, 1)
    expected = len(u) / 64
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert 30 < chi2 < 110  # 63 degrees of freedom: beyond this once in some 10,000 seeds


def test_normal_has_the_moments_and_tails_of_a_normal() -> None:
    z = Noise(3).normal(Stream.MASK, INDEX, 0, (4096,)).double().flatten()
    assert abs(float(z.mean())) < 0.01
    assert abs(float(z.std()) - 1) < 0.01
    assert abs(float((z**4).mean()) - 3) < 0.06
    assert abs(float((z.abs() > 1.959964).double().mean()) - 0.05) < 0.002


def test_neighbouring_entries_images_and_steps_are_uncorrelated() -> None:
    z = torch.stack([Noise(0).normal(Stream.MASK, INDEX, step, (1024,)) for step in range(4)]).double()
    for a, b in ((z[:, :, 1:], z[:, :, :-1]), (z[:, 1:], z[:, :-1]), (z[1:], z[:-1])):
        assert abs(float((a * b).mean())) < 0.012


def test_the_coin_is_fair() -> None:
    heads = sum(Noise(seed).coin() for seed in range(2000))
    assert 900 < heads < 1100
