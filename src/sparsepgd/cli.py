"""The command `spgd`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import sparsepgd
from sparsepgd.commands.attack import attack
from sparsepgd.commands.bench import measure
from sparsepgd.commands.common import Interrupted, err, out
from sparsepgd.commands.compare import compare
from sparsepgd.commands.detect import detect
from sparsepgd.commands.evaluate import evaluate, verify
from sparsepgd.commands.leaderboard import leaderboard
from sparsepgd.commands.report import report
from sparsepgd.commands.reproduce import reproduce
from sparsepgd.commands.train import train
from sparsepgd.commands.zoo import list_zoo
from sparsepgd.errors import BudgetError, InputError, SourceError, SparsePGDError, UnsupportedError
from sparsepgd.problem.compiled import compiling

INTERRUPTED = 130  # typer makes this exit code of an interrupt, too
DEBUG = "Add --debug to see the traceback of an error."
COMMANDS: dict[str, tuple[Callable[..., None], str, tuple[str, ...]]] = {  # with a summary and examples
    "evaluate": (
        evaluate,
        "Measure clean and robust accuracy.",
        ("evaluate", "evaluate --model mine.py:make_model --data npz:test.npz", "evaluate --k 1 --pattern patch:5"),
    ),
    "compare": (
        compare,
        "Compare attacks on the same images.",
        ("compare --equal-cost 200", "compare --k 1 --pattern row"),
    ),
    "attack": (attack, "Attack one image.", ("attack bundled:3", "attack photo.png --model torchvision:resnet50")),
    "verify": (verify, "Check a finished run again.", ("verify runs/NAME --model zoo:small-plain",)),
    "train": (
        train,
        "Train a robust model.",
        ("train", "train --method anneal-trades --data cifar10 --model preact_resnet18 --out runs/robust"),
    ),
    "detect": (
        detect,
        "Attack an object detector.",
        ("detect COCO --model yolov8n.pt --attack spgd-unprojected,sparse-rs",),
    ),
    "report": (report, "Write runs as an HTML page.", ("report runs/A runs/B --figures figures",)),
    "reproduce": (reproduce, "Reproduce a table or figure of the paper.", ("reproduce unstructured --scale small",)),
    "leaderboard": (leaderboard, "Rank models by robust accuracy.", ("leaderboard --add runs/NAME",)),
    "bench": (measure, "Measure the speed of attacks.", ("bench --official path/to/sPGD",)),
    "zoo": (list_zoo, "List the shipped models.", ("zoo", "zoo small-strades")),
}
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=sparsepgd.__doc__,
    epilog=DEBUG,
)
for name, (function, summary, examples) in COMMANDS.items():
    lines = ("Examples:", *(f"spgd {example}" for example in examples), DEBUG)
    app.command(name, short_help=summary, epilog="\n\n".join(lines))(function)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"spgd {sparsepgd.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options without a command."""


def main() -> None:
    """0 done, 1 failed, 2 wrong use, 130 interrupted. A traceback only with --debug."""
    try:
        _main()
    except SystemExit as end:
        if compiling():  # Python would wait for the compiler
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _main() -> None:
    debug = "--debug" in sys.argv
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        sys.exit(app(arguments, standalone_mode=False))
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
            err.print(f"error: {name!r} cannot be used: {reason}; check the path and its permissions", soft_wrap=True)
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at the end
            err.print(f"error: cannot print: {error.strerror}")
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        err.print("interrupted")
        sys.exit(INTERRUPTED)
    except Interrupted as end:
        err.print(str(end), soft_wrap=True)
        sys.exit(INTERRUPTED)
    except Exception as error:  # the classes of typer's errors depend on its version
        if type(error).__name__ == "Abort":  # Ctrl-C in older versions
            err.print("interrupted")
            sys.exit(INTERRUPTED)
        if not hasattr(error, "format_message"):
            raise
        sys.exit(_refuse(error))


def _refuse(error: Any) -> int:
    """Wrong options or arguments, in one line. Without any, the message is the help of `spgd`; typer has shown it
    already if it uses rich, and the message is then empty."""
    context, message = getattr(error, "ctx", None), error.format_message()
    if type(error).__name__ != "NoArgsIsHelpError":
        command = "spgd" if context is None or context.parent is None else f"spgd {context.info_name}"
        words = " ".join(message.split()).rstrip(".")
        err.print(f"error: {words}; see {command} --help", soft_wrap=True)
    elif message:
        out.print(message, soft_wrap=True)
    return int(error.exit_code)
