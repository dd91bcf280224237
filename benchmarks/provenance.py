"""The origin of a record: command, commit, machine and images; and the fields of it that every record must have."""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import Tensor

from sparsepgd import atomic
from sparsepgd.runs.identity import hardware

ROOT = Path(__file__).parent.parent
MADE = "made by the script"
OWN = ("bundled", "digits", MADE)  # data that come with this package, with scikit-learn, or from a script itself
# The fields that every record must have -> the places where each may be; one is enough. "*" stands for every entry of a
# list or dictionary, each of which must have the field.
ORIGIN: dict[str, tuple[str, ...]] = {
    "commit": ("commit",),  # of this repository, the one that was measured
    "command": ("command", "commands"),
    "seeds": ("seeds", "seed", "runs.*.seed", "spgd.seeds"),
    "hardware": ("hardware",),
    "torch": ("torch",),
    "data": ("data",),
    "checksum": ("sha256",),  # of the data; not needed for those of OWN, which the versions fix
    "images": ("images", "n", "measured"),
    "lengths": (
        "steps", "queries", "passes", "epochs", "lengths", "how", "spgd.steps", "runs.*.length", "runs.*.steps",
        "runs.*.options.epochs",
    ),  # of attacks and of training
    "seconds": (
        "seconds", "runs.*.seconds", "rows.*.seconds", "lines.*.seconds", "attacks.*.seconds", "spgd.attacks.*.seconds",
        "models.*.runs.*.seconds", "jobs.plain.first.seconds",
    ),
}  # fmt: skip
# Older records list under "unknown" the fields that cannot be recovered, and name the commit that added their numbers
# to this repository, which is not the one that was measured.
SINCE = "numbers since"
RUNS_AT = "runs at"  # a commit at which the command runs, if it does not at the commit of the record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-name", help="of the images, for the record")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="of this repository; default: from git")
    parser.add_argument("--out", type=Path, required=True)


def head(args: argparse.Namespace, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The first fields of a record; `x`, `y`: the images that it is about."""
    return {
        "command": command(),
        "commit": args.commit or commit(),
        "hardware": hardware(torch.device(args.device)),
        "torch": torch.__version__,
        "data": args.data_name or (args.data.name if args.data else "bundled"),
        "sha256": checksum(x, y),
        "images": len(x),
    }


def named(data: str) -> str:
    """Reduce a file to its name."""
    kind, colon, path = data.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else data


def resolved(data: str) -> str:
    """The name of data with the whole path of its file, for processes in other folders."""
    kind, _, file = data.partition(":")
    return f"{kind}:{Path(file).resolve()}" if file else kind


def command() -> str:
    """The command line, with folders and files reduced to their names."""
    words = [re.sub(r"[^=:,]*/", "", word) for word in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def checksum(x: Tensor, y: Tensor) -> str:
    """The checksum of images, on the 8-bit grid, and labels as they are attacked."""
    content = (x * 255).round().to(torch.uint8).cpu().numpy().tobytes() + y.cpu().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def origin(data: str, *images: Tensor) -> dict[str, Any]:
    """The commit and the checksum of the data: that of a file with all of them, or of the `images` (x, y) themselves.
    Fields that are not known are listed under `unknown`."""
    kind, _, rest = data.partition(":")
    file, found = Path(rest or data), ""
    if images and kind not in ("npz", *OWN):
        found = checksum(*images)
    elif file.is_file():
        found = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    known = {"commit": commit(), "sha256": found}
    unknown = [*([] if known["commit"] else ["commit"]), *([] if known["sha256"] or data in OWN else ["checksum"])]
    return {name: value for name, value in known.items() if value} | ({"unknown": unknown} if unknown else {})


def write_record(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, (json.dumps(record, indent=1) + "\n").encode())


@cache
def commit() -> str:
    """The commit of this repository at the first call, or the environment variable COMMIT for machines without git."""
    if told := os.environ.get("COMMIT"):
        return told
    if which("git") is None:
        return ""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def missing(record: dict[str, Any]) -> list[str]:
    """The fields of ORIGIN that a record does not have."""
    found = [field for field, places in ORIGIN.items() if not any(values_at(record, place) for place in places)]
    return [field for field in found if not (field == "checksum" and record.get("data") in OWN)]


def values_at(value: Any, place: str) -> list[Any]:
    """All values at a place of ORIGIN; [] if there is none, or if an entry of a * has none."""
    if not place:
        return [] if value in (None, "", []) else [value]
    name, _, rest = place.partition(".")
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    entries = list(inner.values()) if name == "*" else [inner[name]] if name in inner else []
    each = [values_at(entry, rest) for entry in entries]
    return [one for found in each for one in found] if all(each) else []
