"""Cascades: stages in sequence, each on the images that withstood the stages before it; and Sparse-AutoAttack (sAA),
the cascade of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, get_args

import torch
from torch import Tensor

from sparsepgd.errors import BudgetError, UnsupportedError
from sparsepgd.problem import Result, Targeted, Untargeted
from sparsepgd.problem.checks import check_fields, choice, count
from sparsepgd.problem.verify import untouched
from sparsepgd.search.anneal import SparseAnneal
from sparsepgd.search.attack import WORK, check_budget
from sparsepgd.search.contract import Attacker, Call, adopted
from sparsepgd.search.loop import Progress
from sparsepgd.search.random_search.cluster_rs import ClusterRS
from sparsepgd.search.random_search.sparse_rs import SparseRS
from sparsepgd.search.registry import registered
from sparsepgd.search.spgd import SparsePGD
from sparsepgd.threat import Budget

Version = Literal["paper", "standard"]
PART, LEAST = 5, 20  # the standard version of the ensemble has steps // PART steps of sPGD, at least LEAST
FIXED = ("clean_correct", "clean_prediction", "broken_by")  # fields that `merge` does not change


class Outcome(Protocol):
    """A dataclass with one row per image: a `Result`, or a `SearchResult`, which is not verified."""

    @property
    def fooled(self) -> Tensor: ...


D = TypeVar("D", bound=Outcome)


@dataclass(frozen=True, eq=False)
class Stage(Generic[D]):
    """`run` takes rows (n,) and a progress callback, and returns the outcome for these rows."""

    run: Callable[[Tensor, Progress], D]
    evaluations: int  # largest number for an image
    name: str = ""


def cascade(
    known: D,
    stages: Sequence[Stage[D]],
    left: Callable[[D], Tensor],
    add: Callable[[D, Tensor, D, str], D],
    progress: Progress | None = None,
    *,
    size: int | None = None,
    after: Callable[[int, D], None] | None = None,
) -> D:
    """The outcome after all stages. `known`: the outcome before them. `left`: returns the rows (n,) of the next stage.
    `add`: adds the outcome of a stage for some rows. `size`: rows at a time, default all. `after`: called after each
    stage."""
    shares = [stage.evaluations * len(known.fooled) for stage in stages]
    for number, stage in enumerate(stages):
        rows = left(known)
        others = int(known.fooled.sum()) - int(known.fooled[rows].sum())
        report = partial(_report_stage, progress, shares, number, others)
        for some in torch.split(rows, size or len(rows)) if len(rows) else ():
            known = add(known, some, stage.run(some, report), stage.name)
        report(1, 1, int(known.fooled.sum()) - others)
        if after is not None:
            after(number, known)
    return known


def _report_stage(
    progress: Progress | None, shares: list[int], number: int, others: int, done: int, most: int, fooled: int
) -> None:
    """Report the progress of one stage as that of the whole cascade. `shares`: evaluations of each stage; `others`:
    fooled images that are not in this stage."""
    if progress is not None and any(shares):
        progress(sum(shares[:number]) + shares[number] * done // max(most, 1), sum(shares), others + fooled)


def merge(before: D, rows: Tensor, part: D, won: Tensor | None = None) -> D:
    """`before` after more work on some of its rows: the outcome of the part where it `won`, (n,) bool, default
    everywhere. Steps and passes are added up."""
    new: dict[str, Any] = {}
    won = torch.ones_like(rows, dtype=torch.bool) if won is None else won.to(rows.device)
    for name, old in vars(before).items():
        if name not in FIXED:
            own = getattr(part, name).to(old)  # the part may be on another device
            new[name] = old.index_add(0, rows, own) if name in WORK else old.index_copy(0, rows[won], own[won])
    return replace(before, **new)  # type: ignore[type-var]


def survivors(result: Result) -> Tensor:
    """The rows (n,) that are classified correctly and not fooled so far."""
    return result.robust.nonzero()[:, 0]


def verified(before: Result, rows: Tensor, part: Result, name: str) -> Result:
    """`before` after an attack on survivors. Its outcome replaces theirs, because no attack before it succeeded."""
    broken = dict.fromkeys(rows[part.fooled.to(rows.device)].tolist(), name)
    by = tuple(broken.get(row, one) for row, one in enumerate(before.broken_by))
    return replace(merge(before, rows, part), broken_by=by)


@registered(name="saa+", compared=False, version="standard")
@registered(name="saa", compared=False, version="paper")
@dataclass(frozen=True, eq=False)
class SparseAutoAttack(Attacker):
    """A cascade of attacks, each on the survivors of those before.

    ``version``: "paper" is the paper's cascade (saa): sPGD unprojected, sPGD projected, Sparse-RS. "standard" (saa+)
    starts with SparseAnneal, which is much stronger on l0-trained models; it has all `steps`, sPGD a fifth of them. It
    ends with `queries` of Cluster-RS, or of Sparse-RS if the pattern is not pixels or features.
    ``attacks`` replaces the members: attacks, or anything with a name and the call signature of an attack.
    ``targeted`` adds sPGD towards each of the nine most likely wrong classes, with all its steps for each class; it is
    off because untargeted sPGD is stronger in the paper. Every member has the same seed and finds what it would find
    alone.
    """

    minimum_norm: ClassVar[bool] = False

    budget: Budget
    steps: int = count(10_000)
    queries: int = count(10_000)
    _: KW_ONLY
    version: Version = choice("paper", get_args(Version))
    attacks: tuple[Attacker, ...] | None = None
    targeted: bool = False
    quantize: bool = False

    def __post_init__(self) -> None:
        check_budget(self.budget)
        check_fields(self)
        if self.attacks is not None:
            object.__setattr__(self, "attacks", tuple(self.attacks))
        if self.attacks == ():
            raise UnsupportedError("attacks=() is empty; give at least one attack, or omit it")
        for member in self.members:  # which are checked when they are created
            own, allowed = member.budget, self.budget.allowed
            kept = allowed is None or (own.allowed is not None and torch.equal(own.allowed, allowed))
            wider = own.pattern != self.budget.pattern or own.k > self.budget.k or own.eps > self.budget.eps
            if wider or not kept:
                raise BudgetError(f"{member.name} has {own}, the ensemble {self.budget}; give both the same budget")
            if self.quantize and not member.quantize:
                raise UnsupportedError(
                    f"{member.name} has quantize=False, the ensemble quantize=True; set quantize=True for both"
                )

    @classmethod
    def of_length(cls, budget: Budget, steps: int, queries: int, **settings: Any) -> Self:
        return cls(budget, steps, queries, **settings)

    @classmethod
    def quick(cls, budget: Budget) -> Self:
        return cls(budget, 60, 300)

    @classmethod
    def at_cost(cls, budget: Budget, passes: int, **settings: Any) -> Self:
        """Each member of the paper's version gets a third. In the standard version SparseAnneal gets at most half,
        and the random search what sPGD does not use."""
        cascade = cls(budget, max(passes // 6 - 1, 1), passes // 3, **{**settings, "version": "paper"})
        for steps in range(max(passes // 4, 2), 1, -1) if settings.get("version") == "standard" else ():
            cascade = cls(budget, steps, 1, **settings)
            left = passes - 2 * (cascade.evaluations - cascade.queries)
            if left > 0:
                return replace(cascade, queries=left)
        return cascade

    @property
    def name(self) -> str:
        return "saa+" if self.version == "standard" else "saa"

    @property
    def members(self) -> tuple[Attacker, ...]:
        """The attacks in order. Those of other packages are assumed to respect the budget and the 8-bit grid, unless
        they declare others."""
        standard = self.version == "standard"
        steps = min(max(self.steps // PART, LEAST), self.steps) if standard else self.steps
        first = SparsePGD(self.budget, steps, "unprojected", quantize=self.quantize)
        second = SparsePGD(self.budget, steps, "projected", quantize=self.quantize)
        clusters = standard and isinstance(self.budget.pattern, ClusterRS.patterns)
        third = (ClusterRS if clusters else SparseRS)(self.budget, self.queries, quantize=self.quantize)
        members: tuple[Attacker, ...] = (first, second, third)
        if standard:
            members = (SparseAnneal(self.budget, self.steps, quantize=self.quantize), *members)
        if self.attacks is not None:
            members = tuple(adopted(one, budget=self.budget, quantize=self.quantize) for one in self.attacks)
        if self.targeted:
            members += (TopTargets(first), TopTargets(second))
        return members

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members in `broken_by`, numbered if several have the same name."""
        names = [member.name for member in self.members]
        before = [names[:place].count(name) for place, name in enumerate(names)]
        return tuple(f"{name}-{n + 1}" if n else name for name, n in zip(names, before, strict=True))

    @property
    def needs_gradient(self) -> bool:
        return any(member.needs_gradient for member in self.members)

    @property
    def evaluations(self) -> int:
        return sum(member.evaluations for member in self.members)

    @property
    def revision(self) -> int:
        return max(member.revision for member in self.members)

    def history(self, result: Result) -> dict[str, float]:
        """Clean accuracy, and robust accuracy after each member, in order."""
        left, broken, accuracy = int(result.clean_correct.sum()), Counter(result.broken_by), {}
        for name in ("clean", *self.names):
            left -= broken[name]
            accuracy[name] = left / len(result) if len(result) else torch.nan
        return accuracy

    def run(self, call: Call) -> Result:
        """The counters are sums over the members that worked on the image."""
        if not isinstance(call.goal, Untargeted | None):
            raise UnsupportedError(
                f"SparseAutoAttack is untargeted, but goal={call.goal!r}; for a target use "
                "SparseAnneal(budget)(..., goal=goal), or SparseAutoAttack(budget, targeted=True) to try likely targets"
            )
        return _in_turn(call, [(name, member, None) for name, member in zip(self.names, self.members, strict=True)])


