"""Sparse-RS beside plain implementations of Croce et al.'s rules, for one image, fed with the same random numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.random_search.schedule import Schedule
from sparsepgd.search.random_search.sparse_rs import SparseRS
from sparsepgd.threat import Frame
from support.models import SmallConvNet, images, labelled


class Reference:
    """What the plain ones have in common: the schedule of queries, the acceptance rule, the random numbers."""

    def __init__(self, attack: SparseRS, model: SmallConvNet, x: Tensor, y: int, seed: int, index: int) -> None:
        self.attack, self.model, self.x, self.y = attack, model, x, y
        self.noise, self.index = Noise(seed), torch.tensor([index])
        assert attack.p_init is not None
        self.schedule = Schedule(attack.queries, attack.p_init, False, True, 4)
        self.kernel = attack.budget.pattern.kernel(*x.shape[1:]) > 0

    def draw(self, it: int, *sizes: int) -> list[list[float]]:
        numbers = self.noise.uniform(Stream.PROPOSAL, self.index, it, (sum(sizes),))[0]
        return [part.tolist() for part in numbers.split(sizes)]

    def ask(self, image: Tensor) -> tuple[float, float]:
        """(margin, objective), both to be made small."""
        logits = self.model(image[None])[0]
        others = torch.cat([logits[: self.y], logits[self.y + 1 :]])
        margin = float(logits[self.y] - others.max())
        return margin, margin if self.attack.loss == "margin" else float(logits.log_softmax(0)[self.y])

    def run(self) -> tuple[Tensor, int, bool]:
        """(best image, queries, fooled)."""
        best = self.start()
        margin, objective = self.ask(self.show(best))
        if margin < 0:
            return self.show(best), 1, True
        for it in range(1, self.attack.queries):
            new = self.change(best, it)
            margin, value = self.ask(self.show(new))
            if margin < 0:
                return self.show(new), it + 1, True
            if value < objective:
                best, objective = new, value
        return (self.show(best) if objective < self.ask(self.x)[1] else self.x), self.attack.queries, False

    def start(self) -> Any: ...
    def change(self, now: Any, it: int) -> Any: ...
    def show(self, now: Any) -> Tensor: ...


def corner(numbers: list[float]) -> Tensor:
    return torch.tensor([float(u > 0.5) for u in numbers], dtype=torch.float64)


def other_corner(tries: list[float], old: Tensor) -> Tensor:
    """The first of four draws that is not the old colour."""
    for t in range(4):
        if not torch.equal(corner(tries[t::4]), old):
            return corner(tries[t::4])
    return 1 - old


class PlainL0(Reference):
    """State: a list of (pixel, colour)."""

    def start(self) -> Any:
        (c, h, w), k = self.x.shape, self.attack.budget.k
        place, colour = self.draw(0, h * w, c * k)
        chosen = sorted(range(h * w), key=lambda i: -place[i])[:k]
        return [(pixel, corner(colour[j::k])) for j, pixel in enumerate(chosen)]

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), k = self.x.shape, self.attack.budget.k
        slot, place, colour, tries = self.draw(it, k, h * w, c * k, 4 * c)
        count = max(int(self.schedule.points(it) * k), 1)
        members = {pixel for pixel, _ in now}
        outside = sorted(set(range(h * w)) - members, key=lambda i: -place[i])
        new = list(now)
        for nth, j in enumerate(sorted(range(k), key=lambda j: slot[j])[:count]):
            pixel = outside[nth]
            clean = self.x[:, pixel // w, pixel % w]
            new[j] = (pixel, corner(colour[j::k]) if count > 1 else other_corner(tries, clean))
        return new

    def show(self, now: Any) -> Tensor:
        image = self.x.clone()
        for pixel, colour in now:
            image[:, pixel // image.shape[2], pixel % image.shape[2]] = colour
        return image


class PlainPatch(Reference):
    """State: (row, column, patch)."""

    def start(self) -> Any:
        (c, h, w), s = self.x.shape, len(self.kernel)
        n, most = min(20 * s * s, 1000), max(math.ceil(s**0.5), 2)
        place, size, top, left, colour = self.draw(0, (h - s + 1) * (w - s + 1), n, n, n, c * n)
        patch = torch.zeros(c, s, s, dtype=torch.float64)
        for b in range(n):
            side = 1 + int(size[b] * (most - 1))
            i, j = int(top[b] * (s - side + 1)), int(left[b] * (s - side + 1))
            patch[:, i : i + side, j : j + side] = corner(colour[b::n])[:, None, None]
        group = max(range(len(place)), key=lambda g: place[g])
        return group // (w - s + 1), group % (w - s + 1), patch

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), s, (row, column, patch) = self.x.shape, len(self.kernel), now
        _, shift, box, tries = self.draw(it, 1, 2, 4, 4 * c)
        sides = [max(int(self.schedule.patches(i) ** 0.5 * s), 1) for i in range(self.attack.queries)]
        side, first = sides[it], sides.index(1)
        reach = math.floor(0.75 * (1 - it / self.attack.queries) * h)
        if it % 4 == 0 and reach > 0:
            by = [int(u * (2 * reach + 1)) - reach for u in shift]
            return min(max(row + by[0], 0), h - s), min(max(column + by[1], 0), w - s), patch
        patch, corners = patch.clone(), s - side + 1
        i, j = divmod(int(box[0] * corners * corners), corners)
        if it >= first + (self.attack.queries - first) // 2:
            patch[int(box[3] * c), i, j] = 1 - patch[int(box[3] * c), i, j]
        elif side == 1:
            patch[:, i, j] = other_corner(tries, patch[:, i, j])
        else:
            patch[:, i : i + side, j : j + side] = corner(tries[::4])[:, None, None]
        return row, column, patch

    def show(self, now: Any) -> Tensor:
        (row, column, patch), s, image = now, len(self.kernel), self.x.clone()
        image[:, row : row + s, column : column + s] = patch
        return image


class PlainFrame(Reference):
    """State: an image, of which the border counts."""

    def start(self) -> Any:
        c, h, w = self.x.shape
        *_, colour = self.draw(0, 1, c * h * w)
        return corner(colour).view(c, h, w)

    def change(self, now: Any, it: int) -> Any:
        (c, h, w), width = self.x.shape, self.attack.budget.pattern.width  # type: ignore[attr-defined]
        _, _, box, tries = self.draw(it, 1, 2, 4, 4 * c)
        sides = [self.schedule.frame_side(i, width) for i in range(self.attack.queries)]
        side, first, border, new = sides[it], sides.index(1), self.kernel.nonzero().tolist(), now.clone()
        i, j = border[int(box[0] * len(border))]
        if it >= first + (self.attack.queries - first) // 2:
            new[int(box[3] * c), i, j] = 1 - new[int(box[3] * c), i, j]
        elif side == 1:
            new[:, i, j] = other_corner(tries, now[:, i, j])
        else:
            down, right = (-1 if u < 0.5 else 1 for u in box[1:3])
            for a in range(side):
                for b in range(side):
                    new[:, min(max(i + down * a, 0), h - 1), min(max(j + right * b, 0), w - 1)] = corner(tries[::4])
        return new

    def show(self, now: Any) -> Tensor:
        return torch.where(self.kernel, now, self.x)


@pytest.mark.parametrize(
    ("plain", "budget", "queries", "loss"),
    [
        (PlainL0, sp.Budget(k=1), 60, "ce"),
        (PlainL0, sp.Budget(k=6), 120, "margin"),
        (PlainPatch, sp.Budget(k=1, pattern=sp.Patches(2)), 60, "margin"),
        (PlainPatch, sp.Budget(k=1, pattern=sp.Patches(5)), 120, "ce"),
        (PlainFrame, sp.Budget(k=1, pattern=Frame(1)), 60, "ce"),
        (PlainFrame, sp.Budget(k=1, pattern=Frame(3)), 60, "margin"),
    ],
    ids=str,
)
def test_agrees_with_a_plain_implementation_given_the_same_random_numbers(
    plain: type[Reference], budget: sp.Budget, queries: int, loss: Any
) -> None:
    model, x = SmallConvNet(dtype=torch.float64).eval(), images(4, dtype=torch.float64)
    x[:, :, ::2] = x[:, :, ::2].round()  # half the pixels are corners already
    with torch.no_grad():
        model.net[-1].bias *= 4  # type: ignore[operator]
    y = labelled(model, x)
    attack = SparseRS(budget, queries, loss=loss)
    result = attack(model, x, y, seed=7, batch_size=1)
    for i in range(4):
        with torch.no_grad():
            image, used, fooled = plain(attack, model, x[i], int(y[i]), 7, i).run()
        assert (int(result.forwards[i]), bool(result.fooled[i])) == (used, fooled)
        assert torch.equal(result.x_adv[i], image)
