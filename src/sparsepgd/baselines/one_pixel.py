"""The one-pixel attack (Su, Vargas and Sakurai, 2019): differential evolution of the positions and colours of k pixels.

A black-box attack that uses the loss, by default the cross-entropy, which gives the same order as the probability in
the paper.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.problem.rows import select
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.search.standalone import Claims, Queries, Standalone
from sparsepgd.threat import LEVELS, Budget, Features, Pattern, Pixels, Threat

AT_ONCE = 100  # members of one population per forward pass


@registered()
@dataclass(frozen=True, eq=False)
class OnePixel(Standalone):
    """Black box. A member of the population is k points, each a position and a value per channel, all in [0, 1].

    A child is a + F * (b - c) of three different members, without crossover, and replaces its parent if its loss is
    larger. Defaults are the paper's: 400 members, 100 generations, F = 0.5, stop at success.
    """

    name: ClassVar[str] = "one-pixel"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features)
    needs_gradient: ClassVar[bool] = False
    passes_per_step: ClassVar[int] = 1
    quick_settings: ClassVar[dict[str, Any]] = {"population": 24, "generations": 8}

    population: int = count(400, least=4)
    generations: int = count(100)
    _: KW_ONLY
    scale: float = positive(0.5)  # the paper's F

    @classmethod
    def of_length(cls, budget: Budget, steps: int, queries: int, **settings: Any) -> Self:
        """As many generations as the queries allow, with a smaller population if these would be fewer than ten."""
        population = max(4, min(400, queries // 11))
        return cls(budget, population, max(queries // population - 1, 1), **settings)

    @property
    def evaluations(self) -> int:
        return self.population * (self.generations + 1)  # the first population is evaluated, too

    def attack_batch(self, oracle: Queries, threat: Threat, images: Images, noise: Noise) -> Tensor:
        claims, P = Claims.none(images), self.population
        genes = self._first(threat, images, noise)  # (B, P, k, coordinates + values)
        rows = torch.arange(len(images.y), device=images.y.device)
        loss = self._try(oracle, threat, images, rows, genes, claims)  # (B, P)
        for generation in range(1, self.generations + 1):
            rows = self.remaining(claims)
            if not len(rows):
                break
            parents = genes[rows]
            u = noise.uniform(Stream.PROPOSAL, images.index[rows], generation, (P, 3))
            a, b, c = (parents[torch.arange(len(rows), device=rows.device)[:, None], one] for one in _three(u, P))
            children = (a + self.scale * (b - c)).clamp(0, 1)
            grown = self._try(oracle, threat, images, rows, children, claims)
            better = grown > loss[rows]
            genes[rows] = torch.where(better[:, :, None, None], children, parents)
            loss[rows] = torch.where(better, grown, loss[rows])
        return claims.x_adv

    def _first(self, threat: Threat, images: Images, noise: Noise) -> Tensor:
        """Positions are uniform, values are normal around middle grey: N(128, 127) of 255."""
        places, values = _genes(threat)
        shape = (self.population, self.budget.k)
        where = noise.uniform(Stream.MASK, images.index, 0, (*shape, places))
        value = 128 / LEVELS + 127 / LEVELS * noise.normal(Stream.MAGNITUDE, images.index, 0, (*shape, values))
        return torch.cat([where, value.clamp(0, 1)], 3)

    def _try(
        self, oracle: Queries, threat: Threat, images: Images, rows: Tensor, genes: Tensor, claims: Claims
    ) -> Tensor:
        """The loss of each member (n, P); records the best points."""
        loss = []
        for part in torch.split(genes, AT_ONCE, 1):
            several = rows.repeat_interleave(part.shape[1])
            x = self._paint(threat, select(images, several), part.flatten(0, 1))
            seen: Evaluation = oracle.evaluate(x, several)
            claims.offer(x, several, seen)
            loss.append(seen.loss.view(part.shape[:2]))
        return torch.cat(loss, 1)

    def _paint(self, threat: Threat, images: Images, genes: Tensor) -> Tensor:
        """The images with k points set by genes (N, k, coordinates + values); 0 and 1 are the ends of the box."""
        places, _ = _genes(threat)
        size = genes.new_tensor(threat.grid[-places:])
        where = (genes[:, :, :places] * size).floor().clamp(max=size - 1).long()  # (N, k, coordinates)
        index = where[:, :, 0]
        for axis in range(1, places):
            index = index * threat.grid[-places:][axis] + where[:, :, axis]
        low, high = (each.reshape(len(genes), -1, math.prod(threat.grid)) for each in (images.low, images.high))
        p = torch.zeros_like(low)
        mask = torch.zeros_like(p)
        for point, value in zip(index.unbind(1), genes[:, :, places:].unbind(1), strict=True):
            here = point[:, None, None].expand(-1, low.shape[1], 1)
            ends = low.gather(2, here), high.gather(2, here)
            aim = ends[0] + value[:, :, None].to(low.dtype) * (ends[1] - ends[0])
            p.scatter_(2, here, aim - images.x.reshape(low.shape).gather(2, here))
            mask.scatter_(2, here, 1)
        return images.render(p.view_as(images.x), mask.view_as(images.x), self.quantize)


def _genes(threat: Threat) -> tuple[int, int]:
    """Number of genes for the position of a point, and number of genes for its values."""
    return (3, 1) if threat.budget.pattern.per_channel else (2, threat.shape[0])


def _three(u: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three different integers below n from uniform numbers (..., 3)."""
    a, b, c = ((u * torch.tensor([n, n - 1, n - 2], device=u.device)).long()).unbind(-1)
    b = b + (b >= a)
    small, large = torch.minimum(a, b), torch.maximum(a, b)
    c = c + (c >= small)
    return a, b, c + (c >= large)
