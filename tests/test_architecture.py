"""The shape of the code: imports go to the left only, importing does nothing, exports are sorted."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sparsepgd

SOURCE = Path(sparsepgd.__file__).parent
LAYERS = [
    "errors",
    "extras",
    "validation",
    "atomic",
    "distributed",
    "kernels",
    "threat",
    "problem",
    "search",
    "baselines",
    "zoo",
    "sources",
    "analysis",
    "runs",
    "training",
    "detection",
    "adapters",
    "report",
    "speed",
    "options",
    "tables",
    "evaluation",
    "reproduce",
    "commands",
    "cli",
    "__main__",
]

HEAVY = {
    "PIL",
    "art",
    "foolbox",
    "jinja2",
    "matplotlib",
    "pydantic",
    "rich",
    "scipy",
    "torchattacks",
    "torchvision",
    "typer",
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sparsepgd."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("sparsepgd.")}
    return found


def test_imports_go_to_the_left_only() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        layer = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        assert layer in LAYERS, f"{file} is in no layer; add it to LAYERS where it belongs"
        wrong += [f"{file.name}: {other}" for other in imports(file) if LAYERS.index(other) > LAYERS.index(layer)]
    assert wrong == []


def test_a_folder_has_about_a_dozen_modules() -> None:
    folders = [SOURCE, *(folder for folder in SOURCE.rglob("*") if folder.is_dir())]
    modules = {folder.name: [file for file in folder.glob("*.py") if file.name != "__init__.py"] for folder in folders}
    assert {name: len(files) for name, files in modules.items() if len(files) > 13} == {}


def test_the_model_is_called_in_one_place() -> None:
    """By the oracle; what it calls is the model as it is, or as the engine runs it."""
    calls = []
    for file in sorted((SOURCE / "search").rglob("*.py")) + sorted((SOURCE / "problem").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("model", "self.model"):
                calls.append(file.name)
    assert sorted(set(calls)) == ["engine.py", "oracle.py"]


def test_importing_changes_and_prints_nothing() -> None:
    program = (
        "import sys, torch; state = torch.get_rng_state(); threads = torch.get_num_threads(); import sparsepgd; "
        "assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads(); "
        f"assert not {HEAVY} & set(sys.modules), {HEAVY} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exports_are_sorted_and_exist() -> None:
    assert sorted(sparsepgd.__all__) == sparsepgd.__all__
    assert all(hasattr(sparsepgd, name) for name in sparsepgd.__all__)


def test_every_error_of_the_tree_is_drawn_in_it() -> None:
    from sparsepgd import errors

    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in classes)
