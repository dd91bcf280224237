"""Picture files: cut and resized as it is asked for, read and written losslessly, refused with a reason."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd import zoo
from sparsepgd.errors import SourceError, SparsePGDError, UnsupportedError
from sparsepgd.sources.pictures import Framing, as_tensor, load_image, save_image


def test_pictures_are_cut_and_resized_only_if_need_be(tmp_path: Path) -> None:
    x, _ = zoo.bundled_images(1)
    save_image(x[0], tmp_path / "a.png")
    read, own = load_image(str(tmp_path / "a.png"), 32)
    assert torch.equal(read, x)
    assert own == (32, 32)
    Image.new("RGB", (100, 50), (10, 20, 30)).save(tmp_path / "b.png")
    read, own = load_image(str(tmp_path / "b.png"), 32)
    assert (tuple(read.shape), own) == ((1, 3, 32, 32), (100, 50))
    assert load_image(str(tmp_path / "b.png"), None)[0].shape == (1, 3, 50, 100)


def test_unreadable_pictures_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(SourceError, match="cannot be read as a picture"):
        load_image(str(tmp_path / "text.png"), None)
    with pytest.raises(SourceError, match="no file"):
        load_image("nowhere.png", None)
    with pytest.raises(SourceError, match="use bundled:0 to bundled:499"):
        load_image("bundled:500", 32)
    with pytest.raises(SparsePGDError, match=r"a.png cannot be written: .*; check the folder and its permissions"):
        save_image(torch.zeros(3, 4, 4), tmp_path / "text.png" / "a.png")


def test_framing_is_that_of_torchvision() -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    noise = np.random.default_rng(0).integers(0, 256, (50, 83, 3), np.uint8)
    for picture in (Image.fromarray(noise), Image.fromarray(noise.transpose(1, 0, 2))):
        expected = np.array(Compose([Resize(40), CenterCrop(32)])(picture))
        found = as_tensor(picture, Framing(32, 40, "bilinear"))
        assert torch.equal((found * 255).round().byte(), torch.from_numpy(expected).permute(2, 0, 1))
    assert as_tensor(Image.new("L", (20, 10)), 8).shape == (1, 8, 8)
    assert as_tensor(Image.new("RGBA", (20, 10)), None).shape == (3, 10, 20)


def test_framings_that_cannot_be_are_refused() -> None:
    for wrong in ({"size": 0}, {"size": 32, "resize": 16}, {"size": 3, "filter": "nearest"}):
        with pytest.raises(UnsupportedError, match=r"size=|filter="):
            Framing(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_sixteen_bit_grey_is_scaled_to_eight_bits_and_not_clipped(kind: type, tmp_path: Path) -> None:
    levels = np.array([[0, 257, 32896, 65535]]).astype(kind)
    picture = Image.fromarray(levels)
    assert picture.mode in ("I;16", "I")
    assert (as_tensor(picture, None)[0, 0] * 255).round().tolist() == [0, 1, 128, 255]
    picture.save(tmp_path / "a.tif")
    read, _ = load_image(str(tmp_path / "a.tif"), None)
    assert (read[0, :, 0] * 255).round().tolist() == [[0, 1, 128, 255]] * 3


def test_pictures_without_a_known_range_are_refused(tmp_path: Path) -> None:
    for levels in (np.array([[0.5]], np.float32), np.array([[70000]], np.int32)):
        Image.fromarray(levels).save(tmp_path / "a.tif")
        with pytest.raises(SourceError, match=r"a picture of mode [FI] with values .*; use 8 or 16 bits"):
            load_image(str(tmp_path / "a.tif"), None)


def test_pictures_too_large_for_pillow_are_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(SourceError, match="cannot be read as a picture: Image size"):
        load_image(str(tmp_path / "a.png"), None)


def test_a_picture_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "a.png"
    save_image(torch.zeros(1, 3, 4), file)
    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SparsePGDError, match=r"a.png cannot be written: No space left on device; free some space"):
        save_image(torch.ones(1, 3, 4), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_grey_pictures_are_read_and_written_with_one_channel(tmp_path: Path) -> None:
    x = torch.arange(12.0).view(1, 3, 4) / 255
    save_image(x, tmp_path / "a.png")
    assert torch.equal(load_image(str(tmp_path / "a.png"), None, grey=True)[0], x[None])
