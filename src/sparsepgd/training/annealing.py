"""SparseAnneal as the training attack: one short cycle for each batch, and the perturbations that are kept.

A cycle with few steps takes larger steps, so that its path is as long as that of the attack. The length of the path and
the number of groups at its end differ between images, because a model only withstands perturbations like those in
training. A model that withstands gradient attacks may still be fooled by clusters of points, which gradients do not
show. Therefore a short search of Cluster-RS may replace a cycle. From the clean image it would take hundreds of
queries; from the kept perturbations it takes few.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from sparsepgd.problem.oracle import Oracle
from sparsepgd.search import ClusterRS
from sparsepgd.search.anneal import ANNEALED, direction, strongest
from sparsepgd.search.loop import Images
from sparsepgd.search.moves import column, placed
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.clusters import Change, longest_side, numbers, varied
from sparsepgd.search.random_search.moves import draw_parts
from sparsepgd.search.random_search.sparse_rs import State
from sparsepgd.threat import Threat
from sparsepgd.training.team import Team

PATH = 2.4  # median of the first step times the number of steps, in units of eps
SPREAD = 0.5  # standard deviation of its logarithm over the images
DECAY = 1 / 6  # the last step, relative to the first
WIDTH = 20.0  # groups at the beginning of a cycle, relative to those at its end
AGAIN = 0.25  # share of the images that begin at the clean image although they have a kept perturbation
CONTINUED = 0.5  # path of the other images if groups overlap, relative to that from the clean image
PASSES = 2  # queries of a search per step of a cycle, which takes a forward and a backward pass
SQUARES = 0.5  # share of the images in which the search changes squares, not single points


def short_cycle(
    steps: int,
    tested: int,
    oracle: Oracle,
    threat: Threat,
    images: Images,
    kept: Tensor | None,
    noise: Noise,
) -> Tensor:
    """The points (B, C, H, W) after `steps` steps. `tested`: groups of the budget to withstand; each image gets a
    multiple of it, at most as many as the threat. `kept`: perturbations (B, C, H, W) to begin with."""
    eps, most = threat.budget.eps, threat.budget.k
    draws = noise.uniform(Stream.PROPOSAL, images.index, 0, (2,))
    spread = noise.normal(Stream.COIN, images.index, 0, (1,))[:, 0]
    size = eps * PATH / steps * torch.exp(SPREAD * spread)
    k = drawn_groups(draws[:, 0], tested, most)
    clean = torch.zeros_like(images.x)
    delta = clean if kept is None else torch.where(column(draws[:, 1]) < AGAIN, clean, kept)
    v = delta.new_zeros(len(delta), *threat.grid)
    if threat.overlapping and kept is not None:
        v = covering(threat, images, delta, k)
        delta = delta * threat.expand(v)
        size = torch.where(v.flatten(1).any(1), CONTINUED * size, size)
    for step in range(steps + 1):
        if not threat.overlapping:
            count = (k * WIDTH ** max(0.0, 1 - step / (ANNEALED.hold * steps))).round().long()
            count = count.clamp(max=math.prod(threat.grid))
            v = strongest(threat, images, delta, count, math.ceil(WIDTH * most))
            delta = delta * (threat.expand(v) > 0)
        point = images.render(delta, threat.expand(v), quantize=False)
        if step == steps:
            break
        seen = oracle.evaluate(point, images.y, images.label, gradient=True)
        assert seen.gradient is not None
        g = seen.gradient.float()
        risen = delta + column(size * DECAY ** (step / steps)) * direction(threat, g)
        if not threat.overlapping:
            delta = risen.clamp(-eps, eps)
            continue
        risen = images.clip(risen) * threat.expand(v)
        if step == 0:  # place the missing groups
            fresh, new = placed(threat, images, g, k - v.flatten(1).sum(1).long(), k, noise)
            risen, v = torch.where(threat.expand(v) > 0, risen, fresh), v.maximum(new)
        delta = risen
    return point


def drawn_groups(draw: Tensor, tested: int, most: int) -> Tensor:
    """(B,), 1, 2, ... times `tested`, at most `most`. `draw`: (B,), uniform in (0, 1)."""
    return tested * (1 + (draw * (most // tested)).long()).clamp(max=most // tested)


def covering(threat: Threat, images: Images, delta: Tensor, k: Tensor) -> Tensor:
    """(B, *grid), 1 on at most k (B,) groups that cover delta, chosen greedily: each covers the most of the rest."""
    v, left = delta.new_zeros(len(delta), *threat.grid), delta**2
    for number in range(threat.budget.k):
        score = threat.gather(left)
        wanted = (number < k) & left.flatten(1).any(1)
        v = v.maximum(threat.top_k(score, images.usable, wanted.long(), 1))
        left = left * (threat.expand(v) == 0)
    return v


@dataclass(frozen=True, eq=False)
class Continued(ClusterRS):
    """Cluster-RS that continues from given perturbations; the first query gives their loss."""

    _: KW_ONLY
    first: Change
    k: Tensor  # (B,), points that an image may have
    side: Tensor  # (B,), of the squares, 1: single points

    def start(self, threat: Threat, images: Images, noise: Noise) -> State[Change]:
        return State(self.first, images.clean_loss, torch.zeros_like(images.y, dtype=torch.bool), self.first)

    def change(self, threat: Threat, images: Images, kept: Change, it: Tensor, noise: Noise) -> Change:
        draws = draw_parts(noise, images, it, *numbers(images, kept.mask))
        return varied(self.budget, images, kept, draws, self.side, self.side == 1, self.k)


def short_search(
    queries: int, tested: int, oracle: Oracle, threat: Threat, images: Images, kept: Tensor, noise: Noise
) -> Tensor:
    """The points (B, C, H, W) with the largest loss, at least that of the kept perturbations `kept` (B, C, H, W).

    An image may have as many points as the cycle that found its perturbation: a multiple of `tested`. The search begins
    at the clean image, with squares, only if nothing is kept; otherwise a good perturbation would be replaced by a
    worse one."""
    draws = noise.uniform(Stream.PROPOSAL, images.index, 0, (2,))
    delta, most = images.clip(kept), threat.budget.k
    score = threat.gather(delta**2)
    used = (score > 0).flatten(1).sum(1)
    k = tested * (-(-used // tested)).clamp(max=most // tested)
    k = torch.where(used > 0, k, drawn_groups(draws[:, 0], tested, most))
    mask = (threat.top_k(score, images.usable, k, most) > 0) & (score > 0)
    side = torch.where((draws[:, 1] < SQUARES) | (used == 0), longest_side(k), 1)
    first = Change(mask, torch.where(mask, delta, 0.0))
    search = Continued(threat.budget, queries, early_stop=False, first=first, k=k, side=side)
    unknown = torch.full_like(images.y, -torch.inf, dtype=torch.float32)
    return search.perturb_batch(oracle, threat, replace(images, clean_loss=unknown), noise)


@dataclass(frozen=True, eq=False)
class Window:
    """The positions of the crops of a batch in the images with a border, and which are mirrored."""

    rows: Tensor  # (B, 1, H, 1)
    columns: Tensor  # (B, 1, 1, W)
    edge: int

    def of(self, canvas: Tensor) -> Tensor:
        """(B, C, H + 2 edge, W + 2 edge) -> (B, C, H, W)."""
        image, channel = _grid(canvas)
        return canvas[image, channel, self.rows, self.columns]

    def back(self, crop: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H + 2 edge, W + 2 edge), 0 outside the crop."""
        canvas = crop.new_zeros(*crop.shape[:2], *(side + 2 * self.edge for side in crop.shape[2:]))
        image, channel = _grid(crop)
        canvas[image, channel, self.rows, self.columns] = crop
        return canvas


