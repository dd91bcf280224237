"""Models and weights in files: exported programs (.pt2), ONNX files, which have no gradients, and state dicts.

A pickle can run code, so only tensors are read from it, unless the user trusts the file.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sparsepgd.errors import SourceError, first_line
from sparsepgd.extras import needs

Shape = tuple[int | None, ...]  # None: any
PICKLES = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # first bytes of files of torch.save
WEIGHTS = "give a .safetensors file or one written by torch.save"
TRUST = "reading it may run code; if you trust its origin, pass --trust or trust=True"


class Exported(nn.Module):
    """A program saved by torch.export; it is differentiable."""

    def __init__(self, path: Path, trust: bool = False) -> None:
        super().__init__()
        check_exported(path, trust)
        try:
            program = torch.export.load(path)
        except Exception as error:
            raise SourceError(f"{str(path)!r} cannot be read as an exported program: {first_line(error)}") from error
        names = program.graph_signature.user_inputs
        values = [node.meta["val"] for node in program.graph.nodes if node.name in names and "val" in node.meta]
        self.shape = _input_shape([value.shape for value in values], path)
        self.program = program.module()
        self.training = False

    def train(self, mode: bool = True) -> Exported:
        """Does not change the mode of the program, which was fixed when it was exported."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Any:
        return in_batches(self.program, x, self.shape[0])


class Onnx(nn.Module):
    """An ONNX file in onnxruntime, for black-box attacks."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        with needs(f"the ONNX file {str(path)!r}"):
            import onnxruntime as runtime
        if not path.is_file():
            raise SourceError(f"no file {str(path)!r}; give an ONNX file")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(str(path), options, providers=runtime.get_available_providers())
        except Exception as error:
            raise SourceError(f"{str(path)!r} cannot be read as ONNX: {first_line(error)}") from None
        inputs = self.session.get_inputs()
        self.shape = _input_shape([one.shape for one in inputs], path)
        self.input, self.kind = inputs[0].name, torch.float16 if "float16" in inputs[0].type else torch.float32
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def extra_repr(self) -> str:
        return f"sha256={self.sha256}"  # distinguishes runs of different files

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return in_batches(self._ask, x, self.shape[0])

    def _ask(self, x: Tensor) -> Tensor:
        values = x.detach().cpu().to(self.kind).numpy()
        return torch.from_numpy(self.session.run(None, {self.input: values})[0]).to(x.device, x.dtype)


def in_batches(call: Callable[[Tensor], Tensor], x: Tensor, size: int | None) -> Tensor:
    """The outputs of a model that takes only batches of one size (None: any size); the last batch is padded."""
    if size is None or len(x) == size:
        return call(x)
    missing = -len(x) % size
    filled = torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing else x
    return torch.cat([call(part) for part in torch.split(filled, size)])[: len(x)]


def _input_shape(inputs: Sequence[Sequence[Any]], path: Path) -> Shape:
    """The shape of the only input; sides that are not fixed are symbols or names in `inputs`."""
    shapes: list[Shape] = [tuple(side if isinstance(side, int) else None for side in shape) for shape in inputs]
    if len(shapes) != 1 or len(shapes[0]) < 2:
        raise SourceError(f"{str(path)!r} takes inputs {shapes}; expected a single input, e.g. images (B, C, H, W)")
    shape = shapes[0]
    if len(shape) == 4 and shape[1] is not None and shape[1] > 4 and shape[3] in (1, 3):
        raise SourceError(f"{str(path)!r} takes images {shape}, channels last; export it for (B, C, H, W)")
    return shape


def read(path: str | Path, trust: bool = False) -> Any:
    """The content of a .safetensors file or of a file of torch.save, on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"no file {str(path)!r}; {WEIGHTS}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about other versions of pickle
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        if trust or path.read_bytes()[:2] not in PICKLES:
            raise SourceError(f"{str(path)!r} cannot be read as weights: {first_line(error)}; {WEIGHTS}") from None
        raise SourceError(f"{str(path)!r} is a pickle with more than tensors; {TRUST}") from None
    except Exception as error:  # KeyError, struct.error, ... if it is not a pickle
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise SourceError(f"{str(path)!r} cannot be read as weights: {reason}; {WEIGHTS}") from None


def check_exported(path: Path, trust: bool) -> None:
    """Check that an exported program is a complete archive and, unless it is trusted, contains no pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            suspect = None if trust else next((name for name in archive.namelist() if _pickled(archive, name)), None)
    except FileNotFoundError:
        raise SourceError(f"no file {str(path)!r}; use a file written by torch.export.save") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceError(
            f"{str(path)!r} is not an exported program: {first_line(error)}; use torch.export.save"
        ) from None
    if suspect is not None:
        raise SourceError(f"{str(path)!r} contains a pickle, {suspect}; {TRUST}")


def _pickled(archive: zipfile.ZipFile, name: str) -> bool:
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
        return False
    except Exception:
        return True
