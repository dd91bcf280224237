"""Results in notebooks: a small table, and thumbnails of the first fooled images."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsepgd.threat import LEVELS

if TYPE_CHECKING:
    from sparsepgd.problem import Result

MOST = 8  # images that are shown
SIDE = 80  # of a thumbnail on the page
STORED = 160  # its longest side in the file, at most


def of_result(result: Result) -> str:
    """Only adversarial images, and classes as numbers: a result has no clean images and no names."""
    cells = {
        "images": f"{len(result):,}",
        "clean accuracy": f"{result.clean_accuracy:.1%}",
        "robust accuracy": f"{result.robust_accuracy:.1%}",
        "fooled": f"{int(result.fooled.sum()):,}",
        "changed pixels, median": _median(result.l0[result.fooled]),
        "steps, median": _median(result.steps[result.fooled]),
    }
    return render(cells, fooled_by(result.broken_by), thumbnails(result))


def fooled_by(names: Iterable[str | None]) -> list[str]:
    """A note on how many images each attack fooled; none if it was one attack."""
    by = Counter(name for name in names if name is not None)
    return ["fooled by " + ", ".join(f"{name}: {count}" for name, count in by.most_common())] if len(by) > 1 else []


def render(cells: Mapping[str, str], notes: Iterable[str], figures: Iterable[str]) -> str:
    """A table of one row, the notes and the figures, with the fonts and colours of the notebook."""
    head = "".join(f"<th>{escape(word)}</th>" for word in cells)
    row = "".join(f"<td>{escape(word)}</td>" for word in cells.values())
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>"
    return f'<div>{table}{below}<div style="display: flex; flex-wrap: wrap; gap: 12px">{"".join(figures)}</div></div>'


def thumbnails(result: Result, x: Tensor | None = None, class_names: Sequence[str] = ()) -> Iterator[str]:
    """The first fooled images, each after its clean one if `x` is given; none if inputs are not images."""
    shown = result.fooled.nonzero()[:MOST, 0].tolist() if result.x_adv.dim() == 4 else []
    for i in shown:
        before, after = (_name(int(said[i]), class_names) for said in (result.clean_prediction, result.prediction))
        pictures = "".join(_picture(images[i]) for images in (x, result.x_adv) if images is not None)
        words = f"{escape(before)} → {escape(after)}<br>{int(result.l0[i])} px"
        yield f'<figure style="margin: 0">{pictures}<figcaption style="margin: 0">{words}</figcaption></figure>'


def three_channels(x: Tensor) -> Tensor:
    """(3, H, W) from any number of channels (C, H, W)."""
    if x.shape[0] == 2:
        x = torch.cat([x, torch.zeros_like(x[:1])])
    return x.expand(3, -1, -1) if x.shape[0] == 1 else x[:3]


def levels(x: Tensor) -> Tensor:
    """(C, H, W) in [0, 1] -> (H, W, C) of 8 bits."""
    return (x.float().clamp(0, 1) * LEVELS).round().to(torch.uint8).permute(1, 2, 0).contiguous()


def _picture(x: Tensor) -> str:
    from PIL import Image  # slow to import

    picture, file = Image.fromarray(levels(three_channels(x.detach().cpu())).numpy()), BytesIO()
    picture.thumbnail((STORED, STORED))
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    style = f"width: {SIDE}px; margin: 0 2px 0 0; display: inline; image-rendering: pixelated"
    return f'<img src="data:image/png;base64,{data}" alt="" style="{style}">'


def _name(number: int, class_names: Sequence[str]) -> str:
    return class_names[number] if number < len(class_names) else str(number)


def _median(values: Tensor) -> str:
    return f"{int(values.median())}" if len(values) else "-"
