"""`spgd zoo`: the shipped models."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsepgd import tables, zoo
from sparsepgd.analysis.summary import counted
from sparsepgd.commands.common import out


def list_zoo(name: Annotated[str | None, typer.Argument(help="Show the card of this model.")] = None) -> None:
    """List the shipped models with their accuracy; robust is the lowest that was measured."""
    if name is not None:
        _show(zoo.card(name), zoo.where(name))
        return
    names = zoo.names()
    absent = ", ".join(one for one in zoo.FULL_SIZE if one not in names)
    caption = f"not here: {absent}, of weights/ in the repository; spgd zoo NAME says more" if absent else ""
    out.print(tables.models([(zoo.card(one), zoo.where(one).kind) for one in names], caption))


def _show(card: zoo.Card, location: zoo.Place) -> None:
    """Line by line, each whole, so that the command can be copied."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in card.arguments.items())
    trained = f"{card.method}, {counted(card.epochs, 'epochs')}, seed {card.seed}, {card.training_seconds:,.0f} s"
    lines = [
        ("model", card.name),
        ("", card.description),
        ("network", f"{card.architecture}({arguments}), {card.parameters:,} parameters"),
        ("weights", f"{location.weights(card.name)}"),
        ("sha256", card.sha256),
        ("trained", f"{trained} on {card.hardware}, torch {card.torch_version}"),
        ("command", card.command),
        ("clean", f"{card.clean_accuracy:.1%}"),
    ]
    robust = sorted(card.robust, key=lambda one: one.robust_accuracy)
    lines += [("" if i else "robust", f"{one.robust_accuracy:.1%} {one}") for i, one in enumerate(robust)]
    for title, words in [*lines, ("measured", card.measured)]:
        out.print(f"{title:<9}{words}", soft_wrap=True)
