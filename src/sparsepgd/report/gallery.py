"""The content of the gallery: each clean image once, and what every run made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sparsepgd.report.entries import Entry
from sparsepgd.report.pictures import Format, boxes, changes, choose_format, clean_picture, difference
from sparsepgd.runs.records import Row

MOST = 500  # images of each data set that are shown
ROOM = 4_200_000  # characters for all pictures of a page
BLURRED = 64  # the side up to which enlarged pixels are drawn as squares


def gallery(entries: Sequence[Entry]) -> dict[str, Any]:
    """Plain values for the script of the page; pictures are data URIs. What is no image is left out."""
    runs, entries = [_run(entry) for entry in entries], [entry for entry in entries if entry.pictures]
    sets = {entry.data_digest: entry for entry in reversed(entries)}
    first = dict(reversed(sets.items()))  # of each data set the first run, in the order of the runs
    images: list[dict[str, Any]] = []
    notes: list[str] = []
    place: dict[tuple[str, int], int] = {}
    for number, entry in enumerate(first.values()):
        pictures = [clean_picture(x) for x in entry.x[:MOST]]
        form = choose_format(pictures, ROOM // 2 // len(first))
        notes += _notes(entry, form, len(first) > 1)
        for picture, row in zip(pictures, entry.record.rows, strict=False):
            place[entry.data_digest, row.index] = len(images)
            images.append(_image(number, form.uri(picture), row))
    room = (ROOM - sum(len(image["clean"]) for image in images)) // max(len(entries), 1)
    shots = [shot for entry in entries for shot in _shots(entry, place, room)]
    return {
        "sets": [_set(entry) for entry in first.values()],
        "runs": runs,
        "images": images,
        "shots": shots,
        "notes": notes,
    }


def _set(entry: Entry) -> dict[str, Any]:
    height, width = entry.x.shape[2:]
    labels = sorted({row.label for row in entry.record.rows[:MOST]})
    names = {label: entry.class_name(label) for label in labels}
    return {"name": entry.data_name, "width": width, "height": height, "labels": names, "sharp": _sharp(entry)}


def _run(entry: Entry) -> dict[str, Any]:
    seen = {number for row in entry.record.rows[:MOST] for number in (row.clean_prediction, row.prediction)}
    names = {number: entry.class_name(number) for number in sorted(seen)}
    return {"letter": entry.letter, "label": entry.label, "names": names, "colour": entry.place % 6}


def _image(number: int, uri: str, row: Row) -> dict[str, Any]:
    return {"set": number, "index": row.index, "label": row.label, "clean": uri}


def _shots(entry: Entry, place: dict[tuple[str, int], int], room: int) -> Iterator[dict[str, Any]]:
    """What the run made of each image."""
    pairs = list(zip(entry.x[:MOST], entry.x_adv[:MOST], strict=True))
    over, apart = ([make(*pair) for pair in pairs] for make in (changes, difference))
    form, form_apart = (choose_format(pictures, room // 2) for pictures in (over, apart))
    for i, row in enumerate(entry.record.rows[:MOST]):
        touched = bool(entry.changed[i].any())
        yield {
            "run": entry.place,
            "image": place[entry.data_digest, row.index],
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
    smaller = (
        f" and made smaller, from {width}x{height} to at most {form.side}" if form.side < max(width, height) else ""
    )
    yield f"Clean pictures{which} are compressed (WebP){smaller}; changed pixels lie on them at full resolution."


def _sharp(entry: Entry) -> bool:
    return max(entry.x.shape[2:]) <= BLURRED
