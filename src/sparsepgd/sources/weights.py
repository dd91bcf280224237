"""Weights in files. Nothing in them is run unless the user trusts it: a pickle is a program."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sparsepgd.errors import SourceError, first_line

TRUST = "it may run code when it is read; if you trust where it comes from, say so: --trust, or trust=True"


def read(path: str | Path, trust: bool = False) -> Any:
    """What a .safetensors file or one of torch.save holds, on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"no file {str(path)!r}; give weights as .safetensors or as torch.save writes them")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on other versions of pickle
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        if trust or not _is_pickle(path):
            raise SourceError(f"{str(path)!r} cannot be read as weights: {first_line(error)}") from None
        raise SourceError(f"{str(path)!r} is a pickle of more than tensors: {TRUST}") from None
    except Exception as error:  # what is no pickle at all is a KeyError, a struct.error, ...
        said = f"{type(error).__name__}: {first_line(error)}"
        raise SourceError(f"{str(path)!r} cannot be read as weights: {said}") from None


def check_exported(path: Path, trust: bool) -> None:
    """An exported program must be a whole archive, and without trust one that holds no pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            suspect = None if trust else next((name for name in archive.namelist() if _pickled(archive, name)), None)
    except FileNotFoundError:
        raise SourceError(f"no file {str(path)!r}; use one that torch.export.save has written") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{str(path)!r} is no exported program: {first_line(error)}; use torch.export.save") from None
    if suspect is not None:
        raise SourceError(f"{str(path)!r} holds a pickle, {suspect}: {TRUST}")


def _pickled(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether torch would unpickle this member."""
    file = name.rpartition("/")[2]
    if file.startswith(("custom_obj_", "opaque_obj_")):
        return True
    if file.endswith("_config.json"):
        entries = json.loads(archive.read(name)).get("config", {}).values()
        return any(isinstance(one, dict) and one.get("use_pickle") for one in entries)
    if not file.endswith(".pt"):
        return False
    try:
        torch.load(BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
    except Exception:
        return True
    return False


def _is_pickle(path: Path) -> bool:
    return path.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
