"""The name of Triton's compiler, under which it keeps compiled kernels.

Triton computes this name anew in each process: it reads and hashes its own files, some hundred megabytes, before it
reads its cache on disk. A process that takes the name from an earlier one has the kernels 0.3 s earlier.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PLACES = ("triton.runtime.cache", "triton.compiler.compiler")  # modules that have `triton_key`, by version


def fingerprint() -> str:
    """The sizes and times of Triton's files, without reading or importing them. If they differ, so may the name. Empty
    if Triton is not found."""
    try:
        spec = find_spec("triton")
        root = Path(spec.origin).parent if spec and spec.origin else None
        files = sorted(file for kind in ("so", "pyd", "py") for file in root.glob(f"*/*.{kind}")) if root else []
        facts = [(file, file.stat()) for file in files]
    except (ValueError, OSError):
        return ""
    return repr([(f"{file.parent.name}/{file.name}", one.st_size, one.st_mtime_ns) for file, one in facts])


def name() -> str:
    """The name that Triton computes; empty if this version has none. Triton must be imported."""
    return next((module.triton_key() for module in _modules()), "")


def set_name(name: str) -> None:
    """Give Triton this name, so that it does not compute one, unless it is empty. Triton must be imported."""
    for module in _modules() if name else ():
        module.triton_key = lambda: name  # type: ignore[attr-defined]


def _modules() -> list[ModuleType]:
    found = [sys.modules[place] for place in PLACES if place in sys.modules]
    return [module for module in found if hasattr(module, "triton_key")]
