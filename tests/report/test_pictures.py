"""Pictures of a page: what was changed is exact, and they fit into the room that they are given."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from sparsepgd.report.pictures import Format, boxes, changes, choose_format, clean_picture, difference
from support.models import images


def decoded(uri: str) -> np.ndarray:
    with Image.open(BytesIO(base64.b64decode(uri.partition(",")[2]))) as picture:
        return np.array(picture)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_changes_on_the_clean_picture_are_the_adversarial_one(channels: int) -> None:
    x, x_adv = images(2, channels, 9, seed=1)[0], images(2, channels, 9, seed=2)[0]
    x_adv[:, :6] = x[:, :6]
    below, over = decoded(Format(None).uri(clean_picture(x))), decoded(Format(None).uri(changes(x, x_adv)))
    seen = np.where(over[:, :, 3:] > 0, over[:, :, :3], below)
    assert np.array_equal(seen, clean_picture(x_adv))
    assert not over[:6].any()  # nothing to see, nothing to store


def test_differences_are_grey_at_zero_and_scaled_to_the_largest() -> None:
    x = torch.full((3, 4, 4), 0.5)
    x_adv = x.clone()
    x_adv[0, 0, 0] += 0.02
    x_adv[0, 1, 1] -= 0.01
    seen = difference(x, x_adv)
    assert seen[0, 0].tolist() == [255, 128, 128, 255]
    assert seen[1, 1].tolist() == [64, 128, 128, 255]
    assert seen[2, 2, 3] == 0


def test_boxes_lie_around_heaps_of_changed_pixels() -> None:
    changed = torch.zeros(20, 30, dtype=torch.bool)
    changed[2:6, 3:10] = True
    changed[3, 5] = False  # a hole
    changed[15, 20] = changed[17, 21] = True  # near each other
    assert boxes(changed) == [[3, 2, 7, 4], [20, 15, 2, 3]]
    assert boxes(torch.zeros(5, 5, dtype=torch.bool)) == []


def test_pictures_get_smaller_until_they_fit() -> None:
    pictures = [clean_picture(x) for x in torch.rand(20, 3, 96, 96, generator=torch.Generator().manual_seed(0))]
    whole = sum(len(Format(None).uri(picture)) for picture in pictures)
    assert choose_format(pictures, 2 * whole) == Format(None)
    for room in (whole // 2, whole // 8):
        form = choose_format(pictures, room)
        assert form.side is not None
        assert sum(len(form.uri(picture)) for picture in pictures) <= 1.1 * room
        assert max(decoded(form.uri(pictures[0])).shape[:2]) == form.side
    assert choose_format([], 0) == Format(None)
