"""The cascade: stages one after the other, each on the images that withstood those before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.result import Result
from sparsepgd.search.loop import Progress

WORK = ("steps", "forwards", "backwards")
FIXED = ("clean_correct", "clean_prediction", "broken_by")


class Outcome(Protocol):
    """A dataclass with one row an image: verified, `Result`, or claimed, `Found`."""

    @property
    def fooled(self) -> Tensor: ...


D = TypeVar("D", bound=Outcome)


@dataclass(frozen=True, eq=False)
class Stage(Generic[D]):
    """Rows (n,) and a way to tell its progress -> what comes of them."""

    run: Callable[[Tensor, Progress], D]
    evaluations: int  # for an image, at most
    name: str = ""


def cascade(
    before: D,
    stages: Sequence[Stage[D]],
    left: Callable[[D], Tensor],
    add: Callable[[D, Tensor, D, str], D],
    progress: Progress | None = None,
    *,
    size: int | None = None,
    after: Callable[[int, D], None] | None = None,
) -> D:
    """What is known after all stages. `left`: the rows (n,) that a stage is for; `add`: what was known and what came of
    some rows. `size`: rows at a time, all unless given. `after`: hears of every stage that is done."""
    shares = [stage.evaluations * len(before.fooled) for stage in stages]
    for number, stage in enumerate(stages):
        rows = left(before)
        others = int(before.fooled.sum()) - int(before.fooled[rows].sum())
        report = partial(tell, progress, sum(shares[:number]), shares[number], sum(shares), others)
        for some in torch.split(rows, size or len(rows)) if len(rows) else ():
            before = add(before, some, stage.run(some, report), stage.name)
        report(1, 1, int(before.fooled.sum()) - others)
        if after is not None:
            after(number, before)
    return before


def tell(progress: Progress | None, before: int, share: int, total: int, others: int, *own: int) -> None:
    """The progress of one stage, told as that of the whole cascade."""
    done, most, fooled = own
    if progress is not None and total:
        progress(before + share * done // max(most, 1), total, others + fooled)


def merge(before: D, rows: Tensor, part: D, won: Tensor | None = None) -> D:
    """`before` after more work on some of its rows: the outcome of the part where it won, (n,) bool, everywhere unless
    given; the work of both."""
    new: dict[str, Any] = {}
    won = torch.ones_like(rows, dtype=torch.bool) if won is None else won.to(rows.device)
    for name, old in vars(before).items():
        if name not in FIXED:
            own = getattr(part, name).to(old)  # the part may be of another device
            new[name] = old.index_add(0, rows, own) if name in WORK else old.index_copy(0, rows[won], own[won])
    return dataclasses.replace(before, **new)  # type: ignore[type-var]


def survivors(result: Result) -> Tensor:
    """The rows (n,) that are right and not fooled yet."""
    return result.robust.nonzero()[:, 0]


def verified(before: Result, rows: Tensor, part: Result, name: str) -> Result:
    """The outcome of an attack on survivors counts: it is a success, or fails as all before it did."""
    broken = dict.fromkeys(rows[part.fooled.to(rows.device)].tolist(), name)
    by = tuple(broken.get(row, one) for row, one in enumerate(before.broken_by))
    return dataclasses.replace(merge(before, rows, part), broken_by=by)
