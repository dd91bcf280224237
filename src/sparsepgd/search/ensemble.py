"""Sparse-AutoAttack: attacks one after the other, each on the images that withstood all before it (paper, sAA)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

from sparsepgd.errors import BudgetError, UnsupportedError
from sparsepgd.problem import Goal, Result, Targeted, Untargeted
from sparsepgd.problem.checks import check_classes, check_images, check_index, check_labels
from sparsepgd.problem.engine import Engine
from sparsepgd.problem.oracle import Model, Oracle, borrowed, check_logits, working_device
from sparsepgd.problem.shapes import of_any_shape
from sparsepgd.search.anneal import SparseAnneal
from sparsepgd.search.attack import check_budget, check_counts, usual_batch
from sparsepgd.search.loop import Progress
from sparsepgd.search.random_search.sparse_rs import SparseRS
from sparsepgd.search.spgd import SparsePGD
from sparsepgd.threat import Budget

Version = Literal["paper", "standard"]
PART, LEAST = 5, 20  # of the standard version: sPGD has steps // PART, at least LEAST, after SparseAnneal with all


class Member(Protocol):
    """What an ensemble asks of an attack: a name, and the call shape and the verified result of every attack."""

    @property
    def name(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Result: ...


@dataclass(frozen=True, eq=False)
class SparseAutoAttack:
    """A cascade of attacks, each on the survivors of those before.

    ``version``: "paper" is the paper's cascade (saa): sPGD unprojected, sPGD projected, Sparse-RS. "standard" (saa+)
    begins with SparseAnneal, which is much stronger on l0-trained models; `steps` are its steps,
    sPGD has a fixed share of them, and `queries` are those of Sparse-RS.
    ``attacks`` takes the place of them all: anything with the call shape of an attack and a name.
    ``targeted`` adds sPGD led towards each of the nine likeliest wrong classes, as many steps for each class as for
    untargeted sPGD; it is off because untargeted sPGD is the stronger one in the paper. Every member gets the same
    seed, and the numbers of its images, so what it finds is what it would have found alone.
    """

    budget: Budget
    steps: int = 10_000
    queries: int = 10_000
    _: KW_ONLY
    version: Version = "paper"
    attacks: tuple[Member, ...] | None = None
    targeted: bool = False
    quantize: bool = False

    def __post_init__(self) -> None:
        check_budget(self.budget)
        check_counts(steps=self.steps, queries=self.queries)
        if self.version not in (versions := get_args(Version)):
            raise UnsupportedError(f"version={self.version!r}; use one of {', '.join(map(repr, versions))}")
        if self.attacks is not None:
            object.__setattr__(self, "attacks", tuple(self.attacks))
        if self.attacks == ():
            raise UnsupportedError("attacks=() is empty; name at least one attack, or leave it out")
        if self.version == "standard":
            SparseAnneal(self.budget, self.steps)  # it says if these steps are too few
        for member in self.attacks or ():
            _check_member(member, self.budget, self.quantize)

    @property
    def name(self) -> str:
        return "saa+" if self.version == "standard" else "saa"

    @property
    def members(self) -> tuple[Member, ...]:
        """The attacks in their order."""
        standard = self.version == "standard"
        steps = min(max(self.steps // PART, LEAST), self.steps) if standard else self.steps
        first = SparsePGD(self.budget, steps, "unprojected", quantize=self.quantize)
        second = dataclasses.replace(first, gradient="projected")
        members: tuple[Member, ...] = (first, second, SparseRS(self.budget, self.queries, quantize=self.quantize))
        if standard:
            members = (SparseAnneal(self.budget, self.steps, quantize=self.quantize), *members)
        members = self.attacks or members
        if self.targeted:
            members += (TopTargets(first), TopTargets(second))
        return members

    @property
    def names(self) -> tuple[str, ...]:
        """What `broken_by` calls the members: their names, numbered where two would be the same."""
        names = [member.name for member in self.members]
        before = [names[:place].count(name) for place, name in enumerate(names)]
        return tuple(f"{name}-{count + 1}" if count else name for name, count in zip(names, before, strict=True))

    @property
    def needs_gradient(self) -> bool:
        return any(getattr(member, "needs_gradient", True) for member in self.members)

    @property
    def evaluations(self) -> int:
        return sum(getattr(member, "evaluations", 1) for member in self.members)

    def history(self, result: Result) -> dict[str, float]:
        """The accuracy on clean images, and the robust accuracy after each member, in order."""
        left, count, accuracy = int(result.clean_correct.sum()), Counter(result.broken_by), {}
        for name in ("clean", *self.names):
            left -= count[name]
            accuracy[name] = left / len(result) if len(result) else torch.nan
        return accuracy

    @of_any_shape
    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        goal: Goal | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        index: Tensor | None = None,
        batch_size: int | None = None,
        engine: Engine | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """As for every attack. The counters are sums over the members that worked on the image."""
        if not isinstance(goal, Untargeted | None):
            raise UnsupportedError(
                f"SparseAutoAttack counts every wrong answer, but goal={goal!r}; for a target use "
                "SparseAnneal(budget)(..., goal=goal), or SparseAutoAttack(budget, targeted=True) to try likely targets"
            )
        call = _Call(model, x, y, seed, logits, index, batch_size, engine, progress)
        with call.checked(self.budget, self.quantize) as clean:
            return call.cascade(list(zip(self.names, self.members, strict=True)), clean)


@dataclass(frozen=True, eq=False)
class TopTargets:
    """An attack led towards the likeliest wrong classes, one after the other; every wrong answer counts."""

    needs_gradient: ClassVar[bool] = True

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

    @of_any_shape
    def __call__(self, model: Model, x: Tensor, y: Tensor, **options: Any) -> Result:
        call = _Call(model, x, y, **options)
        with call.checked(self.budget, self.quantize) as clean:
            targets = likeliest_wrong(clean, call.y, self.most)
            return call.cascade([(self.name, self.attack, rank) for rank in targets.unbind(1)], clean)


def likeliest_wrong(clean: Tensor, y: Tensor, most: int) -> Tensor:
    """(B, most) classes, the likeliest first; fewer if the model has fewer wrong ones. `clean`: logits."""
    wrong = clean.scatter(1, y[:, None], -torch.inf)
    return wrong.topk(min(most, clean.shape[1] - 1)).indices


@dataclass(eq=False)
class _Call:
    """What an ensemble was called with."""

    model: Model
    x: Tensor
    y: Tensor
    seed: int = 0
    logits: Callable[[Any], Tensor] | None = None
    index: Any = None
    batch_size: int | None = None
    engine: Engine | None = None
    progress: Progress | None = None

    @contextmanager
    def checked(self, budget: Budget, quantize: bool) -> Iterator[Tensor]:
        """Checks all; lends the model, and the logits of the clean images (B, classes)."""
        check_images(self.x, quantize)
        check_counts(batch_size=self.batch_size)
        self.y = check_labels(self.y, self.x)
        budget.resolve((self.x.shape[1], self.x.shape[2], self.x.shape[3]), self.x.device)
        self.index = check_index(self.index, self.y)
        if not len(self.x):
            yield self.x.new_zeros(0, 2)
            return
        device = working_device(self.model, self.x)
        with borrowed(self.model, device):
            self.x = self.x.detach().clone() if self.x.is_inference() else self.x.detach()
            size = int(self.batch_size or usual_batch(self.x, device))
            clean = Oracle(self.model, Untargeted(), "ce", self.logits, device).answers(self.x, size)
            check_logits(clean)
            check_classes(self.y, clean.shape[1])
            yield clean

    def cascade(self, runs: Sequence[tuple[Any, ...]], clean: Tensor) -> Result:
        """Each run, (name, attack) or (name, attack, targets (B,)), on the survivors of those before."""
        result = untouched(self.x, self.y, clean)
        shares = [getattr(run[1], "evaluations", 1) * len(self.x) for run in runs]
        for stage, (name, member, *target) in enumerate(runs):
            rows, fooled = result.robust.nonzero()[:, 0], int(result.fooled.sum())
            report = partial(tell, self.progress, sum(shares[:stage]), shares[stage], sum(shares), fooled)
            if len(rows):
                options = {"seed": self.seed, "logits": self.logits, "batch_size": self.batch_size, "progress": report}
                engine = {} if self.engine is None else {"engine": self.engine}  # others' attacks need not know it
                goal = {"goal": Targeted(target[0][rows], accept="any")} if target else {}
                attack, x, y, index = for_rows(member, rows), self.x[rows], self.y[rows], self.index[rows]
                part = attack(self.model, x, y, index=index, **options, **engine, **goal)
                result = merge(result, rows, part, name)
            report(1, 1, int(result.fooled.sum()) - fooled)
        return result


def tell(progress: Progress | None, before: int, share: int, total: int, others: int, *own: int) -> None:
    """The progress of one run, told as that of the whole cascade."""
    done, most, fooled = own
    if progress is not None and total:
        progress(before + share * done // max(most, 1), total, others + fooled)


def untouched(x: Tensor, y: Tensor, clean: Tensor) -> Result:
    """The result before any attack: clean images, and what the model says of them."""
    said, zero = clean.argmax(1), torch.zeros_like(y)
    loss, none = clean.new_full(y.shape, torch.nan), torch.zeros_like(y, dtype=torch.bool)
    return Result(x.clone(), none, said == y, zero, zero, zero, zero, zero, loss, said, said, (None,) * len(y))


def merge(before: Result, rows: Tensor, part: Result, name: str, only_fooled: bool = False) -> Result:
    """`before` after an attack on some of its rows: its verified outcome counts, its work is added.

    With `only_fooled` the outcome of a failure leaves what was there.
    """
    new: dict[str, Any] = {}
    fooled = part.fooled.to(rows.device)  # the part may be of another device
    won = fooled if only_fooled else torch.ones_like(fooled)
    for field in ("x_adv", "fooled", "l0", "groups", "loss", "prediction"):
        old, own = getattr(before, field), getattr(part, field)
        new[field] = old.index_copy(0, rows[won], own.to(old)[won])
    for field in ("steps", "forwards", "backwards"):
        old, own = getattr(before, field), getattr(part, field)
        new[field] = old.index_add(0, rows, own.to(old))
    broken = dict.fromkeys(rows[fooled].tolist(), name)
    new["broken_by"] = tuple(broken.get(row, one) for row, one in enumerate(before.broken_by))
    return dataclasses.replace(before, **new)


def rebudget(part: Any, change: Callable[[Budget], Budget]) -> Any:
    """An attack with another budget, also inside ensembles."""
    if isinstance(part, Budget):
        return change(part)
    if isinstance(part, tuple):
        return tuple(rebudget(one, change) for one in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type) or not hasattr(part, "budget"):
        return part
    names = [field.name for field in dataclasses.fields(part) if field.init]
    return dataclasses.replace(part, **{name: rebudget(getattr(part, name), change) for name in names})


def for_rows(member: Member, rows: Tensor) -> Member:
    """The attack for some of the images: where each image has an allowed mask of its own, with theirs."""
    budget = getattr(member, "budget", None)
    if not isinstance(budget, Budget) or budget.allowed is None or budget.allowed.dim() == 2:
        return member
    allowed = budget.allowed[rows.to(budget.allowed.device)]
    return rebudget(member, lambda whole: dataclasses.replace(whole, allowed=allowed))  # type: ignore[no-any-return]


def _check_member(member: Member, budget: Budget, quantize: bool) -> None:
    """A member may not do what the ensemble may not."""
    if isinstance(member, type) or not callable(member) or not hasattr(member, "name"):
        raise UnsupportedError(f"attacks holds {member!r}; expected attacks, e.g. SparsePGD(budget)")
    own: Budget = getattr(member, "budget", budget)
    kept = budget.allowed is None or (own.allowed is not None and torch.equal(own.allowed, budget.allowed))
    if own.pattern != budget.pattern or own.k > budget.k or own.eps > budget.eps or not kept:
        raise BudgetError(f"{member.name} has {own}, the ensemble {budget}; give both the same budget")
    if quantize and not getattr(member, "quantize", True):
        raise UnsupportedError(f"{member.name} does not stay on the 8-bit grid; give it quantize=True as well")
