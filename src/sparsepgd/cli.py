"""The command `spgd`."""

from __future__ import annotations

import errno
import os
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

DEBUG = "With --debug, anywhere on the line, an error comes with its traceback."
INTERRUPTED = 130  # the exit code that typer makes of an interrupt
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # letter:A:60 is no emoji
    help=sparsepgd.__doc__,
    epilog=DEBUG,
)
for function in (evaluate, compare, attack, verify, train, detect, report, reproduce, leaderboard):
    app.command(epilog=DEBUG)(function)
app.command("bench", epilog=DEBUG)(measure)
app.command("zoo", epilog=DEBUG)(list_zoo)


def main() -> None:
    """0 done, 1 failed, 2 wrong use. A traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        app(arguments)
    except SparsePGDError as error:
        if debug:
            raise
        err.print(f"error: {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError | BudgetError | UnsupportedError | SourceError) else 1)
    except OSError as error:
        if debug or (error.filename is None and error.errno not in (errno.ENOSPC, errno.EIO)):
            raise
        if error.filename is not None:
            name, reason = os.fsdecode(error.filename), error.strerror
            err.print(f"error: {name!r} cannot be used: {reason}; see to the path and its permissions", soft_wrap=True)
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at the end
            err.print(f"error: cannot print: {error.strerror}")
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        err.print("interrupted")
        sys.exit(1)
