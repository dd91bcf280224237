"""Run folders. Every file in them is written completely or not at all.

The folder of an unfinished run has a sub-folder ``partial`` with head.json and, for each finished chunk of images, a
JSON file with the rows and a safetensors file with the adversarial images. At the end they are merged into run.json
and adversarial.safetensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from sparsepgd.atomic import write
from sparsepgd.errors import FolderError, SourceError, counted, first_line
from sparsepgd.runs import tensor_file
from sparsepgd.runs.records import Chunk, Head, Record, read

RECORD, IMAGES, PARTIAL, HEAD = "run.json", "adversarial.safetensors", "partial", "head.json"
AGAIN = "restore the file, or delete the folder and run again"
LAG = 60.0  # seconds until a network file system shows what other workers have written


def load(folder: str | Path) -> Record:
    folder = Path(folder)
    if (folder / RECORD).is_file():
        return read(folder / RECORD, Record)
    if (folder / PARTIAL / HEAD).is_file():
        done = Folder(folder).images_done()
        raise SourceError(
            f"the run in {folder} is not finished, with {counted(done, 'images')} done; run its command again to resume"
        )
    inside = sorted(file.parent for levels in ("*", "*/*") for file in folder.glob(f"{levels}/{RECORD}"))
    advice = f"choose one of the runs in it, such as {inside[0]}" if inside else "use the --out of spgd evaluate"
    raise SourceError(f"no run in {folder}: it has no {RECORD}; {advice}")


def unfinished(folder: Path) -> list[Path]:
    runs = sorted(file.parent.parent for file in folder.rglob(f"{PARTIAL}/{HEAD}"))
    return [run for run in runs if not (run / RECORD).is_file()]


def load_adversarial(folder: str | Path, record: Record | None = None) -> dict[str, Tensor]:
    """x_adv, y, the clean x (older folders have none) and, if there was one, the mask `allowed`; checked against
    the record, which is read if it is not given."""
    record, file = record or load(folder), Path(folder) / IMAGES
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != record.adversarial:
            raise SourceError(f"{file} does not match {RECORD}: it was changed or truncated; {AGAIN}")
        tensors = load_file(file)  # memory-mapped: only what is used is read
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}; {AGAIN}") from None
    except SafetensorError as error:
        raise SourceError(f"{file} is not a safetensors file: {first_line(error)}; {AGAIN}") from None
    if wrong := _misfit(tensors, record.images):
        raise SourceError(f"{file}: {wrong}; {AGAIN}")
    return tensors


def _misfit(tensors: dict[str, Tensor], images: int) -> str | None:
    for name in ("x_adv", "y"):
        if name not in tensors:
            return f"{name} is missing"
    for name in ("x_adv", "y", "x"):
        if name in tensors and (not tensors[name].dim() or len(tensors[name]) != images):
            return f"{name} has the shape {tuple(tensors[name].shape)} for {counted(images, 'images')}"
    y, x_adv, x = tensors["y"], tensors["x_adv"], tensors.get("x")
    if y.dim() != 1 or y.is_floating_point():
        return f"y has the shape {tuple(y.shape)} and type {y.dtype}; labels are {images} integers"
    if x is not None and (x.shape != x_adv.shape or x_adv.dtype not in (x.dtype, torch.uint8)):
        return f"x_adv is {x_adv.dtype} {tuple(x_adv.shape)}, x is {x.dtype} {tuple(x.shape)}"
    return None


class Folder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.partial = self.path / PARTIAL

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if necessary, lock it against other processes and delete leftover files.

        The lock of a process is released when it ends, however it ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = _lock(self.path)
        except BlockingIOError:
            raise FolderError(f"another process is using {self.path}; wait for it or choose another --out") from None
        except OSError as error:
            raise SourceError(f"{self.path} cannot be used: {error.strerror}; choose another --out") from None
        try:
            for leftover in [*self.path.glob(".*.tmp"), *self.partial.glob(".*.tmp")]:
                leftover.unlink(missing_ok=True)
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def head(self) -> Head | None:
        """The head of the run in the folder, a Record if the run is finished; None if there is no run."""
        if (self.path / RECORD).is_file():
            shutil.rmtree(self.partial, ignore_errors=True)
            return load(self.path)
        return read(self.partial / HEAD, Head) if (self.partial / HEAD).is_file() else None

    def begin(self, head: Head) -> None:
        write(self.partial / HEAD, dump(head))

    def chunks(self, run: str) -> list[Chunk]:
        """The complete chunks of the run, without overlaps. Others are deleted, and their images attacked again."""
        whole = {file: _whole_chunk(file, run) for file in self.partial.glob("*-*.json")}
        kept: list[Chunk] = []
        for file, chunk in sorted(whole.items(), key=lambda item: item[1].part.start if item[1] else 0):
            if chunk is None or self._file(chunk, "json") != file or (kept and chunk.part.start < kept[-1].part.stop):
                file.unlink()
            else:
                kept.append(chunk)
        return kept

    def add(self, chunk: Chunk, x_adv: Tensor) -> Chunk:
        """Write a chunk. The rows are written after the images, so there are no rows without images."""
        data = save_tensors({"x_adv": x_adv})
        chunk = chunk.model_copy(update={"images": sha256(data)})
        write(self._file(chunk, "safetensors"), data)
        write(self._file(chunk, "json"), dump(chunk))
        return chunk

    def images(self, chunk: Chunk) -> Tensor:
        """The adversarial images of a chunk."""
        return load_tensors(self._file(chunk, "safetensors").read_bytes())["x_adv"]

    def write_images(self, tensors: Mapping[str, tensor_file.Parts]) -> str:
        """Write the file of all adversarial images; return its sha256."""
        total = hashlib.sha256()

        def counted(piece: bytes | memoryview) -> bytes | memoryview:
            total.update(piece)
            return piece

        write(self.path / IMAGES, map(counted, tensor_file.content(tensors)))
        return total.hexdigest()

    def finish(self, record: Record) -> None:
        """Write the record, which comes after the images, and then delete the chunks."""
        write(self.path / RECORD, dump(record))
        shutil.rmtree(self.partial, ignore_errors=True)

    def images_done(self) -> int:
        """The number of images in finished chunks, from the names of their files. Files of other names do not count."""
        ranges = (re.fullmatch(r"(\d+)-(\d+)", file.stem) for file in self.partial.glob("*-*.json"))
        return sum(int(match[2]) - int(match[1]) for match in ranges if match)

    def wait_for(self, images: int) -> None:
        """Wait until the chunks written by other workers are visible here, but no longer than `LAG`."""
        late = time.monotonic() + LAG
        while self.images_done() < images and time.monotonic() < late:
            time.sleep(0.1)

    def _file(self, chunk: Chunk, kind: str) -> Path:
        return self.partial / f"{chunk.part.start:06d}-{chunk.part.stop:06d}.{kind}"


def dump(model: BaseModel) -> bytes:
    return model.model_dump_json(indent=1).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _whole_chunk(file: Path, run: str) -> Chunk | None:
    try:
        chunk = Chunk.model_validate_json(file.read_bytes())
        images = file.with_suffix(".safetensors").read_bytes()
    except (OSError, ValidationError):
        return None
    whole = [row.index for row in chunk.rows] == list(range(chunk.part.start, chunk.part.stop))
    return chunk if whole and chunk.run == run and chunk.images == sha256(images) else None


def _lock(folder: Path) -> int | None:
    """An open, locked handle of the folder; None on Windows. BlockingIOError if another process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # a file system without locks
        pass
    return handle
