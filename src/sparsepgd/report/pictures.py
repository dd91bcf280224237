"""Images embedded in a page: small, but with the changed pixels exact to the 8-bit level.

An adversarial image is shown as the clean image below a transparent picture that contains only the changed pixels. So
every clean image is stored once, however many runs attack it, and the changes stay sharp even if the clean image was
made smaller.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sparsepgd.problem.notebook import levels, three_channels
from sparsepgd.report.entries import Entry
from sparsepgd.threat import LEVELS

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
SAMPLE = 12  # pictures from which the size of all is estimated
SIDES = (512, 384, 256, 192, 128, 96, 64, 48)
QUALITY = 80
MOST_BOXES = 40
MOST = 500  # images of each data set that are shown
ROOM = 4_200_000  # characters for all pictures of a page
BLURRED = 64  # the side up to which enlarged pixels are drawn as squares


@dataclass(frozen=True)
class Format:
    """How pictures are written: lossless as PNG, or as WebP with sides of at most `side`."""

    side: int | None  # None: PNG, every pixel

    def uri(self, pixels: Pixels) -> str:
        picture, file = Image.fromarray(pixels), BytesIO()
        if self.side is None:
            picture.save(file, "PNG", optimize=True)
        else:
            picture.thumbnail((self.side, self.side), Image.Resampling.LANCZOS)
            picture.save(file, "WEBP", quality=QUALITY)
        kind = "png" if self.side is None else "webp"
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def choose_format(pictures: Sequence[Pixels], room: int) -> Format:
    """The best format with which all pictures fit into `room` characters, estimated from a sample of them."""
    if not pictures:
        return Format(None)
    sample = [pictures[int(i)] for i in np.linspace(0, len(pictures) - 1, min(SAMPLE, len(pictures)))]
    longest = max(sample[0].shape[:2])
    formats = [Format(None), Format(longest), *(Format(side) for side in SIDES if side < longest)]
    for form in formats:
        if sum(len(form.uri(picture)) for picture in sample) / len(sample) * len(pictures) <= room:
            return form
    return formats[-1]


def clean_picture(x: Tensor) -> Pixels:
    """(C, H, W) -> (H, W, 3)."""
    return levels(three_channels(x)).numpy()


def changes(x: Tensor, x_adv: Tensor) -> Pixels:
    """The changed pixels of x_adv, transparent elsewhere: (H, W, 4)."""
    return _on_nothing(three_channels(x_adv), (x != x_adv).any(0))


def difference(x: Tensor, x_adv: Tensor) -> Pixels:
    """x_adv - x of the changed pixels, with grey as zero and the largest difference as full scale: (H, W, 4)."""
    delta = three_channels(x_adv - x)
    return _on_nothing(0.5 + 0.5 * delta / delta.abs().amax().clamp(min=1e-12), (x != x_adv).any(0))


def boxes(changed: Tensor) -> list[list[int]]:
    """[left, top, width, height] of each cluster of changed pixels, (H, W) bool: the highlight boxes of the paper."""
    from scipy import ndimage

    mask, around = changed.numpy(), np.ones((3, 3))
    clusters, _ = ndimage.label(ndimage.binary_dilation(mask, around), around)
    slices = ndimage.find_objects(np.where(mask, clusters, 0))[:MOST_BOXES]
    return [[x.start, y.start, int(x.stop - x.start), int(y.stop - y.start)] for y, x in slices]


def _on_nothing(x: Tensor, shown: Tensor) -> Pixels:
    alpha = shown[:, :, None].to(torch.uint8) * LEVELS
    return torch.cat([levels(x) * shown[:, :, None], alpha], 2).numpy()


def gallery(entries: Sequence[Entry]) -> dict[str, Any]:
    """Plain values for the script of the page; pictures are data URIs. Inputs that are not images are left out."""
    runs, entries = [_run(entry) for entry in entries], [entry for entry in entries if entry.pictures]
    first: dict[str, Entry] = {}  # the first run on each data set, by its digest
    for entry in entries:
        first.setdefault(entry.data_digest, entry)
    images: list[dict[str, Any]] = []
    notes: list[str] = []
    position: dict[tuple[str, int], int] = {}  # of an image in the gallery, by data set and index
    for number, entry in enumerate(first.values()):
        pictures = [clean_picture(x) for x in entry.x[:MOST]]
        form = choose_format(pictures, ROOM // 2 // len(first))
        notes += _notes(entry, form, len(first) > 1)
        for picture, row in zip(pictures, entry.record.rows, strict=False):
            position[entry.data_digest, row.index] = len(images)
            images.append({"set": number, "index": row.index, "label": row.label, "clean": form.uri(picture)})
    room = (ROOM - sum(len(image["clean"]) for image in images)) // max(len(entries), 1)
    shots = [shot for entry in entries for shot in _shots(entry, position, room)]
    sets_shown = [_set(entry) for entry in first.values()]
    return {"sets": sets_shown, "runs": runs, "images": images, "shots": shots, "notes": notes}


def _set(entry: Entry) -> dict[str, Any]:
    height, width = entry.x.shape[2:]
    labels = sorted({row.label for row in entry.record.rows[:MOST]})
    names = {label: entry.class_name(label) for label in labels}
    sharp = max(height, width) <= BLURRED
    return {"name": entry.data_name, "width": width, "height": height, "labels": names, "sharp": sharp}


def _run(entry: Entry) -> dict[str, Any]:
    seen = {number for row in entry.record.rows[:MOST] for number in (row.clean_prediction, row.prediction)}
    names = {number: entry.class_name(number) for number in sorted(seen)}
    return {"letter": entry.letter, "label": entry.label, "names": names, "colour": entry.position % 6}


def _shots(entry: Entry, position: dict[tuple[str, int], int], room: int) -> Iterator[dict[str, Any]]:
    pairs = list(zip(entry.x[:MOST], entry.x_adv[:MOST], strict=True))
    over, apart = ([make(*pair) for pair in pairs] for make in (changes, difference))
    form, form_apart = (choose_format(pictures, room // 2) for pictures in (over, apart))
    for i, row in enumerate(entry.record.rows[:MOST]):
        touched = bool(entry.changed[i].any())
        yield {
            "run": entry.position,
            "image": position[entry.data_digest, row.index],
            "outcome": entry.outcome(row),
            "attack": row.broken_by,
            "before": row.clean_prediction,
            "sure_before": row.clean_confidence,
            "after": row.prediction,
            "sure_after": row.confidence,
            "pixels": row.l0,
            "steps": row.steps,
            "queries": row.forwards,
            "changes": form.uri(over[i]) if touched else "",
            "difference": form_apart.uri(apart[i]) if touched else "",
            "boxes": boxes(entry.changed[i]),
        }


def _notes(entry: Entry, form: Format, several: bool) -> Iterator[str]:
    which = f" of {entry.data_name}" if several else ""
    if entry.record.images > MOST:
        yield f"The first {MOST} of {entry.record.images:,} images{which} are shown."
    if form.side is None:
        return
    height, width = entry.x.shape[2:]
    smaller = ""
    if form.side < max(width, height):
        smaller = f" and made smaller, from {width}x{height} to at most {form.side}"
    yield f"Clean pictures{which} are compressed (WebP){smaller}; changed pixels lie on them at full resolution."
