"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparsepgd.errors import SourceError, SparsePGDError, UnsupportedError


def write(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file completely or not at all, even if the process is killed or the disk is full. `data`: the content, or
    its pieces, of which only one is in memory at a time."""
    temporary = path.parent / f".{path.name}.tmp"  # "." and "/" have no name to replace
    try:
        _check_kind(path)
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name == "posix":  # so that the new name survives a power failure
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
    """Check that a file can be written, before the work whose result it will contain. Its folder is created."""
    probe = path.parent / f".{path.name}.tmp"
    try:
        _check_kind(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SourceError(f"{str(path)!r} cannot be written: {error.strerror}; choose another --out") from None


def folder(out: str | Path | None) -> Path | None:
    """The argument `out` as a path."""
    if not isinstance(out, str | os.PathLike | None):
        raise UnsupportedError(f"out={out!r}; expected a folder, e.g. 'runs/mine', or None")
    return None if out is None else Path(out)


def _check_kind(path: Path) -> None:
    """Raise an error for a folder, and for a device such as /dev/null, which a file would replace."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a regular file")
