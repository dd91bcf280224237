"""The figures on the pace of Sparse-PGD that the page on deviations gives are those of the records."""

from __future__ import annotations

from pathlib import Path

from support.scripts import output

ROOT = Path(__file__).parent.parent.parent


def test_the_table_of_the_page_is_that_of_the_records() -> None:
    said = output(ROOT / "benchmarks" / "pace.py", "--table", cwd=ROOT)
    assert len(said.splitlines()) > 4
    assert said in (ROOT / "docs" / "deviations.md").read_text(), "put what benchmarks/pace.py --table prints there"
