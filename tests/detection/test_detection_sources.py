"""Detectors by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsepgd.detection import TorchvisionDetector
from sparsepgd.detection.sources import load_detector
from sparsepgd.errors import SourceError
from support.small_detectors import made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(
        "from support.small_detectors import made\n"
        "from sparsepgd.detection import TorchvisionDetector\n"
        "def ssd(): return made('ssd')\n"
        "def masks(): return made('mask-rcnn')\n"
        "def pair(): return ssd(), TorchvisionDetector((5, 6, 7))\n"
        "def nothing(): return 3\n"
    )
    return file


def test_a_factory_gives_a_detector_or_a_pair(file: Path) -> None:
    found = load_detector(f"{file}:ssd")
    assert type(found.model) is type(made("ssd"))
    assert (found.name, found.detector, found.masked) == ("mine:ssd", TorchvisionDetector(), False)
    assert load_detector(f"{file}:masks").masked
    assert load_detector(f"{file}:pair").detector == TorchvisionDetector((5, 6, 7))


def test_what_is_no_detector_is_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"use FILE\.pt or yolo:FILE of ultralytics, torchvision:NAME"):
        load_detector("zoo:small-plain")
    with pytest.raises(SourceError, match="mine:nothing returned an object of type int; expected a detector"):
        load_detector(f"{file}:nothing")
    with pytest.raises(SourceError, match="has no function 'other'"):
        load_detector(f"{file}:other")
    with pytest.raises(SourceError, match="no file"):
        load_detector(f"{tmp_path / 'nowhere.py'}:ssd")
    with pytest.raises(SourceError, match=r"has no detector 'resnet18'; use one of .*retinanet_resnet50_fpn"):
        load_detector("torchvision:resnet18")
    for name in ("yolo:nowhere.pt", "nowhere.pt"):
        with pytest.raises(SourceError, match=r"no file 'nowhere\.pt'; give a checkpoint such as yolov8n\.pt"):
            load_detector(name)


def test_a_factory_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "weights_beside.py").write_text("KIND = 'ssd'\n")
    (tmp_path / "mine.py").write_text(
        "from support.small_detectors import made\nfrom weights_beside import KIND\ndef net(): return made(KIND)\n"
    )
    assert load_detector(f"{tmp_path / 'mine.py'}:net").name == "mine:net"
