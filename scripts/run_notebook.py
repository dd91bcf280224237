"""Run the notebook of the tutorial from top to bottom, in an empty folder, and store its outputs.

python scripts/run_notebook.py             write docs/notebook.ipynb with new outputs
python scripts/run_notebook.py --check     only check that it runs, and that it has outputs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FILE = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


def complaints(notebook: nbformat.NotebookNode) -> list[str]:
    """Cells that were not run, or that failed or warned."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    wrong = [cell for cell in cells if cell.execution_count is None]
    wrong += [
        cell for cell in cells for one in cell.outputs if one.output_type == "error" or one.get("name") == "stderr"
    ]
    return [f"not as it should be, run scripts/run_notebook.py:\n{cell.source}\n{cell.outputs}" for cell in wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    notebook = nbformat.read(FILE, as_version=4)
    wrong = complaints(notebook) if asked.check else []
    with tempfile.TemporaryDirectory() as folder:
        run = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources=run, record_timing=False, coalesce_streams=True
        ).execute()
    wrong += complaints(notebook)
    if not asked.check:
        nbformat.write(notebook, FILE)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
