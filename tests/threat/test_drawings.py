"""The built-in drawings look as promised, and picture files come through unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sparsepgd.errors import KernelError, SourceError, UnsupportedError
from sparsepgd.threat import drawings

Draw = Callable[[int], Tensor]
SIZES = [*range(1, 40), 60, 61, 224, 640]
PICTURE = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])  # unlike its mirror images


def letter_a(size: int) -> Tensor:
    return drawings.letter("A", size)


def text(kernel: Tensor) -> list[str]:
    return ["".join(".#"[int(cell)] for cell in row) for row in kernel]


def save(pixels: Tensor, path: Path, mode: str | None = None) -> Path:
    image = Image.fromarray(pixels.to(torch.uint8).numpy())
    (image.convert(mode) if mode else image).save(path)
    return path


@pytest.mark.parametrize(("draw", "size", "ones"), [(drawings.circle, 18, 208), (letter_a, 60, 1747)])
def test_kernels_of_the_paper_have_its_number_of_ones(draw: Draw, size: int, ones: int) -> None:
    kernel = draw(size)
    assert kernel.shape == (size, size)
    assert int(kernel.sum()) == ones


@pytest.mark.parametrize("draw", [drawings.heart, drawings.star, drawings.circle])
def test_shapes_are_square_binary_never_empty_and_mirror_symmetric(draw: Draw) -> None:
    for size in SIZES:
        kernel = draw(size)
        assert kernel.shape == (size, size)
        assert kernel.dtype == torch.float32
        assert torch.equal(kernel, kernel.bool().float())
        assert kernel.any()
        assert torch.equal(kernel, kernel.flip(1))


@pytest.mark.parametrize("draw", [drawings.heart, drawings.star])
def test_heart_and_star_touch_all_four_sides_from_size_5(draw: Draw) -> None:
    for size in SIZES[4:]:
        kernel = draw(size)
        for side in (kernel[0], kernel[-1], kernel[:, 0], kernel[:, -1]):
            assert side.any(), size


def test_heart_has_a_notch_and_a_tip() -> None:
    for size in SIZES[4:]:
        kernel = drawings.heart(size)
        middle = kernel[:, (size - 1) // 2]
        assert not middle[0], size  # the notch
        assert middle[size // 4 + 1 :].all(), size
        assert kernel[-1].sum() <= 2, size


def test_star_has_five_points() -> None:
    assert text(drawings.star(12)) == [
        ".....##.....",
        ".....##.....",
        ".....##.....",
        ".....##.....",
        "############",
        ".##########.",
        "..########..",
        "...######...",
        "...######...",
        "...######...",
        "..###..###..",
        "..##....##..",
    ]


def test_circle_keeps_a_margin_of_one_cell() -> None:
    kernel = drawings.circle(18)
    assert not kernel[0].any()
    assert kernel[1].any()
    assert torch.equal(kernel, kernel.T)


def test_tiny_circles_fill_their_box() -> None:
    assert drawings.circle(1).all()
    assert drawings.circle(2).all()


def test_letters_keep_their_holes() -> None:
    o, eight = drawings.letter("O", 40), drawings.letter("8", 40)
    assert not o[20, 20]
    inside = eight[:, 20].diff().ne(0).sum()  # ink, hole, ink, hole, ink
    assert int(inside) == 4


def test_contours_of_one_sense_are_joined_and_of_opposite_sense_are_holes() -> None:
    square = np.array([[0.0, 0], [3, 0], [3, 3], [0, 3]])
    joined = drawings._inside([square, square + 1], 4)
    holed = drawings._inside([square, (square / 3 + 1)[::-1]], 4)
    middle = (slice(3 * len(holed) // 8, 4 * len(holed) // 8),) * 2  # within the cell (1, 1)
    assert joined[middle].all()
    assert not holed[middle].any()
    assert (joined.mean(), holed.mean()) == (14 / 16, 8 / 16)


def test_letters_are_upright_and_not_mirrored() -> None:
    kernel = drawings.letter("L", 20)
    assert kernel[:, 0].all()
    assert kernel[-1].all()
    assert not kernel[0, -1]


def test_a_bar_fills_the_box_because_letters_are_stretched() -> None:
    assert drawings.letter("I", 12).all()


@pytest.mark.parametrize("draw", [drawings.heart, drawings.star, drawings.circle, letter_a])
def test_size_below_one_is_rejected(draw: Draw) -> None:
    with pytest.raises(KernelError, match=r"size=0; use an integer size >= 1"):
        draw(0)


@pytest.mark.parametrize("character", ["", " ", "\n", "AB", "\xa0"])
def test_not_one_visible_character_is_rejected(character: str) -> None:
    with pytest.raises(KernelError, match="exactly one visible character"):
        drawings.letter(character, 20)


def test_character_missing_from_the_font_is_rejected() -> None:
    with pytest.raises(KernelError, match=r"'字' is not in the font DejaVuSans-Bold.*from_image"):
        drawings.letter("字", 20)


def test_character_without_outline_is_rejected() -> None:
    with pytest.raises(KernelError, match="no outline"):
        drawings.letter("\N{BRAILLE PATTERN BLANK}", 20)


def test_letter_without_ink_at_its_size_is_rejected() -> None:
    with pytest.raises(KernelError, match="use a larger size"):
        drawings.letter("A", 1)


@pytest.mark.parametrize("mode", [None, "RGB", "RGBA", "P", "1"])
def test_dark_picture_round_trip(tmp_path: Path, mode: str | None) -> None:
    path = save(255 * (1 - PICTURE), tmp_path / "dark.png", mode)
    for ink in ("auto", "dark"):
        assert torch.equal(drawings.from_image(path, None, ink), PICTURE.float())


def test_light_picture_round_trip(tmp_path: Path) -> None:
    path = save(255 * PICTURE, tmp_path / "light.png")
    assert torch.equal(drawings.from_image(path, ink="light"), PICTURE.float())
    assert torch.equal(drawings.from_image(path), 1 - PICTURE.float())


@pytest.mark.parametrize("colour", [0, 255])
def test_transparent_picture_round_trip_whatever_its_colour(tmp_path: Path, colour: int) -> None:
    rgba = torch.stack((*3 * [torch.full_like(PICTURE, colour)], 255 * PICTURE), -1)
    path = save(rgba, tmp_path / "alpha.png")
    for ink in ("auto", "alpha", "light" if colour else "dark"):
        assert torch.equal(drawings.from_image(path, None, ink), PICTURE.float())


def test_threshold_is_one_half(tmp_path: Path) -> None:
    path = save(torch.tensor([[126, 127, 128, 129]]), tmp_path / "grey.png")
    assert drawings.from_image(path, ink="dark").tolist() == [[1, 1, 0, 0]]
    assert drawings.from_image(path, ink="light").tolist() == [[0, 0, 1, 1]]


def test_size_is_the_longer_side_after_resizing(tmp_path: Path) -> None:
    path = save(255 * (1 - PICTURE), tmp_path / "picture.png")
    larger = torch.from_numpy(np.kron(PICTURE.numpy(), np.ones((2, 2)))).float()
    assert torch.equal(drawings.from_image(path, 8), larger)
    again = save(255 * (1 - larger), tmp_path / "larger.png")
    assert torch.equal(drawings.from_image(str(again), 4), PICTURE.float())
    line = save(torch.zeros(1, 30), tmp_path / "line.png")
    assert drawings.from_image(line, 10).shape == (1, 10)
    with pytest.raises(KernelError, match="size=1; use another ink= or a larger size"):
        drawings.from_image(path, 1)


def test_missing_file_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no picture at .*nowhere\.png; check the path"):
        drawings.from_image(tmp_path / "nowhere.png")


def test_unreadable_file_names_its_path_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(b"no picture")
    with pytest.raises(SourceError, match=r"cannot read .*broken\.png.* save it as an 8-bit PNG"):
        drawings.from_image(path)
    whole = save(255 * (1 - drawings.heart(64)), tmp_path / "whole.png").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"broken\.png"):
        drawings.from_image(path)


def test_wrong_requests_on_a_readable_file_are_rejected(tmp_path: Path) -> None:
    path = save(255 * torch.ones(4, 4), tmp_path / "white.png")
    with pytest.raises(KernelError, match=r"white\.png has no ink with ink='auto'"):
        drawings.from_image(path)
    with pytest.raises(KernelError, match="size=0"):
        drawings.from_image(path, 0)
    with pytest.raises(SourceError, match=r"no transparency.*ink='dark'"):
        drawings.from_image(path, ink="alpha")
    with pytest.raises(UnsupportedError, match="ink='red'; expected one of 'auto', 'dark'"):
        drawings.from_image(path, ink="red")  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [drawings.heart, drawings.star, drawings.circle, partial(drawings.letter, "A")])
@pytest.mark.parametrize("size", [2.5, "9", None, 99_999_999])
def test_a_size_that_is_no_integer_or_does_not_fit_into_memory_is_refused(
    draw: Callable[[Any], Tensor], size: object
) -> None:
    with pytest.raises(KernelError, match=f"size={size!r}; use an integer size >= 1"):
        draw(size)
