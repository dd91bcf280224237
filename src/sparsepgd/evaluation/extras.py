"""Packages that are not required: imported where they are needed, with the pip command where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from sparsepgd.errors import SourceError

PACKAGES = {"pkg_resources": "setuptools<81"}  # where the package has another name than the module


def needs(module: str, extra: str, what: str) -> Any:
    """The module, or an error that says how to get it. `extra`: of this package, `what`: what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name not in (None, module.partition(".")[0], module):
            package = PACKAGES.get(error.name, error.name)
            raise SourceError(f"{module} is installed but lacks {error.name}; pip install '{package}'") from None
        raise SourceError(f"{what} needs {module}; pip install 'sparsepgd[{extra}]'") from None
