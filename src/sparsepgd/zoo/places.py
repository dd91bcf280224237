"""Where models are looked up by name: in the package, in the folder SPARSEPGD_WEIGHTS and in weights/ of a checkout.

The last two may have a sub-folder `subjects`: small networks for the paper's tables, one for each of its models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from sparsepgd.errors import SourceError

VARIABLE = "SPARSEPGD_WEIGHTS"  # the folder of full-size models
FULL_SIZE = ("prn18-anneal", "prn18-fast-ls")  # in weights/ of the repository; the wheel knows them by name only
SUBJECTS = "subjects"  # a sub-folder of that of the full-size models


@dataclass(frozen=True)
class Place:
    """A folder of weights with their cards."""

    kind: Literal["package", "weights"]
    folder: Traversable

    def names(self) -> list[str]:
        """The models whose weights and card are both here, sorted."""
        files = {file.name for file in self.folder.iterdir()} if self.folder.is_dir() else set()
        stems = (name.removesuffix(".safetensors") for name in files if name.endswith(".safetensors"))
        return sorted(stem for stem in stems if f"{stem}.json" in files)

    def weights(self, name: str) -> Traversable:
        return self.folder.joinpath(f"{name}.safetensors")

    def card(self, name: str) -> Traversable:
        return self.folder.joinpath(f"{name}.json")

    def __str__(self) -> str:
        if self.kind == "package":
            return "the package"
        return f"{self.folder}{'' if self.folder.is_dir() else ' (no such folder)'}"


def package() -> Place:
    """The models that come with every installation."""
    return Place("package", files("sparsepgd.zoo").joinpath("bundled"))


def places() -> Iterator[Place]:
    """The folders in which a name is looked up, in order; the environment variable is read on each call."""
    yield package()
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_dir():
            raise SourceError(f"{VARIABLE} is {named!r}, which is not a folder; use a folder with weights, or unset it")
        yield from _weights(Path(named))
    root = checkout()
    if root is not None:
        yield from _weights(root / "weights")


def _weights(folder: Path) -> Iterator[Place]:
    yield Place("weights", folder)
    if (folder / SUBJECTS).is_dir():
        yield Place("weights", folder / SUBJECTS)


def checkout() -> Path | None:
    """The root of the repository, if the package is imported from one."""
    source = Path(__file__).resolve().parents[2]
    inside = source.name == "src" and (source.parent / "pyproject.toml").is_file()
    return source.parent if inside else None
