"""`spgd zoo`: the shipped models."""

from __future__ import annotations

from sparsepgd import tables, zoo
from sparsepgd.commands.common import out


def list_zoo() -> None:
    """The shipped models, with measured accuracy."""
    out.print(tables.models([zoo.card(name) for name in zoo.names()]))
