"""How much of the paper's effort is spent: a minute, an hour, or all of it."""

from __future__ import annotations

from dataclasses import dataclass

from sparsepgd import options
from sparsepgd.baselines import PGD0
from sparsepgd.errors import UnsupportedError
from sparsepgd.search import SparsePGD
from sparsepgd.search.contract import Attacker
from sparsepgd.threat import Budget

SAA = ("sPGD_u", "sPGD_p", "RS")  # the members of sAA: what it breaks is what one of them breaks
OWN_LENGTH = ("sPGD_u", "sPGD_p", "RS")  # the others have passes


@dataclass(frozen=True)
class Scale:
    """Images, and the length of attacks and of training."""

    name: str
    images: int
    steps: int  # of sPGD
    queries: int  # of Sparse-RS
    passes: int | None  # of every other attack for an image; None: the settings of its paper
    epochs: int  # of the networks that a recipe trains
    training_images: int

    def attack(self, column: str, budget: Budget) -> Attacker:
        """An attack by its name in the paper's tables."""
        if column in OWN_LENGTH:
            return options.attack(column, budget, self.steps, queries=self.queries)
        if self.passes is None:
            return options.preset(column, budget, "paper")
        return options.at_cost(column, budget, self.passes)

    def cost(self, column: str, attack: Attacker) -> int:
        """About how many passes of the model an image takes at most."""
        return passes(attack) if column in OWN_LENGTH or self.passes is None else self.passes

    def projected(self, budget: Budget, **settings: float | int) -> SparsePGD:
        """sPGD projected, the attack of the ablations, with other settings."""
        return SparsePGD(budget, self.steps, "projected", **settings)  # type: ignore[arg-type]

    def pgd0(self, budget: Budget) -> PGD0:
        """PGD0 without restarts or targets, as long as sPGD."""
        return PGD0(budget, self.steps, restarts=1, targets=0)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("smoke", images=4, steps=20, queries=40, passes=40, epochs=4, training_images=700),
        Scale("small", images=100, steps=300, queries=1000, passes=600, epochs=20, training_images=1400),
        Scale("paper", images=1000, steps=10_000, queries=10_000, passes=None, epochs=100, training_images=1400),
    )
}


def scale(name: str) -> Scale:
    if name not in SCALES:
        raise UnsupportedError(f"scale {name!r}; use one of {', '.join(SCALES)}")
    return SCALES[name]


def passes(attack: Attacker) -> int:
    """The most passes of the model for an image, forwards and backwards together: an upper estimate."""
    return attack.evaluations * (1 + attack.needs_gradient)
