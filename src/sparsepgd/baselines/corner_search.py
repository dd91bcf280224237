"""CornerSearch (Croce and Hein, 2019): all changes of one pixel to a corner of the box, then random unions of the best.

A black-box attack. The original is `CornerSearch` for the l0 ball without further constraints. Here the box is limited
by eps, and with `Features` a single entry moves to one of its two ends.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.problem.checks import count
from sparsepgd.problem.goals import Untargeted
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone
from sparsepgd.threat import Budget, Features, Pattern, Pixels, Threat

AT_ONCE = 100  # points of one image per forward pass; fixed, so that results do not depend on the batch


@registered("CS")
@dataclass(frozen=True, eq=False)
class CornerSearch(Standalone):
    """Black box. ``best`` is the paper's N, ``samples`` its N_iter, for each number of pixels and each class.

    Two arguments shorten the search: ``candidates`` is the number of random one-pixel changes to try instead of all
    H * W * 2^C; ``levels`` is how many sizes of unions up to k to try instead of 2, ..., k. With a target, changes are
    ranked once.
    """

    name: ClassVar[str] = "corner-search"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    needs_gradient: ClassVar[bool] = False
    passes_per_step: ClassVar[int] = 1
    quick_settings: ClassVar[dict[str, Any]] = {"best": 32, "samples": 3, "candidates": 128, "levels": 3}

    best: int = count(100)
    samples: int = count(3000)
    _: KW_ONLY
    candidates: int | None = count(None)
    levels: int | None = count(None)

    @classmethod
    def of_length(cls, budget: Budget, steps: int, queries: int, **settings: Any) -> Self:
        """Shortened to this many queries (for ten classes): half for single pixels, half for unions."""
        half, levels = max(queries // 2, 1), max(1, min(budget.k - 1, queries // 80))
        return cls(budget, samples=max(half // (10 * levels), 1), candidates=half, levels=levels, **settings)

    @property
    def evaluations(self) -> int:
        """For colour images of 32x32 and ten classes, because neither is known before the call."""
        return (self.candidates or 32 * 32 * 2**3) + len(self.sparsities) * 10 * self.samples

    @property
    def sparsities(self) -> list[int]:
        """The numbers of pixels that are tried together."""
        k, levels = self.budget.k, self.levels or self.budget.k
        return sorted({math.ceil(k * (i + 1) / levels) for i in range(levels)} - {1})

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims = Claims.none(images)
        order = self._orderings(oracle, threat, images, noise, claims)  # (B, R, N)
        N, orderings = order.shape[2], order.shape[1]
        for j in self.sparsities:
            for r in range(orderings):
                for start in range(0, self.samples, AT_ONCE):
                    rows, tries = self.remaining(claims), min(AT_ONCE, self.samples - start)
                    if not len(rows):
                        return claims.x_adv
                    step = (j * orderings + r) * self.samples + start
                    u = noise.uniform(Stream.PROPOSAL, images.index[rows], step, (tries * j,))
                    index = N - 1 - (u.sqrt() * N).long().clamp(max=N - 1)  # better ranked changes are more likely
                    changes = order[rows, r].gather(1, index).view(len(rows), tries, j)
                    self._try(oracle, threat, images, rows, changes, claims)
        return claims.x_adv

    def _orderings(self, oracle: Queries, threat: Threat, images: Images, noise: Noise, claims: Claims) -> Tensor:
        """The N best one-pixel changes for each class r by z_r - z_y, for class y by the margin: (B, R, N)."""
        rows = torch.arange(len(images.y), device=images.y.device)
        best, ids = images.x.new_empty(0), rows
        for change in torch.split(self._candidates(threat, images, noise), AT_ONCE, 1):
            logits = self._try(oracle, threat, images, rows, change[:, :, None], claims)  # (B, n, classes)
            score = self._scores(oracle, images, logits).transpose(1, 2)  # (B, R, n)
            change = change[:, None].expand_as(score)
            if len(best):
                score, change = torch.cat([best, score], 2), torch.cat([ids, change], 2)
            best, index = score.topk(min(self.best, score.shape[2]), 2)
            ids = change.gather(2, index)
        return ids

    def _candidates(self, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """The one-pixel changes to try, (B, n), as pixel * corners + corner."""
        total = math.prod(threat.grid) * self._corners(threat)
        if self.candidates is None or self.candidates >= total:
            return torch.arange(total, device=images.y.device).expand(len(images.y), -1)
        return noise.uniform(Stream.MASK, images.index, 0, (total,)).topk(self.candidates, 1).indices

    @staticmethod
    def _scores(oracle: Queries, images: Images, logits: Tensor) -> Tensor:
        """The score of each point in each ranking, (B, n, R)."""
        goal, n = oracle.classifier.goal, logits.shape[1]
        label = images.label.repeat_interleave(n)
        towards = goal.loss(logits.flatten(0, 1), label, "margin").view(len(logits), n, 1)
        if not isinstance(goal, Untargeted):
            return towards
        y = images.y[:, None, None].expand(-1, n, 1)
        return (logits - logits.gather(2, y)).scatter(2, y, towards)

    def _try(
        self, oracle: Queries, threat: Threat, images: Images, rows: Tensor, changes: Tensor, claims: Claims
    ) -> Tensor:
        """The logits (n, tries, classes) with these changes (n, tries, j); later changes overwrite earlier ones."""
        n, tries, j = changes.shape
        own, corners = select(images, rows.repeat_interleave(tries)), self._corners(threat)
        x, low, high = (each.reshape(n * tries, -1, math.prod(threat.grid)) for each in (own.x, own.low, own.high))
        x, bit = x.clone(), torch.arange(x.shape[1], device=x.device)[:, None]
        for change in changes.reshape(-1, 1, j).unbind(2):
            point = (change // corners)[:, None].expand(-1, x.shape[1], 1)
            up = ((change % corners)[:, None] >> bit) & 1 > 0  # which channels go up
            x.scatter_(2, point, torch.where(up, high.gather(2, point), low.gather(2, point)))
        x = x.view_as(own.x)
        rows = rows.repeat_interleave(tries)
        logits = oracle.logits(x, rows)
        claims.offer(x, rows, oracle.judge(logits, rows))
        return logits.view(n, tries, -1)

    @staticmethod
    def _corners(threat: Threat) -> int:
        """Number of corners: 2^C for a pixel, 2 for a feature."""
        return 1 << (1 if threat.budget.pattern.per_channel else threat.shape[0])
