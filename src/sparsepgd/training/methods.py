"""The training methods as data: which adversary, which loss, which additions, and the values they start from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparsepgd.errors import UnsupportedError

AdversaryName = Literal["none", "spgd", "anneal", "pgd0", "loap", "linf", "l2", "l1"]


@dataclass(frozen=True)
class Method:
    """``trades``: cross-entropy on clean images + lambda * KL; otherwise cross-entropy on adversarial ones."""

    name: str
    about: str
    adversary: AdversaryName
    trades: bool = False
    soft_targets: bool = False  # S
    noise: bool = False  # N
    defaults: dict[str, Any] = field(default_factory=dict)  # of Settings, where nothing else is asked for


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
    found = METHODS[base]
    if not more:
        return found
    about = f"{found.about}, with {' & '.join(more.upper())}"
    defaults = {**found.defaults, "lam": 6.0} if found.trades else found.defaults  # as the work that brought S and N
    return replace(found, name=f"{base}+{more}", about=about, defaults=defaults, **ADDITIONS[more])
