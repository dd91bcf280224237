"""Functions in Python files of the user: what they may do, and how their mistakes are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparsepgd.errors import MissingPackageError, SourceError
from sparsepgd.sources import factories


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_files_beside_it_can_be_imported_while_it_is_run_and_called(tmp_path: Path) -> None:
    written(tmp_path / "helper_mod.py", "W = 5\n")
    written(tmp_path / "later_mod.py", "V = 2\n")
    file = written(
        tmp_path / "sib.py", "from helper_mod import W\ndef mk():\n    import later_mod\n    return W + later_mod.V\n"
    )
    before = list(sys.path)
    assert factories.call(file, "mk") == 7
    assert sys.path == before


def test_two_files_of_the_same_name_have_helpers_of_their_own(tmp_path: Path) -> None:
    for number, folder in enumerate(("ma", "mb")):
        written(tmp_path / folder / "helper_mod.py", f"W = {number}\n")
        written(tmp_path / folder / "mine.py", "from helper_mod import W\nclass Net: w = W\ndef mk(): return Net\n")
    first, second = (factories.call(tmp_path / folder / "mine.py", "mk") for folder in ("ma", "mb"))
    assert (first.w, second.w) == (0, 1)
    assert sys.modules[first.__module__] is not sys.modules[second.__module__]


def test_dataclasses_with_postponed_annotations_work(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Config:\n    width: int = 3\ndef mk(): return Config().width\n"
    )
    assert factories.call(written(tmp_path / "mine.py", text), "mk") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mk(width, depth=2): return 3\n", r"mine\.py:mk must be callable without arguments: .*'width'"),
        ("mk = 3\n", r"mine\.py:mk is a int; expected a function that returns the model"),
        ("from torch import nn\nmk = nn.Linear(2, 2)\n", r"mine\.py:mk is a Linear; expected a function"),
        ("x = 1\ndef mk(:\n", r"mine\.py, line 2: invalid syntax"),
        ("x = 1\nraise ValueError('my own\\nwords')\n", r"mine\.py, line 2: ValueError: my own$"),
        ("import json\ndef mk():\n    return json.loads('{')\n", r"mine\.py, line 3: JSONDecodeError: "),
        ("import sys\nsys.exit('bye')\n", r"mine\.py, line 2: SystemExit: bye"),
    ],
)
def test_mistakes_are_told_in_one_line_with_their_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        factories.call(written(tmp_path / "mine.py", text), "mk")
    assert len(str(caught.value).splitlines()) == 1


def test_a_package_that_the_file_lacks_is_an_error_of_its_own_kind(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.py", "import nowhere_to_be_found\n")
    with pytest.raises(MissingPackageError, match=r"mine\.py, line 1: ModuleNotFoundError: No module named"):
        factories.call(file, "mk")
