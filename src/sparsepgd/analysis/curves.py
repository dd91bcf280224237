"""Curves from few attacks: robust accuracy over steps from one result, over k from one run or by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from sparsepgd.analysis.summary import Rows
from sparsepgd.errors import BudgetError, UnsupportedError
from sparsepgd.problem import Result, Untargeted
from sparsepgd.problem.checks import check_counts, check_images, check_index, check_labels
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model
from sparsepgd.problem.shapes import seen_as_images, shape_of
from sparsepgd.search.attack import Attack
from sparsepgd.search.contract import Attacker, Call, adopted
from sparsepgd.search.ensemble import merge
from sparsepgd.threat import Budget

Steps: TypeAlias = Result | Rows  # both have, for each image, whether it was fooled and after how many steps
SHORTEST = 10  # the paper's histograms count fewer steps as this many


def accuracy_over_steps(result: Steps) -> tuple[Tensor, Tensor]:
    """(steps, robust accuracy after this number of steps), exact: one point at each change, and both ends.

    This is what the attack would have reached with fewer steps and early stopping, because a shorter run is the
    beginning of a longer one (for Sparse-RS only with a schedule that does not depend on the number of
    queries: constant_schedule=True or rescale=False). For an ensemble, the steps of all members are added up.
    """
    return _accuracy_over(result, "steps")


def accuracy_over_queries(result: Steps) -> tuple[Tensor, Tensor]:
    """(forward passes, robust accuracy after this number of passes), like `accuracy_over_steps`."""
    return _accuracy_over(result, "forwards")


def _accuracy_over(result: Steps, count: str) -> tuple[Tensor, Tensor]:
    taken, fooled, right = _columns(result, count, "fooled", "clean_correct")
    broken = taken[(fooled > 0) & (right > 0)]  # with a target, misclassified images are attacked, too
    most = taken.amax()[None] if len(taken) else taken
    steps = torch.unique(torch.cat([torch.zeros_like(most), broken, most]))
    lost = torch.searchsorted(broken.sort().values, steps, right=True)
    return steps, (right.sum() - lost).double() / max(len(taken), 1)


def steps_histogram(result: Steps, bins: int = 20) -> tuple[Tensor, Tensor]:
    """(edges (bins + 1,), counts (bins,)) of the steps until success, over log-spaced bins from 10 on.

    Images fooled in fewer than ten steps are in the first bin, as in the paper's figure.
    """
    check_counts(bins=bins)
    taken, fooled = _columns(result, "steps", "fooled")
    steps = taken[fooled > 0].double().clamp(min=SHORTEST)
    top = max(float(taken.max()) if len(taken) else 0.0, SHORTEST + 1.0)
    edges = torch.logspace(math.log10(SHORTEST), math.log10(top), bins + 1, dtype=torch.float64, device=steps.device)
    numbers = torch.bucketize(steps, edges[1:-1].contiguous(), right=True)  # [edge, next edge), the last one closed
    return edges, torch.bincount(numbers, minlength=bins)


def accuracy_over_k(result: Steps, k_max: int) -> tuple[Tensor, Tensor]:
    """(k, robust accuracy against k groups) for k = 0 to k_max, from a run of `Smallest`."""
    groups, fooled, right = _columns(result, "groups", "fooled", "clean_correct")
    ks = torch.arange(k_max + 1)
    needed = groups[(fooled > 0) & (right > 0)].sort().values.cpu()
    lost = torch.searchsorted(needed, ks, right=True)
    return ks, (right.sum().cpu() - lost).double() / max(len(groups), 1)


def _columns(result: Steps, *names: str) -> list[Tensor]:
    if isinstance(result, Result):
        return [getattr(result, name).long() for name in names]
    return [torch.tensor([getattr(row, name) for row in result.rows], dtype=torch.int64) for name in names]


@dataclass(frozen=True, eq=False)
class SmallestK:
    """The smallest k found for each image, with the adversarial image."""

    k: Tensor  # (B,) int64; 0: misclassified without an attack, k_max + 1: never fooled
    x_adv: Tensor  # like x, verified within k; the clean image where k is 0 or k_max + 1
    ks: tuple[int, ...]  # the values of k that were considered
    result: Result  # the outcome for each image at its k; counters are sums over all attacks

    @property
    def forwards(self) -> Tensor:
        return self.result.forwards

    @property
    def k_max(self) -> int:
        return self.ks[-1]

    def accuracy(self, k: int) -> float:
        """Robust accuracy for k, an upper bound. For k = 0 it is the clean accuracy."""
        if not 0 <= k <= self.k_max:
            raise BudgetError(f"k={k} was not searched; use 0 <= k <= {self.k_max}")
        return float((self.k > k).double().mean()) if len(self.k) else math.nan

    def curve(self) -> tuple[Tensor, Tensor]:
        """(k, robust accuracy) at 0 and at every k considered."""
        ks = (0, *self.ks)
        return torch.tensor(ks), torch.tensor([self.accuracy(k) for k in ks], dtype=torch.float64)


def smallest_k(
    attack: Attacker,
    model: Model,
    x: Tensor,
    y: Tensor,
    ks: int | Sequence[int],
    *,
    seed: int = 0,
    logits: Callable[[Any], Tensor] | None = None,
    index: Tensor | None = None,
    batch_size: int | None = None,
    engine: Engine | None = None,
) -> SmallestK:
    """The smallest k for each image among ks: 1 to k_max for an integer, or the given values.

    The result is an upper bound on the true minimum: each k up to k_max is backed by a verified adversarial image with
    at most k changed groups.
    ``attack`` is any attack that is a dataclass with a budget; the k of the budget is replaced.

    A minimum-norm attack (`minimum_norm`), such as SparseAnneal, is called once, with the largest k and
    early_stop=False. For any other attack, the search is a bisection over ks. It calls the attack at most once for each
    k, and each image is in at most log2(len(ks)) + 1 of the calls. The first call, for all images, is at the largest
    power of two among the positions in ks, the next ones at the odd multiples of its half, and so on. If success is
    monotone in k (the attack never fails at a k above one at which it succeeds), the result is the smallest k at which
    the attack succeeds, or less if an image needed fewer groups than allowed.
    """
    attack = adopted(attack)
    check_images(seen_as_images(x, attack.budget))
    y, ladder = check_labels(y, x), _ladder(ks, attack.budget, shape_of(x))
    numbers = check_index(index, y)
    x, result = x.detach().clone(), None  # of the first call, for all images, later the best of all calls
    # positions in ks, from 1: the largest at which an image was not fooled, the smallest at which it was
    failed, worked = torch.zeros_like(y), torch.full_like(y, len(ladder) + 1)
    for position in _positions(len(ladder), once=attack.minimum_norm):
        undecided = (failed < position) & (position < worked)
        rows = (undecided if result is None else undecided & result.clean_correct).nonzero()[:, 0]
        if not len(rows) and result is not None:
            continue
        part = _with_k(attack, ladder[position - 1]).for_rows(rows)(
            model, x[rows], y[rows], seed=seed, logits=logits, index=numbers[rows], batch_size=batch_size, engine=engine
        )
        won = part.fooled
        needed = torch.searchsorted(torch.tensor(ladder, device=y.device), part.groups[won]) + 1
        worked[rows[won]], failed[rows[~won]] = needed.clamp(max=position), position
        if result is not None:
            by = dict(zip(rows.tolist(), part.broken_by, strict=True))
            names = tuple(by.get(row) or one for row, one in enumerate(result.broken_by))
            part = replace(merge(result, rows, part, won), broken_by=names)
        result = part
    assert result is not None
    values = torch.tensor([*ladder, ladder[-1] + 1], device=y.device)
    k = torch.where(result.clean_correct, values[worked - 1], 0)
    fooled = result.fooled.view(-1, *[1] * (x.dim() - 1))
    return SmallestK(k, torch.where(fooled, result.x_adv, x), ladder, result)


def _positions(count: int, once: bool) -> Iterator[int]:
    """The positions in ks in the order in which they are tried: only the last, or all as in a bisection."""
    if once:
        yield count
        return
    stride = 1 << (count.bit_length() - 1)
    while stride:
        yield from range(stride, count + 1, 2 * stride)
        stride //= 2


@dataclass(frozen=True, eq=False)
class Smallest(Attacker):
    """An attack that searches for the smallest k up to that of its budget; `Result.groups` is the k that it found."""

    minimum_norm: ClassVar[bool] = False

    attack: Attacker  # or of another package
    budget: Budget

    @property
    def inner(self) -> Attacker:
        return adopted(self.attack, budget=self.budget)

    @property
    def name(self) -> str:
        return f"{self.attack.name}-smallest-k"

    @property
    def needs_gradient(self) -> bool:
        return self.inner.needs_gradient

    @property
    def quantize(self) -> bool:
        return self.inner.quantize

    @property
    def evaluations(self) -> int:
        return self.inner.evaluations * (1 if self.inner.minimum_norm else self.budget.k.bit_length())

    def run(self, call: Call) -> Result:
        if not isinstance(call.goal, Untargeted | None):
            raise UnsupportedError(f"the smallest k is untargeted, but goal={call.goal!r}; omit goal")
        result = smallest_k(
            self.attack, call.model, call.x, call.y, self.budget.k, seed=call.seed, logits=call.logits,
            index=call.index, batch_size=call.batch_size, engine=call.engine,
        ).result  # fmt: skip
        names = tuple(self.name if fooled else None for fooled in result.fooled.tolist())
        return replace(result, broken_by=names)


def _with_k(attack: Attacker, k: int) -> Attacker:
    """The attack with this k; a minimum-norm attack without early stopping."""
    changed = attack.with_budget(lambda budget: replace(budget, k=k))
    if isinstance(changed, Attack) and changed.minimum_norm:
        changed = replace(changed, early_stop=False)
    return changed


def _ladder(ks: int | Sequence[int], budget: Budget, shape: tuple[int, int, int]) -> tuple[int, ...]:
    if isinstance(ks, Integral):
        ks = range(1, int(ks) + 1)
    ladder = tuple(ks) if isinstance(ks, Iterable) else ()
    whole = all(isinstance(k, Integral) for k in ladder)
    if not (ladder and whole and ladder[0] >= 1 and all(low < high for low, high in pairwise(ladder))):
        raise BudgetError(f"ks={ks!r}; use an integer k_max >= 1, or increasing integers of at least 1")
    replace(budget, k=ladder[-1]).resolve(shape)
    return ladder
