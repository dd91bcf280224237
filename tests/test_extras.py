"""Packages of extras: what is missing is named with the extra and the command that brings it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import sparsepgd
from sparsepgd.errors import MissingPackageError
from sparsepgd.extras import EXTRAS, needs


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_package_is_named_with_its_extra_and_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    package, extra = EXTRAS[module]
    monkeypatch.setitem(sys.modules, module, None)
    words = f"this needs {package}, which is not installed; pip install 'sparsepgd[{extra}]'"
    with pytest.raises(MissingPackageError, match=f"^{re.escape(words)}$"), needs("this"):
        importlib.import_module(module)


@pytest.mark.parametrize(
    ("lacking", "command"),
    [
        ("autoattack", "git+https://github.com/fra31/auto-attack"),
        ("pkg_resources", "setuptools<81"),
        ("einops_of_theirs", None),
    ],
)
def test_what_an_installed_package_lacks_is_named_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacking: str, command: str | None
) -> None:
    (tmp_path / "timm.py").write_text(f"import {lacking}.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setitem(sys.modules, lacking, None)
    words = rf"timm:a cannot .*; pip install '{re.escape(command or lacking)}'$"
    with pytest.raises(MissingPackageError, match=words), needs("timm:a"):
        importlib.import_module("timm")


def test_a_version_without_a_name_that_is_needed_is_not_called_missing() -> None:
    with pytest.raises(MissingPackageError, match=r"cannot import name 'wrong'.*another version"), needs("this"):
        from sparsepgd.errors import wrong  # type: ignore[attr-defined]  # noqa: F401


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), needs("this"):
        raise ZeroDivisionError


def test_pip_commands_are_written_in_one_place() -> None:
    source = Path(sparsepgd.__file__).parent
    assert [file.name for file in sorted(source.rglob("*.py")) if "pip install" in file.read_text()] == ["extras.py"]
