"""Data sets of torchvision and Hugging Face by name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd.errors import MissingPackageError, SourceError
from sparsepgd.sources import load_data
from sparsepgd.sources.data import load_parts
from support.grey_pictures import levels


def test_data_sets_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("torchvision:FakeData", 6, size=8)
    assert (tuple(data.x.shape), data.y.dtype) == ((6, 3, 8, 8), torch.int64)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.arange(3, dtype=np.uint8).repeat(784)
    for part, name in (("t10k", "test"), ("train", "train")):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 28, 28)) + (pixels + len(name)).tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x03" + bytes([7, 7, 2]))
    mnist = load_data(f"torchvision:MNIST:{tmp_path}")
    assert (tuple(mnist.x.shape), levels(mnist.x), mnist.y.tolist()) == ((3, 1, 28, 28), [4, 5, 6], [7, 7, 2])
    assert mnist.class_names[7] == "7 - seven"
    assert levels(load_data(f"torchvision:MNIST:{tmp_path}", 1, part="train", choose="balanced").x) == [7]
    for name, message in (
        ("torchvision:Nothing", "torchvision has no data set 'Nothing'"),
        ("torchvision:DataLoader", "torchvision has no data set 'DataLoader'"),
        (f"torchvision:Flickr8k:{tmp_path}", r"no Flickr8k in .*give its folder as torchvision:Flickr8k:DIR"),
    ):
        with pytest.raises(SourceError, match=message):
            load_data(name)


@pytest.mark.filterwarnings("ignore")  # of the library
def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets", reason="needs datasets", exc_type=ImportError)
    features = library.Features({"pic": library.Image(), "kind": library.ClassLabel(names=["ant", "bee"])})
    pictures = [Image.new("RGB", (9, 7), (i, 0, 0)) for i in range(4)]
    saved = library.Dataset.from_dict({"pic": pictures, "kind": [0, 0, 1, 1]}, features=features)
    library.DatasetDict({"validation": saved}).save_to_disk(str(tmp_path / "saved"))
    data = load_data(f"hf:{tmp_path / 'saved'}", 3, choose="balanced")
    assert (levels(data.x), data.y.tolist(), data.class_names) == ([0, 2, 1], [0, 1, 0], ("ant", "bee"))
    with pytest.raises(SourceError, match="has the splits validation; expected one of train"):
        load_data(f"hf:{tmp_path / 'saved'}", part="train")
    library.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "one"))
    assert load_parts(f"hf:{tmp_path / 'one'}")[1] is None
    library.DatasetDict({"train": saved, "validation": saved}).save_to_disk(str(tmp_path / "two"))
    assert load_parts(f"hf:{tmp_path / 'two'}")[1] is not None


def test_hugging_face_without_its_library_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingPackageError, match=r"hf:mnist needs datasets, which is not installed; pip install 'sparsepgd\[hf\]'"
    ):
        load_data("hf:mnist")
