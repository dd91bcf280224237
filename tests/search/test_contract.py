"""The interface of attacks: what an attack of another package must declare, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import UnsupportedError
from sparsepgd.search.contract import Foreign, adopted
from support.models import SmallConvNet, images, labelled

BUDGET = sp.Budget(k=3)


@dataclass(frozen=True, eq=False)
class Theirs:
    budget: sp.Budget
    name: str = "theirs"
    evaluations: int = 5
    given: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, model: Any, x: Tensor, y: Tensor, **options: Any) -> sp.Result:
        self.given.append(options)
        result: sp.Result = sp.SparsePGD(self.budget, 4)(model, x, y, **options)
        return result


def test_attackers_are_taken_as_they_are_and_others_with_the_attributes_they_have() -> None:
    ours = sp.SparsePGD(BUDGET, 4)
    assert adopted(ours) is ours
    theirs = adopted(Theirs(BUDGET))
    assert isinstance(theirs, Foreign)
    assert (theirs.name, theirs.budget, theirs.evaluations) == ("theirs", BUDGET, 5)
    assert (theirs.quantize, theirs.needs_gradient, theirs.minimum_norm) == (False, True, False)
    assert adopted(Theirs(BUDGET), budget=sp.Budget(k=9), quantize=True).quantize


def test_others_are_called_with_the_options_that_were_given() -> None:
    model, x = SmallConvNet().eval(), images(3)
    y = labelled(model, x)
    theirs = Theirs(BUDGET)
    result = adopted(theirs)(model, x, y, seed=4, batch_size=2)
    assert torch.equal(result.x_adv, sp.SparsePGD(BUDGET, 4)(model, x, y, seed=4, batch_size=2).x_adv)
    (given,) = theirs.given
    assert set(given) == {"seed", "index", "batch_size"}


def test_the_budget_of_others_is_replaced_if_they_are_dataclasses() -> None:
    theirs = adopted(Theirs(BUDGET)).with_budget(lambda budget: sp.Budget(k=2))
    assert isinstance(theirs, Foreign)
    assert theirs.budget.k == 2
    assert theirs.theirs.budget.k == 2  # type: ignore[attr-defined]

    class Fixed:
        name, budget = "fixed", BUDGET

        def __call__(self, *args: Any, **options: Any) -> sp.Result:
            raise AssertionError

    with pytest.raises(UnsupportedError, match="fixed has a budget that cannot be replaced"):
        adopted(Fixed()).with_budget(lambda budget: budget)


@pytest.mark.parametrize("what", ["spgd", sp.SparsePGD, None, lambda model, x, y: x])
def test_objects_that_are_not_attacks_are_refused(what: Any) -> None:
    with pytest.raises(UnsupportedError, match="is not an attack; expected one"):
        adopted(what, budget=BUDGET)
