"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparsepgd.errors import SourceError, SparsePGDError


def write(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Whole or not at all, also if the process is killed or the disk is full. `data`: the content, or its pieces, which
    are never in memory together."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name == "posix":  # the new name itself outlives a power failure
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free some space" if full else "check the folder and its permissions"
        raise SparsePGDError(
            f"{path} cannot be written: {error.strerror}; {remedy} and run the same command again; finished work is "
            "kept"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check(path: Path) -> None:
    """That it can be written, before the work of which it shall hold the outcome; its folder is made."""
    probe = path.with_name(f".{path.name}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SourceError(f"{str(path)!r} cannot be written: {error.strerror}; choose another --out") from None
