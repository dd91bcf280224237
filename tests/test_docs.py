"""The pages: what they tell people to type works, their figures come from records, and they build without warnings."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
from typer.testing import CliRunner

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.cli import app
from sparsepgd.reproduce.jobs import SCALES
from sparsepgd.reproduce.recipes import RECIPES
from sparsepgd.search import registry

ROOT = Path(__file__).parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
WRITTEN = r"<!-- [^>]*do not edit -->.*?(?:<!-- end[^>]*-->|\Z)|```.*?```"  # by a script; examples
MEASURED = r"\d ?%|\d (?:s|ms|us|minutes|points)\b|\d times\b|\b(?:two|three|several|many) times (?:as|the)\b"
SOURCE = r"\]\([^)]*(?:tables|results|leaderboard|cost)\.md|\]\([^)]*#results\)|the paper's Table|arXiv"  # or a record
SETTINGS = {  # what looks like a measurement and is none
    "Wilson's 95 % interval": "a choice",
    "at 50 % it is ±4.4 points": "computed from the number of images",
    "100 % if the attack found all of them, 0 % if": "a definition",
    "5 % of the training images": "a default",
    "more than 0.5 % of the images (by a binomial test at 5 %)": "a threshold",
}


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_measurement_in_prose_names_its_record_or_a_table(page: Path) -> None:
    """Paragraph by paragraph, list item by list item, row by row; what scripts write is checked against the records."""
    text = re.sub(WRITTEN, "", page.read_text(), flags=re.S)
    if "do not edit it" in text:  # docs/leaderboard.md
        return
    for part in re.split(r"\n\s*\n|\n(?=[-|] )", text):
        words = " ".join(part.split())
        for setting in SETTINGS:
            words = words.replace(setting, "")
        named = any((RESULTS / f"{name}.json").is_file() for name in re.findall(r"([\w-]+)\.json", words))
        assert named or re.search(SOURCE, words) or not re.search(MEASURED, words), (
            f"measured where? name a record or link a table, or leave the number out: {words}"
        )


def test_every_setting_that_looks_like_a_measurement_is_still_there() -> None:
    text = " ".join(" ".join(page.read_text().split()) for page in PAGES)
    assert [setting for setting in SETTINGS if setting not in text] == []


def test_every_record_that_a_page_names_is_there() -> None:
    kinds = "|".join({file.name.partition("-")[0] for file in RESULTS.glob("*-*.json")})
    for page in PAGES:
        named = re.findall(rf"`(?:benchmarks/results/)?((?:{kinds})-[\w-]+\.json)`", page.read_text())
        assert [name for name in named if not (RESULTS / name).is_file()] == [], page.name


@pytest.mark.skipif(importlib.util.find_spec("nbclient") is None, reason="needs the extra dev")
def test_the_notebook_runs_from_top_to_bottom_and_its_outputs_are_stored() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "run_notebook.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = json.loads((DOCS / "notebook.ipynb").read_text())["cells"]
    stored = [one for cell in cells for one in cell.get("outputs", ())]
    kinds = [kind for one in stored for kind in one.get("data", ())]
    assert kinds.count("text/html") >= 3
    assert kinds.count("image/png") >= 5


def test_the_commands_of_the_tutorial_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("tutorial.md", "console") for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        mark, command, *words = shlex.split(line)
        assert (mark, command) == ("$", "spgd")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "both.html").stat().st_size > 10_000
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def test_the_effect_of_every_deviation_is_the_mean_of_a_record() -> None:
    records = [json.loads(file.read_text()) for file in RESULTS.glob("deviations-*.json")]
    means = {f"{mean(row['robust']):.1f}" for record in records for row in record["rows"]}
    rows = re.findall(r"^\| [a-t] \|.* \| (.+) \|$", (DOCS / "deviations.md").read_text(), re.M)
    quoted = [number for effect in rows for number in re.findall(r"(?<![-+.(\d])\d+\.\d\b", effect)]
    assert len(rows) == 20
    assert len(quoted) > 30
    assert [number for number in quoted if number not in means] == []


def test_the_first_page_shows_the_example_of_the_readme() -> None:
    (example,) = blocks("index.md", "python")
    assert example in (ROOT / "README.md").read_text()


def test_every_attack_has_a_section_with_a_picture() -> None:
    sections = re.split(r"^##+ ", (DOCS / "attacks.md").read_text(), flags=re.M)
    for name, entry in registry.ENTRIES.items():
        (section,) = (one for one in sections if f"`{name}`" in one.partition("\n")[0])
        assert entry.kind.__name__ in section
        assert "![" in section, name
    for block in blocks("attacks.md", "text"):
        assert len(block.splitlines()) <= 15


def test_every_picture_of_the_pages_is_there_and_small() -> None:
    for page in ("attacks.md", "patterns.md"):
        named = {DOCS / file for file in re.findall(r"\((images/[^)]+)\)", (DOCS / page).read_text())}
        assert named == set((DOCS / "images" / page.removesuffix(".md")).glob("*.png"))
        assert all(file.stat().st_size < 100_000 for file in named)


def test_the_gallery_of_patterns_says_how_each_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS / "images")
    names = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))["NAMES"]
    rows = re.findall(r"^\| !.* \| `([^`]+)` \| (.+) \|$", (DOCS / "patterns.md").read_text(), re.M)
    patterns = set()
    for code, words in rows:
        budget = eval(code, names)
        budget.resolve((3, 32, 32))
        patterns.add(type(budget.pattern))
        typed = dict(re.findall(r"--(\w+) (\S+)", words.strip("`")))
        if typed and not typed.get("pattern", "").startswith("groups"):
            kind, eps = options.pattern(typed.get("pattern", "pixel")), options.eps(typed.get("eps", "1"))
            assert (budget.k, budget.pattern, budget.eps) == (int(typed["k"]), kind, eps)
    assert patterns == {sp.Pixels, sp.Features, sp.Rows, sp.Columns, sp.Patches, sp.Frame, sp.Shape, sp.Groups}


def test_the_scales_of_the_page_are_those_of_the_code() -> None:
    text = (DOCS / "reproducing.md").read_text().replace(",", "")
    for scale in SCALES.values():
        (line,) = re.findall(rf"^\| {scale.name} \|.*$", text, re.M)
        values = [scale.images, scale.steps, scale.queries, scale.epochs]
        assert all(re.search(rf"\b{value}\b", line) for value in values), line
    named = re.findall(r"^spgd reproduce ([a-z][\w-]*)", text, re.M)
    assert len(named) >= 5
    assert set(named) <= {*RECIPES, "all"}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"[\w-]+\.(?:md|ipynb)", nav)
    assert sorted(named) == sorted(page.name for kind in ("md", "ipynb") for page in DOCS.glob(f"*.{kind}"))


def test_every_export_is_in_the_reference() -> None:
    import sparsepgd

    text = (DOCS / "api.md").read_text()
    listed = set(re.findall(r"^::: sparsepgd\.(\w+)$", text, re.M))
    assert set(sparsepgd.__all__) - {"errors"} <= listed  # the module; its classes are listed


def test_the_reference_hides_no_way_to_make_an_object() -> None:
    import sparsepgd

    hidden = re.findall(r"^::: sparsepgd\.(\w+)\n +options: { members: false }", (DOCS / "api.md").read_text(), re.M)
    ways = {name: vars(getattr(sparsepgd, name)).items() for name in hidden}
    found = {name: [word for word, one in own if isinstance(one, classmethod)] for name, own in ways.items()}
    assert [name for name, words in found.items() if words] == []


@pytest.mark.skipif(importlib.util.find_spec("mkdocs_jupyter") is None, reason="needs the extra docs")
def test_the_pages_build_without_warnings(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SparsePGD" in (tmp_path / "api" / "index.html").read_text()
    notebook = (tmp_path / "notebook" / "index.html").read_text()
    assert "data:image/png;base64," in notebook
    assert re.findall(r'href="[^":]+\.md[#"]', notebook) == []
