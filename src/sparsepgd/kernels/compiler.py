"""The name of Triton's compiler, under which it keeps compiled kernels.

Triton makes this name in each process anew: it reads and hashes its own files, some hundred megabytes, before it looks
into its cache on disk. A process that takes the name from an earlier one finds the kernels 0.3 s earlier.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PLACES = ("triton.runtime.cache", "triton.compiler.compiler")  # modules that have `triton_key`, by version


def fingerprint() -> str:
    """Of Triton's files, by their sizes and times, without reading or importing them: another one means another name.
    Empty if there is no Triton that can be found."""
    try:
        spec = find_spec("triton")
        root = Path(spec.origin).parent if spec and spec.origin else None
        files = sorted(file for kind in ("so", "pyd", "py") for file in root.glob(f"*/*.{kind}")) if root else []
        facts = [(file, file.stat()) for file in files]
    except (ValueError, OSError):
        return ""
    return repr([(f"{file.parent.name}/{file.name}", one.st_size, one.st_mtime_ns) for file, one in facts])


def name() -> str:
    """As Triton makes it, which must be imported; empty if this version makes none."""
    return next((module.triton_key() for module in _modules()), "")


def set_name(name: str) -> None:
    """Triton, which must be imported, does not make a name in this process but has this one, unless it is empty."""
    for module in _modules() if name else ():
        module.triton_key = lambda: name  # type: ignore[attr-defined]


def _modules() -> list[ModuleType]:
    found = [sys.modules[place] for place in PLACES if place in sys.modules]
    return [module for module in found if hasattr(module, "triton_key")]
