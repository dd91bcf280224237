"""What errors say, cut to fit into other messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sparsepgd
from sparsepgd.errors import first_line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  \n  late  \nmore"), "late"),
        (RuntimeError("x" * 1000), "x" * 200),
        (EOFError(), "EOFError"),
        (AssertionError("\n"), "AssertionError"),
    ],
)
def test_the_first_line_that_says_something_or_the_type(error: Exception, words: str) -> None:
    assert first_line(error) == words


def test_errors_are_cut_in_one_place() -> None:
    """Elsewhere an error without words was an IndexError."""
    source = Path(sparsepgd.__file__).parent
    cut = re.compile(r"str\(error\)(\.strip\(\))?\.splitlines")
    assert [file.name for file in sorted(source.rglob("*.py")) if cut.search(file.read_text())] == ["errors.py"]
