"""Batches: every image once an epoch, the same whatever the batch, the workers and the way to the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sparsepgd as sp
from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.training.data import (
    Batch,
    Resident,
    Streamed,
    augmented,
    default_augment,
    images,
    resident,
    split,
    worker_order,
)
from sparsepgd.training.settings import Settings
from sparsepgd.training.team import Team
from support.models import images as random_images
from support.quadrants import quadrants

CPU = torch.device("cpu")
SETTINGS = Settings("sat", sp.Budget(k=2), batch=12)


def test_workers_divide_every_batch_of_one_process_among_them() -> None:
    rows = torch.arange(100, 150)
    alone = worker_order(rows, SETTINGS, 3, Team()).view(-1, 12)
    parts = [worker_order(rows, SETTINGS, 3, Team(rank, 3)).view(-1, 4) for rank in range(3)]
    assert len(alone) == 4
    for batch, *shared in zip(alone, *parts, strict=True):
        assert set(batch.tolist()) == set(torch.cat(shared).tolist())
    assert len(set(alone.flatten().tolist())) == 48
    assert not torch.equal(alone.flatten(), worker_order(rows, SETTINGS, 4, Team()))
    with pytest.raises(UnsupportedError, match="batch=12 for 5 workers"):
        worker_order(rows, SETTINGS, 0, Team(0, 5))
    with pytest.raises(UnsupportedError, match="2 training images for 3 workers; use at most 2 workers"):
        worker_order(rows[:2], SETTINGS, 0, Team(0, 3))


def test_held_out_images_are_not_trained_on() -> None:
    rows, held = split(100, SETTINGS)
    assert (len(rows), len(held)) == (95, 5)
    assert sorted([*rows.tolist(), *held.tolist()]) == list(range(100))
    assert len(split(100, replace(SETTINGS, held_out=0))[1]) == 0
    with pytest.raises(UnsupportedError, match="held_out=100 of 100 images"):
        split(100, replace(SETTINGS, held_out=100))


def test_eight_bit_images_are_kept_as_bytes_and_others_as_they_are() -> None:
    x, y = quadrants(8)
    kept = resident(x, y, CPU)
    assert kept.x.dtype == torch.uint8
    (batch,) = kept.batches(torch.arange(8), 8, 0)
    assert torch.equal(batch.x, x)
    assert torch.equal(resident(x * 0.999, y, CPU).x, x * 0.999)


def test_a_stream_gives_the_batches_that_resident_images_give() -> None:
    x, y = quadrants(20)
    order = torch.randperm(20)
    streamed = images(DataLoader(TensorDataset(x, y), 5), SETTINGS, CPU)
    kept = images((x, y), SETTINGS, CPU)
    assert isinstance(streamed, Streamed)
    assert isinstance(kept, Resident)
    assert (len(streamed), streamed.shape) == (len(kept), kept.shape) == (20, (1, 8, 8))
    pairs = list(zip(streamed.batches(order, 6, 0), kept.batches(order, 6, 0), strict=True))
    assert len(pairs) == 3  # two images are left over
    for a, b in pairs:
        assert torch.equal(a.rows, b.rows)
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    assert torch.equal(streamed.take(order[:4]).x, kept.take(order[:4]).x)


@pytest.mark.parametrize("kind", [Resident, Streamed])
def test_a_dataset_is_read_once_if_it_fits_or_is_streamed_if_asked_for(kind: type[Any]) -> None:
    wanted = replace(SETTINGS, resident=None if kind is Resident else False)
    assert isinstance(images(TensorDataset(*quadrants(4)), wanted, CPU), kind)
    assert isinstance(images(quadrants(4), wanted, CPU), kind)
    assert isinstance(images(list(zip(*quadrants(4), strict=True)), wanted, CPU), kind)


def test_a_stream_without_numbers_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(SourceError, match="use a map-style Dataset"):
        images(DataLoader(Endless()), SETTINGS, CPU)
    for data in (Endless(), 5):
        with pytest.raises(SourceError, match=r"resident=False with data of type (Endless|int); expected a pair"):
            images(data, replace(SETTINGS, resident=False), CPU)


def test_photographs_are_augmented_and_digits_are_not() -> None:
    assert default_augment((3, 32, 32)) == "crop+flip"
    assert default_augment((1, 8, 8)) == default_augment((1, 28, 28)) == default_augment((3, 16, 16)) == "none"


def test_a_crop_is_a_window_of_the_padded_image_and_half_are_mirrored() -> None:
    x = random_images(200, size=24)
    batch = Batch(torch.arange(200), x, torch.zeros(200, dtype=torch.int64))
    changed = augmented(batch, "crop+flip", seed=5)
    padded = torch.nn.functional.pad(x, (3,) * 4)
    mirrored = 0
    for i in range(200):
        windows = [padded[i, :, t : t + 24, left : left + 24] for t in range(7) for left in range(7)]
        same = any(torch.equal(changed[i], window) for window in windows)
        flipped = any(torch.equal(changed[i], window.flip(2)) for window in windows)
        assert same != flipped
        mirrored += flipped
    assert 70 < mirrored < 130
    assert torch.equal(augmented(batch, "none", 5), x)


def test_what_happens_to_an_image_does_not_depend_on_its_batch() -> None:
    x, rows = random_images(6, size=24), torch.tensor([9, 4, 7, 1, 0, 3])
    y = torch.zeros(6, dtype=torch.int64)
    whole = augmented(Batch(rows, x, y), "crop", 2)
    part = augmented(Batch(rows[3:], x[3:], y[3:]), "crop", 2)
    assert torch.equal(whole[3:], part)
    assert not torch.equal(whole, augmented(Batch(rows, x, y), "crop", 3))
