"""Packages that only an extra of ours brings."""

from __future__ import annotations

import importlib
from types import ModuleType

from sparsepgd.errors import MissingPackageError

EXTRAS = {"foolbox": "foolbox", "art": "art", "torchattacks": "torchattacks", "adv_lib": "peers"}  # by module


def missing(module: str) -> MissingPackageError:
    """The error to raise for a module that cannot be imported; it names the command that brings it."""
    return MissingPackageError(f"{module} is not installed; pip install 'sparsepgd[{EXTRAS[module]}]'")


def needed(name: str) -> ModuleType:
    """A module of one of these packages, ``foolbox.attacks`` for instance."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, and lacks something itself
            raise MissingPackageError(f"{package} cannot be imported: {error}; install what it asks for") from error
        raise missing(package) from None
