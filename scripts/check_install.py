"""Install the package in empty environments and use it there: alone on each Python, then with each extra.

    make dist                                                 the wheel and the sdist, in dist/
    python scripts/check_install.py dist/*.whl                with this Python, and with every extra
    python scripts/check_install.py dist/* --python python3.11 python3.12 --extra    on two Pythons, without extras
    python scripts/check_install.py dist/*.whl --extra digits art

Prints a line for each installation; the exit code is 1 if one failed. Extras are installed on top of the environment
that has the package alone, so torch is unpacked only once for each Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ALONE = ("spgd", "evaluate", "-q", "-n", "4", "--steps", "5", "--queries", "5")
# RobustBench imports autoattack, which is not on PyPI; without it, the error must say what is missing
ROBUSTBENCH = """
import sparsepgd as sp
try:
    sp.load_model("robustbench:no-such-model")
except sp.errors.MissingPackageError as error:
    assert "fra31/auto-attack" in str(error), error
except sp.errors.SourceError as error:
    assert "RobustBench has no model" in str(error), error
"""
USES = {  # a program that needs the extra
    "art": "import sparsepgd.adapters.art",
    "detection": "import pycocotools, torchmetrics.detection; import sparsepgd.detection",
    "dev": "import build, hypothesis, ipykernel, mypy, nbclient, pre_commit, pytest, selenium, twine",
    "digits": "import sparsepgd as sp; assert len(sp.load_data('digits', 4).x) == 4",
    "docs": "import mkdocs, mkdocs_jupyter, mkdocstrings",
    "foolbox": "import sparsepgd.adapters.foolbox",
    "hf": "import datasets",
    "onnx": "import onnxruntime",
    "peers": "import adv_lib, art, foolbox, secmlt, torchattacks",
    "robustbench": ROBUSTBENCH,
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter",
    "timm": "import timm; assert timm.list_models('resnet18')",
    "torchattacks": "import sparsepgd.adapters.torchattacks",
    "yolo": "import ultralytics",
}
CONSTRAINTS = {"peers": "setuptools<81"}  # adv-lib needs visdom, which later versions cannot build


def environment(python: str | Path, place: Path, below: Path | None = None) -> Path:
    """The Python of a new virtual environment, which can also import the packages of the environment of `below`."""
    call(python, "-m", "venv", place)
    own = place / "bin" / "python"
    if below is not None:
        ours, theirs = (call(one, "-c", "import site; print(site.getsitepackages()[0])") for one in (own, below))
        Path(ours, "below.pth").write_text(f"{theirs}\n")
    return own


def installs(name: str, own: Path, package: str, command: Sequence[str], folder: Path, constraint: str = "") -> bool:
    """Whether the package installs, the versions fit together and the command runs, in a folder without the sources."""
    limits = folder / "constraints.txt"
    limits.write_text(constraint)
    limited = {name: str(limits) for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")} if constraint else {}
    try:
        call(own, "-m", "pip", "install", "--quiet", package, more=limited)
        call(own, "-m", "pip", "check")
        call(own.parent / command[0], *command[1:], cwd=folder)
    except RuntimeError as error:
        print(f"{name}: FAILED: {error}", flush=True)
        return False
    print(f"{name}: ok", flush=True)
    return True


def call(*words: str | Path, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> str:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(more or {})
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, env=outside)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise RuntimeError(f"{' '.join(map(str, words[1:4]))}: {' | '.join(lines)}")
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="wheels and sdists")
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--extra", nargs="*", default=list(USES), choices=list(USES))
    asked = parser.parse_args()
    good = []
    for file in asked.files:
        for python in asked.python:
            with tempfile.TemporaryDirectory() as temporary:
                folder, name = Path(temporary), f"{file.name}, {python}"
                own = environment(python, folder / "alone")
                good.append(installs(name, own, str(file), ALONE, folder))
                for extra in asked.extra if good[-1] else []:
                    above = environment(python, folder / extra, own)
                    package, use = f"sparsepgd[{extra}] @ {file.resolve().as_uri()}", ("python", "-c", USES[extra])
                    limit = CONSTRAINTS.get(extra, "")
                    good.append(installs(f"{name}, {extra}", above, package, use, folder, limit))
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