def _grid(of: Tensor) -> tuple[Tensor, Tensor]:
    count, channels = of.shape[:2]
    return (
        torch.arange(count, device=of.device).view(-1, 1, 1, 1),
        torch.arange(channels, device=of.device).view(1, -1, 1, 1),
    )


class Changes:
    """The last perturbation of each image, in coordinates of the image with its border, in half precision."""

    def __init__(self, count: int, cells: int, shape: tuple[int, int, int], edge: int, device: torch.device) -> None:
        self.sides = (shape[1] + 2 * edge, shape[2] + 2 * edge)
        self.places = torch.zeros(count, cells, device=device, dtype=torch.int32)
        self.values = torch.zeros(count, shape[0], cells, device=device, dtype=torch.float16)
        self.mine = torch.zeros(count, device=device, dtype=torch.bool)  # what this worker has changed

    def of(self, rows: Tensor) -> Tensor:
        """(B, C, H + 2 edge, W + 2 edge)."""
        values, places = self.values[rows].float(), self.places[rows].long()
        flat = values.new_zeros(*values.shape[:2], self.sides[0] * self.sides[1])
        return flat.scatter_add(2, places[:, None].expand_as(values), values).view(*flat.shape[:2], *self.sides)

    def put(self, rows: Tensor, canvas: Tensor) -> None:
        """Store the largest entries of each canvas, as many as a perturbation may have."""
        flat = canvas.flatten(2)
        places = flat.abs().sum(1).topk(self.places.shape[1]).indices
        self.places[rows] = places.int()
        self.values[rows] = flat.gather(2, places[:, None].expand(-1, flat.shape[1], -1)).half()
        self.mine[rows] = True

    def share(self, team: Team) -> None:
        """Exchange the perturbations of all workers after an epoch, in which each image is used at most once."""
        self.places, self.values = team.latest(self.places, self.mine), team.latest(self.values, self.mine)
        self.mine.zero_()
