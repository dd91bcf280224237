"""Run the command `spgd` as a user does, but in this process."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from sparsepgd.cli import main


def spgd(*words: str, cwd: Path) -> CompletedProcess[str]:
    """The output and the exit code of a command."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["spgd", *words]),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
