"""Groups given as index sets: for tabular features, signals, sensors, and other data without a grid of pixels.

The method of the paper needs only two maps, E and its adjoint. For a sliding kernel these are convolutions; for index
sets they are look-ups in two tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from sparsepgd.errors import PatternError
from sparsepgd.threat.patterns import Pattern


@dataclass(frozen=True)
class Groups(Pattern):
    """``Groups([[0, 1, 2], [3, 4]])``: each set of indices is a group. Sets may overlap and may omit indices.

    An index is a feature of x (B, F), a point in time of a signal (B, C, L), or a pixel of an image, counted row by
    row; all channels of a point change together. With ``features=True`` an index is a single entry, counted channel by
    channel, so that a group can be the measurements of one sensor.
    """

    sets: tuple[tuple[int, ...], ...]
    features: bool = False

    structured: ClassVar[bool] = False  # the paper's defaults for patches are meant for 10,000 steps (docs/sources.md)
    unit: ClassVar[str] = "groups"
    any_shape: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", tuple(_checked(number, one) for number, one in enumerate(self.sets)))
        if not self.sets:
            raise PatternError("no groups given; expected at least one set of indices, e.g. Groups([[0, 1], [2]])")

    def __hash__(self) -> int:  # fast, because caches that are read in every step use it as a key
        return hash((len(self.sets), self.sets[0], self.features))

    @classmethod
    def windows(cls, length: int, width: int, stride: int = 1) -> Groups:
        """Windows of a signal: ``windows(100, 5)`` has 96 groups of five consecutive points."""
        if not 1 <= width <= length or stride < 1:
            raise PatternError(f"windows of {width} with stride {stride} in {length} points; use 1 <= width <= length")
        return cls(tuple(tuple(range(start, start + width)) for start in range(0, length - width + 1, stride)))

    @classmethod
    def sensors(cls, channels: int, length: int) -> Groups:
        """Each channel of a signal (B, C, L) is a group."""
        return cls(tuple(tuple(range(c * length, (c + 1) * length)) for c in range(channels)), features=True)

    def kernel(self, height: int, width: int) -> Tensor:
        raise PatternError("Groups are index sets and have no kernel; use another pattern, e.g. Patches(3)")

    def cells(self, shape: tuple[int, int, int]) -> int:
        """Number of indices for images (C, H, W). An index beyond it is an error."""
        channels, height, width = shape
        count = height * width * (channels if self.features else 1)
        last = max(max(one) for one in self.sets)
        if last >= count:
            raise PatternError(f"index {last} in a group, but x has {count} places; use indices below {count}")
        return count

    def __repr__(self) -> str:
        sizes = [len(one) for one in self.sets]
        span = str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        return f"Groups({len(sizes)} of {span} {'entries' if self.features else 'places'})"


@dataclass(frozen=True, eq=False)
class Tables:
    """The incidence of groups and cells, in both directions; shorter rows are padded with -1."""

    members: Tensor  # (groups, most), the cells of each group
    holders: Tensor  # (cells, most), the groups that hold each cell

    @classmethod
    def of(cls, sets: tuple[tuple[int, ...], ...], cells: int, device: torch.device) -> Tables:
        groups = [torch.tensor(one) for one in sets]
        cell = torch.cat(groups)
        group = torch.arange(len(sets)).repeat_interleave(torch.tensor([len(one) for one in sets]))
        order = cell.argsort(stable=True)
        per_cell = list(torch.split(group[order], torch.bincount(cell, minlength=cells).tolist()))
        padded = (pad_sequence(rows, batch_first=True, padding_value=-1) for rows in (groups, per_cell))
        return cls(*(table.to(device) for table in padded))

    def to(self, device: torch.device) -> Tables:
        return Tables(self.members.to(device), self.holders.to(device))

    def expand(self, v: Tensor) -> Tensor:
        """(B, groups) -> (B, cells): min(A v, 1)."""
        return _sums(v, self.holders).clamp(max=1)

    def gather(self, values: Tensor) -> Tensor:
        """(B, cells) -> (B, groups): the adjoint without the clip."""
        return _sums(values, self.members)


def _sums(values: Tensor, table: Tensor) -> Tensor:
    """(B, rows of the table): for each row, the sum of the values at its indices."""
    return F.pad(values, (0, 1))[:, table].sum(2)  # -1 refers to the zero at the end


def _checked(number: int, indices: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(indices, Iterable):
        raise PatternError(f"group {number} is {indices!r}; expected a set of indices, e.g. Groups([[0, 1], [2]])")
    found = list(indices)
    if odd := [one for one in found if isinstance(one, bool) or not isinstance(one, Integral) or one < 0]:
        raise PatternError(f"group {number} holds {odd[0]!r}; expected indices 0, 1, 2, ...")
    if not found:
        raise PatternError(f"group {number} is empty; remove it")
    index, times = Counter(found).most_common(1)[0]
    if times > 1:
        raise PatternError(f"group {number} holds index {index} {times} times; list it once")
    return tuple(sorted(map(int, found)))
