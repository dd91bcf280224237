"""`spgd zoo`: the shipped models."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sparsepgd import tables, zoo
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import out, print_json
from sparsepgd.errors import counted


def list_zoo(
    name: Annotated[str | None, typer.Argument(help="Show the card of this model.")] = None,
    as_json: arg.Json = False,
) -> None:
    """List the shipped models with their clean accuracy and the lowest robust accuracy measured."""
    cards = {one: zoo.card(one) for one in ([name] if name is not None else zoo.names())}
    if name is not None:
        _show(cards[name], zoo.where(name))
    else:
        absent = ", ".join(one for one in zoo.FULL_SIZE if one not in cards)
        caption = (
            f"not installed: {absent}; they are in weights/ of the repository, and spgd zoo NAME says how to get them"
            if absent
            else ""
        )
        out.print(tables.models([(card, zoo.where(one).kind) for one, card in cards.items()], caption))
    if as_json:
        print_json([json.loads(card.to_json()) for card in cards.values()])


def _show(card: zoo.Card, location: zoo.Place) -> None:
    """Print the card without wrapping its lines, so that the command can be copied."""
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