@dataclass(frozen=True, eq=False)
class TopTargets(Attacker):
    """An attack towards each of the most likely wrong classes in turn. Every wrong prediction is a success."""

    needs_gradient: ClassVar[bool] = True
    minimum_norm: ClassVar[bool] = False

    attack: SparsePGD
    most: int = 9  # fewer if the model has fewer wrong classes

    @property
    def name(self) -> str:
        return f"{self.attack.name}-targeted"

    @property
    def budget(self) -> Budget:
        return self.attack.budget

    @property
    def quantize(self) -> bool:
        return self.attack.quantize

    @property
    def evaluations(self) -> int:
        return self.most * self.attack.evaluations

    def run(self, call: Call) -> Result:
        ranks = likeliest_wrong(call.clean, call.y, self.most).unbind(1)
        return _in_turn(call, [(self.name, self.attack, rank) for rank in ranks])


def _in_turn(call: Call, runs: Sequence[tuple[str, Attacker, Tensor | None]]) -> Result:
    """The cascade of (name, attack, targets (B,) or None). Every wrong prediction is a success, also with targets."""

    def run(attack: Attacker, target: Tensor | None, rows: Tensor, report: Progress) -> Result:
        goal = None if target is None else Targeted(target[rows], accept="any")
        return call.part(attack, rows, goal=goal, progress=report)

    stages = [Stage(partial(run, attack, target), attack.evaluations, name) for name, attack, target in runs]
    return cascade(untouched(call.x, call.y, call.clean), stages, survivors, verified, call.progress)


def likeliest_wrong(clean: Tensor, y: Tensor, most: int) -> Tensor:
    """(B, most) classes, the most likely first; fewer if the model has fewer wrong ones. `clean`: logits."""
    wrong = clean.scatter(1, y[:, None], -torch.inf)
    return wrong.topk(min(most, clean.shape[1] - 1)).indices
