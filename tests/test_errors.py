"""What errors say, cut to fit into other messages, and counts of things."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.errors import counted, first_line


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


@pytest.mark.parametrize("things", ["images", "steps", "patches", "queries", "classes"])
def test_one_of_them_is_counted_without_an_s(things: str) -> None:
    one = {"images": "image", "steps": "step", "patches": "patch", "queries": "query"}.get(things, "class")
    assert [counted(count, things) for count in (0, 1, 1000)] == [f"0 {things}", f"1 {one}", f"1,000 {things}"]


def test_one_image_is_not_called_images(tmp_path: Path) -> None:
    x, y = zoo.bundled_images(1)
    model, attack = zoo.load("small-plain"), sp.SparsePGD(sp.Budget(k=1), steps=1)
    assert repr(attack(model, x, y)).startswith("Result(1 image, ")
    assert "small-plain under spgd-unprojected, 1 image, " in repr(
        sp.evaluate(model, x, y, attack=attack, names={"model": "small-plain"})
    )
    with pytest.raises(sp.errors.ShapeError, match=r"labels of shape \(2,\) for 1 image;"):
        attack(model, x, y.repeat(2))
    np.savez(tmp_path / "one.npz", x=x.numpy(), y=y.numpy())
    with pytest.raises(sp.errors.SourceError, match=r"n=2, but .* holds 1 image;"):
        sp.load_data(f"npz:{tmp_path / 'one.npz'}", 2)


def test_errors_are_cut_in_one_place() -> None:
    """Elsewhere an error without words was an IndexError."""
    source = Path(sp.__file__).parent
    cut = re.compile(r"str\(error\)(\.strip\(\))?\.splitlines")
    assert [file.name for file in sorted(source.rglob("*.py")) if cut.search(file.read_text())] == ["errors.py"]
