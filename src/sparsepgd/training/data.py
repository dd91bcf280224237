"""Batches for training: images on the device, or a DataLoader if they do not fit.

The order of an epoch and the augmentation of an image depend on the seed, the epoch and the image, not on the batch, so
that a resumed run and several workers use the same images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sparsepgd.errors import SourceError, UnsupportedError, counted
from sparsepgd.problem.checks import check_images, check_labels
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.sources.tensors import as_tensors, is_pair
from sparsepgd.threat import LEVELS
from sparsepgd.training.annealing import Window
from sparsepgd.training.settings import Augment, Settings
from sparsepgd.training.team import Team

SHARE = 4  # resident images may take the free memory of a device divided by this
ON_HOST = 4 << 30  # bytes that a Dataset may take when it is read into memory


@dataclass(frozen=True, eq=False)
class Batch:
    rows: Tensor  # (B,) int64, indices of the images
    x: Tensor  # (B, C, H, W) in [0, 1]
    y: Tensor  # (B,) int64
    kept: Tensor | None = None  # (B, C, H, W), perturbations of the previous epoch


class Images(Protocol):
    """Labelled images by index."""

    def __len__(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...
    def take(self, rows: Tensor) -> Resident:
        """Some of the images, on the device."""

    def batches(self, order: Tensor, size: int, seed: int) -> Iterator[Batch]:
        """The images of `order` in batches of `size`; an incomplete last batch is dropped."""


@dataclass(frozen=True, eq=False)
class Resident:
    """All images on the device; as uint8 if they are 8-bit images, so that a batch is one gather."""

    x: Tensor  # (N, C, H, W)
    y: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def take(self, rows: Tensor) -> Resident:
        rows = rows.to(self.x.device)
        return Resident(self.x[rows], self.y[rows])

    def batches(self, order: Tensor, size: int, seed: int) -> Iterator[Batch]:
        for rows in torch.split(order.to(self.x.device), size)[: len(order) // size]:
            yield Batch(rows, as_float(self.x[rows]), self.y[rows])


@dataclass(frozen=True, eq=False)
class Streamed:
    """Images of a Dataset through a DataLoader. They are augmented like others, after the transforms of the Dataset."""

    source: Dataset[Any]
    workers: int
    device: torch.device

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.source[0][0].shape
        return channels, height, width

    def take(self, rows: Tensor) -> Resident:
        return resident(*as_tensors(Subset(self.source, rows.tolist())), self.device)

    def batches(self, order: Tensor, size: int, seed: int) -> Iterator[Batch]:
        chosen = Subset(self.source, order.tolist())
        draws, pinned = torch.Generator().manual_seed(seed), self.device.type == "cuda"
        loader: DataLoader[Any] = DataLoader(
            chosen, size, drop_last=True, num_workers=self.workers, pin_memory=pinned, generator=draws
        )
        for (x, y), rows in zip(loader, torch.split(order, size), strict=False):
            x, y, rows = (part.to(self.device, non_blocking=True) for part in (x, y, rows))
            yield Batch(rows, as_float(x), y.long())


def as_float(x: Tensor) -> Tensor:
    return x.float() / LEVELS if x.dtype == torch.uint8 else x.float()


def resident(x: Tensor, y: Tensor, device: torch.device) -> Resident:
    """The images as uint8 if this is lossless."""
    if x.dtype != torch.uint8:
        check_images(x)
        levels = (x * LEVELS).round()
        if bool((levels / LEVELS - x).abs().max() < 1e-6):
            x = levels.to(torch.uint8)
    return Resident(x.to(device).contiguous(), check_labels(y, x).to(device))


def images(data: Any, settings: Settings, device: torch.device) -> Images:
    """A pair (x, y), a Dataset or a DataLoader as batches. A DataLoader is read in every epoch, in an order of our own.
    A Dataset is read only once if it fits into memory; then its transforms must not be random."""
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset):
            raise SourceError("a DataLoader of an IterableDataset is not supported; use a map-style Dataset")
        if not settings.resident:
            return Streamed(data.dataset, settings.loader_workers or data.num_workers, device)
        data = data.dataset
    in_memory = _fits(data, device) if settings.resident is None else settings.resident
    if in_memory:
        return resident(*as_tensors(data), device)
    if isinstance(data, tuple | list):
        data = TensorDataset(*as_tensors(data))
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise SourceError(
            f"resident=False with data of type {type(data).__name__}; expected a pair (x, y) of tensors, a map-style "
            "Dataset of (image, label) or a DataLoader of one"
        )
    return Streamed(data, settings.loader_workers, device)


def _fits(data: Any, device: torch.device) -> bool:
    """Whether all images fit on the device, with one byte per value."""
    if isinstance(data, IterableDataset):
        return True  # there is no other way
    try:
        count = len(data[0] if is_pair(data) else data)
        needed = count * torch.as_tensor(data[0][0]).numel()
    except (TypeError, ValueError, RuntimeError, LookupError):
        return True  # no images; reading it raises an error that says what it is
    if device.type == "cuda":
        return needed < torch.cuda.mem_get_info(device)[0] // SHARE
    return isinstance(data, tuple | list) or needed < ON_HOST


def split(count: int, settings: Settings) -> tuple[Tensor, Tensor]:
    """Indices of the training images and of the held-out images."""
    kept = min(1000, count // 20) if settings.held_out is None else settings.held_out
    if not 0 <= kept < count:
        raise UnsupportedError(f"held_out={kept} of {counted(count, 'images')} leaves none for training; use fewer")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(settings.seed_for("split")))
    return order[kept:].sort().values, order[:kept].sort().values


def worker_batch(count: int, settings: Settings, team: Team) -> int:
    """Number of images in a batch of one worker, for `count` training images."""
    if settings.batch % team.world:
        raise UnsupportedError(f"batch={settings.batch} for {team.world} workers; use a multiple of their number")
    if count < team.world:
        raise UnsupportedError(
            f"{counted(count, 'training images')} for {team.world} workers; use at most {counted(count, 'workers')}"
        )
    return min(settings.batch, count) // team.world


def worker_order(rows: Tensor, settings: Settings, epoch: int, team: Team) -> Tensor:
    """This worker's part of an epoch's order: every `world`-th image of each batch. All workers have equally many."""
    batch = worker_batch(len(rows), settings, team) * team.world
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(settings.seed_for("order", epoch)))]
    return order[: len(rows) // batch * batch].view(-1, batch)[:, team.rank :: team.world].flatten()


def default_augment(shape: tuple[int, ...]) -> Augment:
    """Photographs are cropped and mirrored; digits and drawings are not, because this could change their class."""
    return "crop+flip" if shape[0] == 3 and min(shape[1:]) >= 24 else "none"


def border(shape: tuple[int, ...], how: Augment) -> int:
    """Width of the border around an image, from which crops are taken."""
    return 0 if how == "none" else max(shape[-2:]) // 8


def window(batch: Batch, how: Augment, seed: int) -> Window:
    """A random crop of each image with its border; half of the crops are mirrored."""
    count, _, height, width = batch.x.shape
    edge, device = border(batch.x.shape, how), batch.x.device
    draws = Noise(seed).uniform(Stream.PROPOSAL, batch.rows, 0, (3,))
    top, left = (draws[:, :2] * (2 * edge + 1)).long().T.reshape(2, count, 1, 1, 1)
    mirrored = (draws[:, 2] < 0.5).view(-1, 1, 1, 1) & (how == "crop+flip")
    row, column = torch.arange(height, device=device), torch.arange(width, device=device)
    column = torch.where(mirrored, width - 1 - column, column) + left
    return Window(row.view(1, 1, -1, 1) + top, column, edge)


def augmented(batch: Batch, how: Augment, seed: int) -> Tensor:
    return batch.x if how == "none" else window(batch, how, seed).of(pad(batch.x, (border(batch.x.shape, how),) * 4))
