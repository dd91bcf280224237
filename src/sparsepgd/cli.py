"""The command `spgd`."""

from __future__ import annotations

import sys

import typer

import sparsepgd
from sparsepgd.commands.attack import attack
from sparsepgd.commands.bench import measure
from sparsepgd.commands.common import err
from sparsepgd.commands.compare import compare
from sparsepgd.commands.detect import detect
from sparsepgd.commands.evaluate import evaluate, verify
from sparsepgd.commands.leaderboard import leaderboard
from sparsepgd.commands.report import report
from sparsepgd.commands.reproduce import reproduce
from sparsepgd.commands.train import train
from sparsepgd.commands.zoo import list_zoo
from sparsepgd.errors import BudgetError, InputError, SourceError, SparsePGDError, UnsupportedError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # letter:A:60 is no emoji
    help=sparsepgd.__doc__,
)
app.command()(evaluate)
app.command()(compare)
app.command()(attack)
app.command()(verify)
app.command()(train)
app.command()(detect)
app.command()(report)
app.command()(reproduce)
app.command()(leaderboard)
app.command("bench")(measure)
app.command("zoo")(list_zoo)


def main() -> None:
    """0 done, 1 failed, 2 wrong use. A traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(arguments)
    except SparsePGDError as error:
        if debug:
            raise
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError | BudgetError | UnsupportedError | SourceError) else 1)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(1)
