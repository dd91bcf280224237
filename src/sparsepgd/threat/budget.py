"""The budget: what the adversary may change, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsepgd.errors import AllowedError, BudgetError, PatternError, counted
from sparsepgd.kernels import kernels
from sparsepgd.threat.groups import Groups, Tables
from sparsepgd.threat.patterns import Pattern, Pixels

LEVELS = 255  # the largest level of an 8-bit image
OVERLAP = 32  # groups per pixel above which the FFT is faster than a convolution on a CPU


@dataclass(frozen=True, eq=False)
class Budget:
    """At most ``k`` groups of ``pattern`` may change, each value by at most ``eps``, where ``allowed`` is true.

    ``allowed`` is a boolean mask, (H, W) for all images or (B, H, W) with one mask per image.
    """

    k: int
    pattern: Pattern = field(default_factory=Pixels)
    eps: float = 1.0
    allowed: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, Pattern):
            raise PatternError(f"pattern={self.pattern!r}; expected a Pattern, e.g. Rows() or Patches(3)")
        if isinstance(self.k, bool) or not isinstance(self.k, Integral):
            raise BudgetError(f"k={self.k!r}; k counts {self.pattern.unit} and must be an integer")
        if self.k < 1:
            raise BudgetError(f"k={self.k}; use k >= 1, the number of {self.pattern.unit} that may change")
        if not (isinstance(self.eps, Real) and 0 < self.eps <= 1):
            raise BudgetError(f"eps={self.eps!r}; use 0 < eps <= 1, e.g. 8/255 (1: unbounded)")
        if self.allowed is not None:
            _check_allowed(self.allowed)
        object.__setattr__(self, "k", int(self.k))
        object.__setattr__(self, "eps", float(self.eps))

    def resolve(self, shape: tuple[int, int, int], device: torch.device | str = "cpu") -> Threat:
        """The budget for images of one shape (C, H, W): checked once, then only tensor operations."""
        return _resolved(self, shape, torch.device(device))

    def for_rows(self, rows: Tensor | slice) -> Budget:
        """The budget for some of the images, with their masks if each image has its own."""
        if self.allowed is None or self.allowed.dim() == 2:
            return self
        return replace(self, allowed=self.allowed[rows.to(self.allowed.device) if isinstance(rows, Tensor) else rows])

    def _resolve(self, shape: tuple[int, int, int], device: torch.device) -> Threat:
        _, height, width = shape
        threat = self._listed(shape, device) if isinstance(self.pattern, Groups) else self._sliding(shape, device)
        groups = math.prod(threat.grid)
        if self.k > groups:
            raise BudgetError(
                f"k={self.k} {self.pattern.unit}, but a {height}x{width} image has {groups}; use k <= {groups}"
            )
        if self.allowed is not None:
            if self.allowed.shape[-2:] != (height, width):
                raise AllowedError(
                    f"allowed mask of {tuple(self.allowed.shape)} for images of {height}x{width}; "
                    "use (H, W) or (B, H, W) of the same size"
                )
            if self.k > (fewest := threat.groups):
                raise BudgetError(
                    f"k={self.k} {self.pattern.unit}, but only {fewest} touch the allowed mask; use k <= {fewest}"
                )
        return threat

    def _sliding(self, shape: tuple[int, int, int], device: torch.device) -> Threat:
        channels, height, width = shape
        kernel = self.pattern.kernel(height, width)
        rows, columns = height - kernel.shape[0] + 1, width - kernel.shape[1] + 1
        if rows < 1 or columns < 1:
            raise PatternError(
                f"a pattern of {kernel.shape[0]}x{kernel.shape[1]} does not fit an image of {height}x{width}; "
                "use a smaller pattern or larger images"
            )
        grid = (channels if self.pattern.per_channel else 1, rows, columns)
        spectrum = None
        if device.type == "cpu" and kernel.numel() * rows * columns >= OVERLAP * height * width:
            spectrum = torch.fft.rfft2(kernel.double(), s=(height, width))
        return Threat(self, shape, grid, kernel.to(device)[None, None], spectrum=spectrum)

    def _listed(self, shape: tuple[int, int, int], device: torch.device) -> Threat:
        assert isinstance(self.pattern, Groups)
        tables = Tables.of(self.pattern.sets, self.pattern.cells(shape), device)
        row = torch.ones(1, 1, 1, tables.members.shape[1], device=device)  # as many cells as the largest set has
        return Threat(self, shape, (1, 1, len(self.pattern.sets)), row, tables)

    def __repr__(self) -> str:
        parts = [f"k={self.k}", repr(self.pattern)]
        if self.eps < 1:
            parts.append(f"eps={self.eps:.4g}")
        if self.allowed is not None:
            parts.append(f"allowed={tuple(self.allowed.shape)}")
        return f"Budget({', '.join(parts)})"


@dataclass(frozen=True, eq=False)
class Threat:
    """A budget resolved for one image shape.

    ``expand`` is E, the map from chosen groups to the pixels they cover, equation (map) of the paper;
    ``gather`` is its adjoint, the convolution of the backward pass. With a 1x1 kernel both are the identity. For
    index sets both are look-ups in tables.
    """

    budget: Budget
    shape: tuple[int, int, int]  # C, H, W
    grid: tuple[int, int, int]  # the group grid: channels (1, or C for Features), rows, columns
    kernel: Tensor  # (1, 1, kh, kw); of index sets, one row of cells
    tables: Tables | None = None  # of index sets
    spectrum: Tensor | None = None  # (H, W // 2 + 1) complex128, of a large kernel

    @property
    def pointwise(self) -> bool:
        """Whether a group is one point, so that the group grid is the image itself."""
        return self.kernel.numel() == 1 and self.tables is None

    @property
    def overlapping(self) -> bool:
        """Whether a group shares pixels with its neighbours, so that it can move by less than its own size."""
        (kh, kw), (_, rows, columns) = self.kernel.shape[2:], self.grid
        return self.tables is None and ((kh > 1 and rows > 1) or (kw > 1 and columns > 1))

    @property
    def groups(self) -> int:
        """Number of groups that touch an allowed pixel; the smallest one, if masks differ between images."""
        allowed = self.budget.allowed
        masks = self.masks(len(allowed) if allowed is not None and allowed.dim() == 3 else 1)
        return math.prod(self.grid) if masks is None or not len(masks[1]) else int(masks[1].flatten(1).sum(1).min())

    @property
    def lanes(self) -> int:
        """Number of channels in which a cell of a group changes: all, or 1 if each channel counts separately."""
        pattern = self.budget.pattern
        alone = pattern.features if isinstance(pattern, Groups) else pattern.per_channel
        return 1 if alone else self.shape[0]

    def cells(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        """Groups (B, k), as indices of the flat grid -> their cells (B, k, cells), as indices of the flat image (of the
        flat tensor, if each channel counts separately), and which of these are real: a kernel may have zeros, and a
        short index set is padded."""
        if self.tables is not None:
            place = self.tables.members[groups]
            return place.clamp(min=0), place >= 0
        width, columns = self.shape[2], self.grid[2]
        kh, kw = self.kernel.shape[2:]
        corner = groups // columns * width + groups % columns
        cell = torch.arange(kh, device=groups.device)[:, None] * width + torch.arange(kw, device=groups.device)
        return corner[:, :, None] + cell.flatten(), (self.kernel.flatten() > 0).expand(*groups.shape, -1)

    def expand(self, v: Tensor) -> Tensor:
        """(B, *grid), not negative -> (B, 1 or C, H, W): min(TConv(v, kernel), 1)."""
        if self.pointwise:
            return v
        if self.tables is not None:
            return self.tables.expand(v.flatten(1)).view(len(v), -1, *self.shape[1:])
        if self.spectrum is not None:
            chosen = v > 0
            covered = self._spread(chosen.double()) > 0.5  # number of groups, up to round-off
            if torch.equal(v, chosen.to(v.dtype)):  # only on a CPU, where this check is cheap
                return covered.to(v.dtype)
            least = torch.finfo(v.dtype).tiny  # covered pixels stay larger than 0
            return torch.where(covered, self._spread(v.double()).clamp(least, 1), 0).to(v.dtype)
        with torch.autocast(v.device.type, enabled=False):
            return F.conv_transpose2d(v, self.kernel.to(v.dtype)).clamp(max=1)

    def _spread(self, v: Tensor) -> Tensor:
        """TConv(v, kernel) by FFT in float64. The image is large enough that nothing wraps around."""
        size = self.shape[1:]
        found: Tensor = torch.fft.irfft2(torch.fft.rfft2(v, s=size) * self.spectrum, s=size)
        return found

    def gather(self, values: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, *grid): sum over channels (unless each counts separately), then Conv with the kernel."""
        if self.lanes > 1:
            values = values.sum(1, keepdim=True)
        if self.pointwise:
            return values
        if self.tables is not None:
            return self.tables.gather(values.flatten(1)).view(len(values), *self.grid)
        if self.spectrum is not None:
            product = torch.fft.rfft2(values.double()) * self.spectrum.conj()
            found: Tensor = torch.fft.irfft2(product, s=self.shape[1:])
            return found[..., : self.grid[1], : self.grid[2]].to(values.dtype)
        with torch.autocast(values.device.type, enabled=False):
            return F.conv2d(values, self.kernel.to(values.dtype))

    def top_k(
        self, score: Tensor, usable: Tensor | None, counts: Tensor | None = None, most: int | None = None
    ) -> Tensor:
        """1 on the k best groups of each image, 0 elsewhere: exactly k ones. Among equal scores, the first wins.
        `counts`: (B,), a number of groups for each image instead of k, at most `most`.

        Scores are non-negative float32, so their bit patterns have the same order. With the index in the lower
        half of an integer, no two are equal, and every device chooses the same groups. The order among equal scores
        matters: saturated scores are equal, and a random order makes the attack much weaker (docs/deviations.md, h).
        """
        if score.numel() and (found := kernels(score.device)) is not None and math.prod(self.grid) <= found.MOST:
            return self._top_k_at_once(found, score, usable, counts, most)
        bits = score.flatten(1).abs().view(torch.int32).long()  # -0.0 has the sign bit and would win
        if usable is not None:
            bits = bits.masked_fill(~usable.flatten(1), -1)
        rank = (bits << 32) - torch.arange(bits.shape[1], device=bits.device)
        if counts is None:
            counts, most = torch.full((len(rank),), self.budget.k, device=rank.device), self.budget.k
        least = _nth_largest(rank, counts, min(most or rank.shape[1], rank.shape[1]))
        return (rank >= least).to(score.dtype).view_as(score)

    def _top_k_at_once(
        self, kernels: Any, score: Tensor, usable: Tensor | None, counts: Tensor | None, most: int | None
    ) -> Tensor:
        """The same with a single GPU kernel."""
        if counts is None:
            counts = torch.full((len(score),), self.budget.k, device=score.device)
        elif most is not None:
            counts = counts.clamp(max=most)
        where = None if usable is None else usable.flatten(1)
        chosen: Tensor = kernels.top_k(score.flatten(1).contiguous(), where, counts)
        return chosen.view_as(score)

    def box(self, x: Tensor, allowed: Tensor | None, quantize: bool) -> tuple[Tensor, Tensor]:
        """The smallest and largest value of each entry, exact in the dtype of x: |x_adv - x| <= eps, [0, 1].

        Where nothing may change, both are x itself.
        """
        if quantize:
            reach = LEVELS * self.budget.eps + 1e-6
            levels = (x.double() * LEVELS).round()
            low = ((levels - reach).ceil().clamp(min=0)).to(x.dtype) / LEVELS
            high = ((levels + reach).floor().clamp(max=LEVELS)).to(x.dtype) / LEVELS
        elif self.budget.eps >= 1:
            low, high = torch.zeros_like(x), torch.ones_like(x)
        else:
            low, high = _exact_reach(x, self.budget.eps)
        if allowed is not None:
            low, high = torch.where(allowed, low, x), torch.where(allowed, high, x)
        return low, high

    def masks(self, count: int, device: torch.device | None = None) -> tuple[Tensor, Tensor] | None:
        """(allowed pixels (B, 1, H, W), usable groups (B, *grid)) for `count` images; None: all of them."""
        allowed = self.budget.allowed
        if allowed is None:
            return None
        if allowed.dim() == 3 and len(allowed) != count:
            raise AllowedError(
                f"{counted(len(allowed), 'allowed masks')} for {counted(count, 'images')}; give one per image, "
                "or one (H, W) for all"
            )
        allowed = allowed.to(device or self.kernel.device)
        pixels = allowed.expand(count, *allowed.shape[-2:])[:, None]
        values = pixels.float()
        if self.tables is not None:
            here = values if self.lanes == self.shape[0] else values.expand(-1, self.shape[0], -1, -1)
            usable = self.tables.to(values.device).gather(here.flatten(1)).view(count, *self.grid) > 0
        else:
            usable = (values if self.pointwise else F.conv2d(values, self.kernel.to(values.device))) > 0
        return pixels, usable.expand(count, *self.grid)


