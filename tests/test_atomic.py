"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsepgd import atomic
from sparsepgd.errors import SourceError, SparsePGDError


def test_a_place_is_checked_without_leaving_anything_but_its_folder(tmp_path: Path) -> None:
    atomic.check(tmp_path / "a" / "b" / "file.json")
    assert [str(one.relative_to(tmp_path)) for one in sorted(tmp_path.rglob("*"))] == ["a", "a/b"]
    (tmp_path / "old").write_text("old")
    atomic.check(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old"


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = ((folder, "Is a directory") for folder in (tmp_path, Path(), Path("/")))
    for path, reason in ((tmp_path / "file" / "x", "(Not a directory|File exists)"), *folders):
        with pytest.raises(SourceError, match=f"cannot be written: {reason}; choose another --out"):
            atomic.check(path)
    with pytest.raises(SparsePGDError, match="cannot be written: Is a directory"):
        atomic.write(Path(), b"x")


def test_what_is_not_a_regular_file_is_refused_and_not_replaced_by_one(tmp_path: Path) -> None:
    """Like /dev/null, which root could replace."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match=r"pipe' cannot be written: Not a regular file; choose another --out"):
        atomic.check(tmp_path / "pipe")
    with pytest.raises(SparsePGDError, match=r"pipe cannot be written: Not a regular file"):
        atomic.write(tmp_path / "pipe", b"x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_full_disk_names_the_file_and_damages_nothing(tmp_path: Path) -> None:
    """/dev/full gives a real ENOSPC."""
    file = tmp_path / "rows.json"
    atomic.write(file, b"old")
    (tmp_path / ".rows.json.tmp").symlink_to("/dev/full")
    with pytest.raises(SparsePGDError, match=r"rows.json cannot be written: No space left on device; free some space"):
        atomic.write(file, b"new" * 100_000)
    assert file.read_bytes() == b"old"
    assert [left.name for left in tmp_path.iterdir()] == ["rows.json"]
