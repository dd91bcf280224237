"""The figures on the pace of Sparse-PGD that the page on deviations gives are those of the records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_table_of_the_page_is_that_of_the_records() -> None:
    said = subprocess.run(
        [sys.executable, "benchmarks/pace.py", "--table"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert len(said.splitlines()) > 4
    assert said in (ROOT / "docs" / "deviations.md").read_text(), "put what benchmarks/pace.py --table prints there"
