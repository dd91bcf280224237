"""What is given to others: the wheel holds all data, the sdist all that tests read, and the extras in errors exist."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import sparsepgd
from sparsepgd import zoo
from sparsepgd.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOP = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    ".pre-commit-config.yaml",
    "MANIFEST.in",
    "CITATION.cff",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "SECURITY.md",
    "mkdocs.yml",
)
FOLDERS = ("tests", "examples", "docs", "recipes", "benchmarks", "leaderboard", "scripts", ".github")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, made from a copy of the sources."""
    pytest.importorskip("build")
    if int(metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("setuptools here is older than the one that pyproject.toml asks for")
    copy = tmp_path_factory.mktemp("sources")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", *FOLDERS):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for name in TOP:
        shutil.copy(ROOT / name, copy)
    (copy / "weights").mkdir()
    (copy / "weights" / "full-size.safetensors").write_bytes(b"22 MB")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


def files(folder: str) -> set[str]:
    """Of the sources, relative to the folder; compiled files are none."""
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts and ".egg-info" not in str(path)}


def test_the_wheel_holds_every_file_of_the_package_and_no_other(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        about = wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    assert {name for name in names if ".dist-info/" not in name} == files("src")
    assert "sparsepgd/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert (ROOT / "README.md").read_text().splitlines()[0] in about
    assert "License-Expression: MIT" in about


def test_the_sdist_holds_what_the_tests_read(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for folder in FOLDERS:
        assert {f"{folder}/{name}" for name in files(folder)} <= names
    assert set(TOP) <= names


def test_full_size_models_are_neither_in_the_wheel_nor_in_the_sdist(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel, tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = [*wheel.namelist(), *sdist.getnames()]
    assert [name for name in names if "full-size" in name or "weights/" in name] == []
    assert max(file.stat().st_size for file in built.iterdir()) < 10_000_000


def test_a_full_size_model_in_an_installation_from_the_wheel_says_what_to_do(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    program = "import sparsepgd.zoo as zoo; print(zoo.__file__, zoo.names()); zoo.load(zoo.FULL_SIZE[0])"
    own = {**os.environ, "PYTHONPATH": str(tmp_path), "SPARSEPGD_WEIGHTS": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=own)
    assert done.stdout.startswith(str(tmp_path))
    assert str(sorted(zoo.bundled_names())) in done.stdout
    assert "were not found; looked in the package; full-size models are not in the wheel" in done.stderr


def test_extras_that_errors_name_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {extra for _, extra in EXTRAS.values()} <= set(extras)
    named = {extra for words in extras.values() for word in words for extra in re.findall(r"sparsepgd\[(.*)\]", word)}
    assert {extra for group in named for extra in group.split(",")} <= set(extras)


def test_every_extra_is_installed_by_the_script() -> None:
    uses = runpy.run_path(str(ROOT / "scripts" / "check_install.py"))["USES"]
    assert set(uses) == set(PROJECT["optional-dependencies"])


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert PROJECT["version"] == sparsepgd.__version__ == cited[1]
    latest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest is not None
    assert latest[1] == PROJECT["version"]


def test_an_adapter_without_its_package_says_what_to_install() -> None:
    program = """
import importlib, sys
for name in ("foolbox", "art", "torchattacks"):
    sys.modules[name] = None
    try:
        importlib.import_module(f"sparsepgd.adapters.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    names = ("foolbox", "art", "torchattacks")
    assert done.stdout.splitlines() == [
        f"the adapter for {name} needs {EXTRAS[name][0]}, which is not installed; pip install 'sparsepgd[{name}]'"
        for name in names
    ]
