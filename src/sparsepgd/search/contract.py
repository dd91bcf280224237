"""The interface of all attacks: what each declares, one call, one verified result.

Single attacks, cascades and attacks of other packages are `Attacker`s, and are run in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.kernels import begin_loading
from sparsepgd.problem.checks import check_classes, check_counts, check_images, check_index, check_labels
from sparsepgd.problem.engine import Engine, check_engine
from sparsepgd.problem.goals import Goal, LossName, Untargeted
from sparsepgd.problem.oracle import Model, Oracle, borrowed, check_logits, working_device
from sparsepgd.problem.shapes import of_any_shape, shape_of
from sparsepgd.problem.verify import Result, untouched
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a call, checked. The model is borrowed while the attack runs."""

    model: Model
    x: Tensor  # (B, C, H, W), at least one
    y: Tensor  # (B,) int64, where the images are
    seed: int
    goal: Goal | None
    logits: Callable[[Any], Tensor] | None
    index: Tensor  # (B,) int64
    batch_size: int | None
    engine: Engine | None
    progress: Progress | None
    device: torch.device  # of the model

    @property
    def size(self) -> int:
        """Images per batch: `batch_size` if given, otherwise 64 of 32x32 on a CPU and 1024 on a GPU, and fewer if they
        are larger: 83 of 224x224 on a GPU. If memory is too small, the search continues with half of them."""
        most, entries = (64, 1 << 17) if self.device.type == "cpu" else (1024, 1 << 22)
        return int(self.batch_size or max(8, min(most, entries // (self.x.shape[2] * self.x.shape[3]))))

    def oracle(self, loss: LossName) -> Oracle:
        return Oracle(self.model, self.goal or Untargeted(), loss, self.logits, self.device)

    @cached_property
    def clean(self) -> Tensor:
        """The logits of the clean images, (B, classes), checked."""
        clean = self.oracle("ce").answers(self.x, self.size)
        check_logits(clean)
        check_classes(self.y, clean.shape[1])
        return clean

    def part(
        self, attacker: Attacker, rows: Tensor, *, goal: Goal | None = None, progress: Progress | None = None
    ) -> Result:
        """The result of an attack on some of the images, which keep their `index`."""
        return attacker.for_rows(rows)(
            self.model, self.x[rows], self.y[rows], seed=self.seed, goal=goal, logits=self.logits,
            index=self.index[rows], batch_size=self.batch_size, engine=self.engine, progress=progress,
        )  # fmt: skip


class Attacker(ABC):
    """Base class of all attacks: a frozen dataclass with a method `run`, which receives checked arguments."""

    # Subclasses define these as fields, class attributes or properties. At run time there must be no property to
    # inherit, because a dataclass would take it for the default of a field.
    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...  # on the command line, in tables and records
        @property
        def budget(self) -> Budget: ...
        @property
        def quantize(self) -> bool: ...  # search on the 256-level grid, so that an 8-bit file is still adversarial
        @property
        def needs_gradient(self) -> bool: ...  # False: black box, the model may be any callable
        @property
        def minimum_norm(self) -> bool: ...  # early_stop=False searches for the fewest groups within the budget
        @property
        def evaluations(self) -> int: ...  # largest number of points that are evaluated for an image

    @property
    def revision(self) -> int:
        """Increased whenever the same settings lead to another search. A run cannot be resumed by another revision."""
        return 1

    @abstractmethod
    def run(self, call: Call) -> Result:
        """Attack every image on which the goal is not reached without an attack."""

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
        """Attack every image on which the goal is not reached without an attack, and verify the results.

        `goal`: default Untargeted(). `logits`: extracts the logits from the output of the model.
        `index`: (B,), keys of the random numbers of the images, default 0 to B - 1; with them a data set can be
        attacked in parts with the same result. `batch_size`: images per batch. `engine`: precision and compilation of
        the search. `progress`: called with (evaluations done, evaluations at most, images fooled).
        The images may be on the CPU while the model is on a GPU; the result is on the device of the images.
        Calls from several threads run one after the other.
        """
        check_images(x, self.quantize)
        check_counts(batch_size=batch_size)
        if not isinstance(goal, Goal | None):
            raise UnsupportedError(f"goal={goal!r}; expected a Goal, e.g. Untargeted() or Targeted(3)")
        check_engine(engine)
        y = check_labels(y, x)
        device = working_device(model, x)
        begin_loading(device)
        self.budget.resolve(shape_of(x), device)
        index = check_index(index, y)
        x = x.detach().clone() if x.is_inference() else x.detach()
        if not len(x):
            return untouched(x, y, x.new_zeros(0, 2))
        with borrowed(model, device):
            return self.run(Call(model, x, y, seed, goal, logits, index, batch_size, engine, progress, device))

    def with_budget(self, change: Callable[[Budget], Budget]) -> Self:
        return _with_budget(self, change)  # type: ignore[no-any-return]

    def for_rows(self, rows: Tensor) -> Self:
        """The attack for some of the images. If each image has its own allowed mask, it has those of these images."""
        theirs = self.budget.for_rows(rows)
        return self if theirs is self.budget else self.with_budget(lambda budget: budget.for_rows(rows))


def _with_budget(part: Any, change: Callable[[Budget], Budget]) -> Any:
    if isinstance(part, Budget):
        return change(part)
    if isinstance(part, tuple):
        return tuple(_with_budget(one, change) for one in part)
    if not is_dataclass(part) or isinstance(part, type) or not hasattr(part, "budget"):
        return part
    names = [field.name for field in fields(part) if field.init]
    return replace(part, **{name: _with_budget(getattr(part, name), change) for name in names})


@dataclass(frozen=True, eq=False)
class Foreign(Attacker):
    """An attack of another package, with a name and the call signature of an attack; made by `adopted`."""

    minimum_norm: ClassVar[bool] = False

    theirs: Callable[..., Result]
    name: str
    budget: Budget
    quantize: bool = False
    needs_gradient: bool = True
    evaluations: int = 1

    def run(self, call: Call) -> Result:
        """Passes on the options that were given; the attack need not support the others."""
        options = {name: vars(call)[name] for name in ("goal", "logits", "batch_size", "engine", "progress")}
        given = {name: value for name, value in options.items() if value is not None}
        return self.theirs(call.model, call.x, call.y, seed=call.seed, index=call.index, **given)

    def with_budget(self, change: Callable[[Budget], Budget]) -> Self:
        if hasattr(self.theirs, "budget") and not is_dataclass(self.theirs):
            raise UnsupportedError(
                f"{self.name} has a budget that cannot be replaced; make the attack a dataclass with a field budget"
            )
        return super().with_budget(change)


DECLARED = ("budget", "quantize", "needs_gradient", "evaluations")  # optional attributes of such an attack


def adopted(attack: Any, **assumed: Any) -> Attacker:
    """An `Attacker` as it is; any other object with a name and the call signature of an attack as a `Foreign` one.
    `assumed`: attributes that it may lack. A budget is required."""
    if isinstance(attack, Attacker):
        return attack
    if isinstance(attack, type) or not callable(attack) or not hasattr(attack, "name"):
        raise UnsupportedError(f"{attack!r} is not an attack; expected one, e.g. SparsePGD(budget)")
    known = assumed | {name: getattr(attack, name) for name in DECLARED if hasattr(attack, name)}
    if not isinstance(known.get("budget"), Budget):
        raise UnsupportedError(f"{attack.name} has no budget; use a dataclass with a field budget")
    return Foreign(attack, attack.name, **known)
