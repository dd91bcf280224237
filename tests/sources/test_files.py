"""Exported programs and ONNX files as models: the same answers, whatever the batch, and no pickle unawares."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd.errors import NoGradientError, SourceError
from sparsepgd.sources import load_model
from sparsepgd.sources.files import in_batches
from support.models import SmallConvNet, images, labelled

X = images(5)


def exported(path: Path, dynamic: bool) -> nn.Module:
    model = SmallConvNet().eval()
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    torch.export.save(torch.export.export(model, (X[:2],), dynamic_shapes=shapes), path)
    return model


@pytest.mark.parametrize("dynamic", [True, False])
def test_an_exported_program_is_attacked_like_the_model_itself(tmp_path: Path, dynamic: bool) -> None:
    model = exported(tmp_path / "m.pt2", dynamic)
    source = load_model(str(tmp_path / "m.pt2"))
    assert (source.name, source.size, source.black_box) == ("m", 12, False)
    torch.testing.assert_close(source.model(X), model(X))
    source.model.train().eval()  # commands do; a program itself refuses
    attack, y = sp.SparsePGD(sp.Budget(k=4), steps=12), labelled(model, X)
    result, expected = attack(source.model, X, y), attack(model, X, y)
    assert bool(expected.fooled.any())
    assert torch.equal(result.fooled, expected.fooled)


def test_exported_programs_with_a_pickle_need_trust(tmp_path: Path) -> None:
    exported(tmp_path / "m.pt2", True)
    with zipfile.ZipFile(tmp_path / "m.pt2") as old, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("weights_config.json"):
                config = json.loads(content)
                next(iter(config["config"].values()))["use_pickle"] = True
                content = json.dumps(config).encode()
            new.writestr(name, content)
    with pytest.raises(SourceError, match=r"evil.pt2' contains a pickle, .*weights_config.json.*--trust"):
        load_model(str(tmp_path / "evil.pt2"))
    (tmp_path / "no.pt2").write_text("no archive")
    with pytest.raises(SourceError, match="is not an exported program"):
        load_model(str(tmp_path / "no.pt2"))


@pytest.mark.parametrize("size", [None, 1, 2, 3, 5, 8])
def test_batches_of_one_size_give_all_answers_in_order(size: int | None) -> None:
    asked = []

    def model(x: Tensor) -> Tensor:
        asked.append(len(x))
        return x.flatten(1)[:, :2]

    assert torch.equal(in_batches(model, X, size), X.flatten(1)[:, :2])
    assert size is None or set(asked) == {size}


@pytest.mark.parametrize("dynamic", [True, False])
def test_an_onnx_file_is_a_black_box(tmp_path: Path, dynamic: bool) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    pytest.importorskip("onnxscript", reason="torch exports to ONNX with onnxscript")
    model, path = SmallConvNet().eval(), tmp_path / "m.onnx"
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (X[:2],), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    source = load_model(str(path))
    assert (source.size, source.black_box) == (12, True)
    assert "black-box attacks only" in source.about
    torch.testing.assert_close(source.model(X), model(X), atol=1e-4, rtol=1e-4)
    y = labelled(model, X)
    result = sp.SparseRS(sp.Budget(k=6), queries=60)(source.model, X, y)
    assert bool(result.fooled.any())
    with pytest.raises(NoGradientError, match="use SparseRS, a black-box attack"):
        sp.SparsePGD(sp.Budget(k=6), steps=5)(source.model, X, y)
    path.write_text("no onnx")
    with pytest.raises(SourceError, match="cannot be read as ONNX"):
        load_model(str(path))
