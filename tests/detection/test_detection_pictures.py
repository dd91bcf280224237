"""Pictures of what is found before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd.detection import Prediction
from sparsepgd.detection.study import drawn, side_by_side
from sparsepgd.errors import SparsePGDError
from sparsepgd.sources import save_image
from support.models import images
from support.small_detectors import SIZE

BOX = torch.tensor([[10.0, 20.0, 40.0, 50.0]])


def said(score: float) -> Prediction:
    return Prediction(BOX, torch.tensor([1]), torch.tensor([score]))


def test_only_sure_predictions_are_drawn() -> None:
    image = images(1, size=SIZE)[0]
    plain = (image * 255).round().to(torch.uint8)
    assert torch.equal(drawn(image, said(0.1)), plain)
    changed = (drawn(image, said(0.9), ("cat", "dog")) != plain).any(0)
    assert bool(changed[20, 10:40].all())  # the upper side of the box
    assert not bool(changed[52:].any())


def test_before_is_on_the_left_and_after_on_the_right(tmp_path: Path) -> None:
    x = images(2, size=SIZE)
    picture = side_by_side(x[0], x[1], said(0.1), said(0.1))
    assert picture.shape == (3, SIZE, 2 * SIZE + 6)
    assert torch.equal(picture[..., :SIZE], (x[0] * 255).round().to(torch.uint8))
    assert torch.equal(picture[..., -SIZE:], (x[1] * 255).round().to(torch.uint8))
    save_image(picture, tmp_path / "sub" / "both.png")
    with Image.open(tmp_path / "sub" / "both.png") as file:
        assert torch.equal(torch.from_numpy(np.array(file)).permute(2, 0, 1), picture)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SparsePGDError, match="cannot be written"):
        save_image(torch.zeros(3, 2, 2, dtype=torch.uint8), tmp_path / "file" / "both.png")
