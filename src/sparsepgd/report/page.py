"""The page: one HTML file that needs nothing else, neither a network nor a second file."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparsepgd.analysis.summary import counted, wilson
from sparsepgd.atomic import write
from sparsepgd.report.entries import Entry, entries_of, notices, nouns, short_digest, unbroken
from sparsepgd.report.figures import draw_all
from sparsepgd.report.pictures import gallery
from sparsepgd.runs.folders import dump, sha256
from sparsepgd.runs.records import Record

ABSENT = "-"
PAGE = "report.html"


def write_page(entries: Sequence[Entry], file: Path) -> Path:
    write(file, render(entries).encode())
    return file


def refresh_page(records: Mapping[Path, Record], file: Path) -> Path:
    """The page of the runs in these folders and no others, unless that is what is there."""
    shown = _listed(records.values())
    if not file.is_file() or f'name="runs" content="{shown}"' not in file.read_text(encoding="utf-8", errors="replace"):
        write_page(entries_of(records), file)
    return file


def _listed(records: Iterable[Record]) -> str:
    """What is shown, in the head of the page: the digest of each record."""
    return " ".join(sha256(dump(record))[:16] for record in records)


def render(entries: Sequence[Entry]) -> str:
    """Everything that comes from data is escaped by the template; the script gets it as JSON and writes it as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sparsepgd.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration, "count": count, "counted": counted}
    script, (thing, point) = _asset("page.js"), nouns(entries)
    page: str = environment.get_template("page.html.j2").render(
        entries=entries,
        title=_title(entries),
        runs=_listed(entry.record for entry in entries),
        thing=thing,
        point=point,
        notices=notices(entries),
        drawings=list(draw_all(entries)),
        together=list(_together(entries)),
        settings=list(_table([_flat(entry.record.configuration) for entry in entries])),
        versions=list(_table([entry.record.environment for entry in entries])),
        gallery=gallery(entries),
        style=_asset("page.css"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return page


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def count(value: float) -> str:
    return ABSENT if math.isnan(value) else f"{value:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _asset(name: str) -> str:
    return files("sparsepgd.report").joinpath("assets", name).read_text(encoding="utf-8")


def _title(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return f"{entries[0].model_name} under {entries[0].attack_name}"
    names = {word: {getattr(entry, f"{word}_name") for entry in entries} for word in ("model", "attack")}
    return " under ".join(next(iter(of)) if len(of) == 1 else f"{len(of)} {word}s" for word, of in names.items())


def _together(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """For each model that several runs attack alike: what is left if each of them may break an image."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.contest, []).append(entry)
    for group in groups.values():
        if len(group) > 1:
            left = unbroken([entry.record for entry in group])
            n = group[0].record.images
            letters = " + ".join(entry.letter for entry in group)
            low, high = wilson(left, n)
            yield {"letters": letters, "model": group[0].model_name, "robust": left / n, "low": low, "high": high}


def _table(columns: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str], bool]]:
    """(name, its value in each run, whether they differ)."""
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, ABSENT) for column in columns]
        yield name, values, len(set(values)) > 1


def _flat(value: object, path: str = "") -> dict[str, str]:
    """``{"attack": {"steps": 60}}`` -> ``{"attack.steps": "60"}``; kernels and groups are too large to be read."""
    if isinstance(value, dict):
        parts = (_flat(each, f"{path}.{key}" if path else str(key)) for key, each in value.items())
        return {name: text for part in parts for name, text in part.items()}
    if isinstance(value, list) and path.endswith("kernel"):
        return {path: f"{len(value)}x{len(value[0])}, {''.join(value).count('1')} ones"}
    if isinstance(value, list) and path.endswith("pattern.sets"):
        return {path: f"{len(value)}, sha256 {short_digest(value)}"}
    return {path: ABSENT if value is None else str(value)}