def _nth_largest(numbers: Tensor, n: Tensor, most: int) -> Tensor:
    """(B, 1): the n-th (B,) largest integer of each row, n at most `most`; for n = 0, a value larger than all. On a
    CPU, numpy sorts integers with vector instructions; torch does not, and takes ten times as long."""
    place = n.clamp(1, most)[:, None]
    if numbers.device.type == "cpu":
        ordered, rest = numbers.clone(), numbers.shape[1] - most
        ordered.numpy().partition(rest)
        ordered[:, rest:].numpy().sort()
        found = ordered.gather(1, numbers.shape[1] - place)
    else:
        found = numbers.topk(most).values.gather(1, place - 1)
    return torch.where(n[:, None] > 0, found, torch.iinfo(torch.int64).max)


@lru_cache(maxsize=8)
def _resolved(budget: Budget, shape: tuple[int, int, int], device: torch.device) -> Threat:
    """Cached, so that recorded steps do not copy the kernel to the device again. The cache is small, because it keeps
    budgets and their masks alive."""
    return budget._resolve(shape, device)


def _exact_reach(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The extreme values within eps of x and in [0, 1] that the dtype can represent."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    low = (x.double() - eps).clamp(min=0).to(x.dtype)
    high = (x.double() + eps).clamp(max=1).to(x.dtype)
    # after rounding, a value may be too far: the next float is the bit pattern plus or minus 1
    low = torch.where(x.double() - low.double() > eps, (low.view(bits) + 1).view(x.dtype), low)
    high = torch.where(high.double() - x.double() > eps, (high.view(bits) - 1).view(x.dtype), high)
    return low, high


def _check_allowed(allowed: Tensor) -> None:
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise AllowedError(f"allowed mask of type {kind}; expected a boolean tensor, e.g. mask > 0")
    if allowed.dim() not in (2, 3):
        raise AllowedError(f"allowed mask of shape {tuple(allowed.shape)}; expected (H, W) or (B, H, W)")
    empty = ~allowed.flatten(-2).any(-1)
    if bool(empty.any()):
        where = "" if allowed.dim() == 2 else f" for image {int(empty.nonzero()[0])}"
        raise AllowedError(
            f"the allowed mask is empty{where}, so no pixel may change; allow some pixels or omit the mask"
        )
