"""How much Sparse-RS changes, and when (Croce et al. 2022, sections on l0, patches and frames)."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from sparsepgd.threat import Frame, Pattern

STAGES = (50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries


@dataclass(frozen=True)
class Schedule:
    """How much changes in iteration it = 1, 2, ...; iteration 0 is the random start."""

    queries: int
    p_init: float
    constant: bool
    rescale: bool
    period: int

    def tau(self, it: int) -> int:
        return it * 10_000 // self.queries if self.rescale else it

    def points(self, it: int) -> float:
        """The share of the points that are replaced."""
        divisors = (1, 2, 4, 5, 6, 8, 10, 12, 15, 20)
        return self.p_init / (2 if self.constant else divisors[bisect_left((0, *STAGES), self.tau(it))])

    def patches(self, it: int) -> float:
        """The share of a patch that is filled."""
        return self.p_init / (2 if self.constant else 2 ** bisect_left((10, *STAGES), self.tau(it)))

    def frame_side(self, it: int, width: int) -> int:
        """The side of the square that is filled on a frame."""
        past = 0.0 if self.constant else self.tau(it) / (10_000 if self.rescale else self.queries)
        return max(3 * math.ceil(max((1 - past - 0.5) * self.p_init * width**2, 0.0)), 1)

    def sides(self, it: int, pattern: Pattern, kh: int, kw: int) -> tuple[int, int]:
        """Height and width of the box that is filled: the share p of a patch, or of the length of a line."""
        if isinstance(pattern, Frame):
            return (self.frame_side(it, pattern.width),) * 2
        p = self.patches(it)
        share = p if min(kh, kw) == 1 else math.sqrt(p)
        return max(int(share * kh), 1), max(int(share * kw), 1)

    def reach(self, it: int, side: int) -> int:
        """The largest move along an axis of the image: the share 0.75 (1 - it / queries) of its side."""
        return 3 * (self.queries - it) * side // (4 * self.queries)
