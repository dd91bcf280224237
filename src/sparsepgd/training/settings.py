"""The method and the settings of a training run, as one frozen value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from sparsepgd.errors import UnsupportedError
from sparsepgd.search import ClusterRS
from sparsepgd.threat import Budget, Patches
from sparsepgd.validation import checked

AdversaryName = Literal["none", "spgd", "anneal", "pgd0", "loap", "linf", "l2", "l1"]
Gradient = Literal["random", "alternating", "unprojected", "projected"]
Mode = Literal["T", "F"]
Augment = Literal["crop+flip", "crop", "none"]
ScheduleName = Literal["paper", "one-cycle", "constant"]
ONE, ZERO, POSITIVE, SHARE = {"ge": 1}, {"ge": 0}, {"gt": 0}, {"ge": 0, "le": 1}  # limits, read by `checked`


@dataclass(frozen=True)
class Method:
    """``trades``: cross-entropy on clean images + lambda * KL; otherwise cross-entropy on adversarial ones."""

    name: str
    about: str
    adversary: AdversaryName
    trades: bool = False
    soft_targets: bool = False  # S
    noise: bool = False  # N
    defaults: dict[str, Any] = field(default_factory=dict)  # of Settings, unless other values are given


ONE_STEP = {"steps": 1, "alpha": 1.0, "beta": 1.0, "lam": 6.0}
SHORT_CYCLES = {"steps": 5, "multi_eps": 3}
METHODS = {
    method.name: method
    for method in (
        Method("plain", "cross-entropy on clean images", "none"),
        Method("sat", "sAT: cross-entropy under sPGD", "spgd"),
        Method("strades", "sTRADES: cross-entropy + lambda KL(clean || under sPGD)", "spgd", trades=True),
        Method("fast-ls", "Fast-LS-l0: sTRADES with one step, S and N", "spgd", True, True, True, ONE_STEP),
        Method("anneal-at", "cross-entropy under SparseAnneal", "anneal", defaults=SHORT_CYCLES),
        Method(
            "anneal-trades", "TRADES under SparseAnneal", "anneal", trades=True, defaults={**SHORT_CYCLES, "lam": 6.0}
        ),
        Method("pgd0-a", "PGD0-A: cross-entropy under PGD0", "pgd0"),
        Method("pgd0-t", "PGD0-T: TRADES under PGD0", "pgd0", trades=True),
        Method("loap-at", "LOAP+AT: cross-entropy under LOAP patches", "loap", defaults={"steps": 25}),
        Method("loap-trades", "LOAP+TRADES: TRADES under LOAP patches", "loap", trades=True, defaults={"steps": 25}),
        Method("linf", "cross-entropy under l_inf PGD", "linf", defaults={"steps": 10, "radius": 8 / 255}),
        Method("l2", "cross-entropy under l2 PGD", "l2", defaults={"steps": 10, "radius": 0.5}),
        Method("l1", "cross-entropy under l1 PGD", "l1", defaults={"steps": 10, "radius": 12.0}),
    )
}
ADDITIONS: dict[str, dict[str, Any]] = {
    "s": {"soft_targets": True},
    "n": {"noise": True},
    "sn": {"soft_targets": True, "noise": True},
}


def method(name: str) -> Method:
    """``strades``, or with additions ``strades+s``, ``strades+n``, ``strades+sn``: S soft targets, N sparse noise."""
    base, plus, more = str(name).lower().partition("+")
    if base not in METHODS or (plus and more not in ADDITIONS):
        raise UnsupportedError(
            f"method {name!r}; use one of {', '.join(METHODS)}, and for soft targets and noise add +s, +n or +sn"
        )
    known = METHODS[base]
    if not more:
        return known
    about = f"{known.about}, with {' & '.join(more.upper())}"
    defaults = {**known.defaults, "lam": 6.0} if known.trades else known.defaults  # as in the paper on S and N
    return replace(known, name=f"{base}+{more}", about=about, defaults=defaults, **ADDITIONS[more])


@dataclass(frozen=True)
class Settings:
    """The defaults are the paper's values unless noted. None: depends on the method, the budget or the data."""

    method: str
    budget: Budget  # to withstand; the training attack has multi_eps times as many groups
    others: tuple[Budget, ...] = ()  # further budgets to withstand; each batch is attacked under one of all
    epochs: int = field(default=100, metadata=ONE)
    batch: int = field(default=128, metadata=ONE)  # size over all workers
    lr: float = field(default=0.05, metadata=POSITIVE)
    schedule: ScheduleName = "paper"
    momentum: float = field(default=0.9, metadata=SHARE)
    nesterov: bool = False
    weight_decay: float = field(default=5e-4, metadata=ZERO)
    clip: float | None = field(default=None, metadata=POSITIVE)  # largest norm of the gradient
    ema: float | None = field(default=None, metadata=SHARE)  # decay of the weight average, per iteration
    # the training attack
    steps: int = field(default=20, metadata=ONE)
    steps_last: int | None = field(default=None, metadata=ONE)  # in the last epoch; rises linearly from `steps`
    mixed: float = field(default=0.0, metadata=SHARE)  # SparseAnneal: share of the batches that sPGD attacks instead
    searched: float = field(default=0.0, metadata=SHARE)  # SparseAnneal: share of a random search instead; needs keep
    queries: int | None = field(default=None, metadata=ONE)  # of this search; None: as many as a cycle has passes
    keep: bool = False  # SparseAnneal: continue from the perturbation that each image had in the previous epoch
    gradient: Gradient = "random"  # random: a fair coin for each batch; alternating: five epochs each
    mode: Mode = "T"  # TRADES: the attack maximises cross-entropy (T), or the divergence from the clean output (F)
    early_stop: bool = True
    multi_eps: int = field(default=6, metadata=ONE)
    multi_eps_others: int | None = field(default=None, metadata=ONE)  # for `others`; None: multi_eps
    multi_size: tuple[int, ...] = ()  # sides of square patches to train against, instead of the pattern of `budget`
    alpha: float | None = field(default=None, metadata=POSITIVE)  # 0.25, structured patterns 0.05
    beta: float | None = field(default=None, metadata=POSITIVE)
    tolerance: int = field(default=10, metadata=ONE)
    radius: float | None = field(default=None, metadata=POSITIVE)  # of the l_inf, l2 and l1 attacks
    # the loss
    lam: float = field(default=3.0, metadata=ZERO)  # lambda of TRADES
    soft_targets: bool = False  # S
    soft_from: float = field(default=0.5, metadata=SHARE)  # S begins after this share of the epochs
    soft_momentum: float = field(default=0.9, metadata=SHARE)
    noise: bool = False  # N
    # the rest
    seed: int = 0
    augment: Augment | None = None  # None: crop+flip for colour images of at least 24 pixels, none for others
    held_out: int | None = field(default=None, metadata=ZERO)  # monitor the training; None: 5 %, at most 1000
    watch_steps: int = field(default=20, metadata=ZERO)  # steps of attacks on them; 0: only clean accuracy
    watch_every: int = field(default=1, metadata=ONE)  # epochs
    bf16: bool | None = None  # None: on a GPU
    compile: bool | None = None  # None: on a GPU
    resident: bool | None = None  # all images on the device; None: if they fit
    loader_workers: int = field(default=0, metadata=ZERO)

    def __post_init__(self) -> None:
        kind = self.kind
        if self.nesterov and not self.momentum:
            raise UnsupportedError("nesterov=True with momentum=0; use a momentum larger than 0, or nesterov=False")
        if self.radius is None and kind.adversary in ("linf", "l2", "l1"):
            raise UnsupportedError(f"radius=None with {self.method!r}; expected a number larger than 0")
        if self.mode == "F" and not (kind.trades and kind.adversary == "spgd"):
            raise UnsupportedError(
                f"mode='F' with {self.method!r}; only sTRADES supports an adversary that maximises the divergence"
            )
        flat = [budget for budget in self.budgets if not budget.pattern.structured]
        if kind.adversary == "loap" and flat:
            raise UnsupportedError(
                f"{self.method!r} with {flat[0]}; LOAP places patches: use Patches(3) and the like, --pattern "
                "patch:3, or for this budget sat or strades"
            )
        for name in ("mixed", "searched", "keep"):
            if getattr(self, name) and kind.adversary != "anneal":
                raise UnsupportedError(f"{name} with {self.method!r}; only anneal-at and anneal-trades support it")
        self._check_search()
        if not all(side >= 1 for side in self.multi_size):
            raise UnsupportedError(f"multi_size={self.multi_size}; expected sides of at least 1")
        if self.multi_size and not isinstance(self.budget.pattern, Patches):
            raise UnsupportedError(f"multi_size with {self.budget}; it needs a pattern of patches, e.g. Patches(5)")
        if self.others and not self.sparse:
            raise UnsupportedError(f"others with {self.method!r}, which is not sparse; use e.g. anneal-trades")
        if self.multi_eps_others is not None and not self.others:
            raise UnsupportedError(f"multi_eps_others={self.multi_eps_others} without others; omit it, or name others")
        if any(budget.allowed is not None and budget.allowed.dim() == 3 for budget in self.budgets):
            raise UnsupportedError("one allowed mask per image is not supported in training; use one (H, W) for all")

    def _check_search(self) -> None:
        if self.queries is not None and not self.searched:
            raise UnsupportedError(f"queries={self.queries} without searched; omit it, or use e.g. searched=0.25")
        if not self.searched:
            return
        if not self.keep:
            raise UnsupportedError(f"searched={self.searched} without keep; the search needs it: use keep=True")
        if self.mixed + self.searched > 1:
            raise UnsupportedError(
                f"mixed={self.mixed} and searched={self.searched}; both are shares of the batches: use at most 1 in all"
            )
        if not any(isinstance(budget.pattern, ClusterRS.patterns) for budget in self.attacked):
            raise UnsupportedError(
                f"searched={self.searched} with {self.budget}; the search is for pixels and features: use searched=0"
            )

    @property
    def kind(self) -> Method:
        return method(self.method)

    @property
    def sparse(self) -> bool:
        """Whether the adversary is limited by `budget`."""
        return self.kind.adversary in ("spgd", "anneal", "pgd0", "loap")

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """All budgets to withstand."""
        return (self.budget, *self.others)

    @property
    def attacked(self) -> tuple[Budget, ...]:
        """Each batch is attacked under one of these budgets, with `multiple` times as many groups."""
        sizes = tuple(replace(self.budget, pattern=Patches(side)) for side in self.multi_size)
        return (*(sizes or (self.budget,)), *self.others)

    def turn(self, iteration: int) -> int:
        """The index in `attacked` of the budget for the batch of an iteration."""
        return self.seed_for("size", iteration) % len(self.attacked)

    def multiple(self, turn: int) -> int:
        """Multi-eps for a budget of `attacked`."""
        is_other = turn >= len(self.attacked) - len(self.others)
        return self.multi_eps_others if is_other and self.multi_eps_others is not None else self.multi_eps

    def anneals(self, iteration: int) -> bool:
        """Whether SparseAnneal, or the random search in place of it, attacks the batch of an iteration; otherwise sPGD
        does. False if the method does not use SparseAnneal."""
        return self.kind.adversary == "anneal" and self.seed_for("mixed", iteration) % 1000 >= 1000 * self.mixed

    def searches(self, iteration: int) -> bool:
        """Whether the random search, which supports only pixels and features, attacks the batch of an iteration."""
        drawn = self.seed_for("mixed", iteration) % 1000 >= 1000 * (1 - self.searched)
        return drawn and isinstance(self.attacked[self.turn(iteration)].pattern, ClusterRS.patterns)

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A separate seed for every purpose and every epoch or iteration."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{purpose}/{number}".encode()).digest()[:7], "big")


FIELDS = tuple(field.name for field in fields(Settings) if field.name not in ("method", "budget"))


def with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """A list or a single value is accepted where a setting has several values."""
    values = dict(values)
    for name in ("multi_size", "others"):
        if name in values:
            value = values[name]
            values[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values


def make_settings(name: str, budget: Budget, options: dict[str, Any]) -> Settings:
    """The values of the method, then `options`, checked. The error for an unknown option lists the known ones."""
    if wrong := sorted(set(options) - set(FIELDS)):
        raise UnsupportedError(f"no setting {wrong[0]!r}; use one of {', '.join(sorted(FIELDS))}")
    kind = method(name)
    values = with_tuples({"soft_targets": kind.soft_targets, "noise": kind.noise, **kind.defaults, **options})
    try:
        return checked(Settings, {"method": kind.name, "budget": budget, **values})
    except UnsupportedError:
        raise
    except ValueError as error:
        raise UnsupportedError(str(error)) from None
