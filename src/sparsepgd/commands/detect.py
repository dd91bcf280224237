"""`spgd detect`: mAP of a detector before and after sparse attacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from sparsepgd import atomic, options
from sparsepgd.baselines.restarts import Repeated
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import command, device_named, out, progress
from sparsepgd.detection import read_folder
from sparsepgd.detection.sources import NAMES, load_detector
from sparsepgd.detection.study import examine, score, side_by_side
from sparsepgd.errors import BudgetError, UnsupportedError, counted
from sparsepgd.runs.identity import hardware
from sparsepgd.search import Attack
from sparsepgd.sources import save_image
from sparsepgd.threat import Budget

PAPER = ("pixel@1600", "pixel@3200", "patch:4@100", "patch:4@200")


def detect(
    data: Annotated[
        Path, typer.Argument(help="A folder with images/, boxes/ and, for masks, polygons/, in YOLO's format.")
    ],
    model: Annotated[str, arg.of_input(help=f"{NAMES}.")],
    attack: Annotated[
        str, arg.of_attack(help="Names, separated by commas, as for spgd evaluate.")
    ] = "spgd-unprojected,saif-published,sparse-rs",
    budget: Annotated[
        list[str] | None,
        arg.of_budget(help="PATTERN@K; repeat it for several. Default: the four budgets of the paper."),
    ] = None,
    size: Annotated[
        int, arg.of_input(min=1, help="Images are letterboxed to size x size; the padding is not attacked.")
    ] = 640,
    n: Annotated[int | None, arg.of_input("-n", min=1, help="Number of images.")] = None,
    steps: arg.Steps = 100,
    queries: arg.Queries = 200,
    batch_size: Annotated[
        int | None, arg.of_performance(min=1, help="Images per batch. Default: 4, or 16 on a GPU.")
    ] = None,
    seed: arg.Seed = 0,
    pictures: Annotated[
        int, arg.of_output(min=0, help="Number of images to draw, before and after, for each row of the table.")
    ] = 2,
    out_dir: Annotated[Path, arg.of_output("--out", help="Folder for records and pictures.")] = Path("runs/detect"),
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Attack an object detector by its training loss, and print its mAP before and after."""
    searches, refused = _searches(attack, budget or PAPER, steps, queries)
    atomic.check(out_dir / "detect.json")
    where = device_named(device)
    loaded = load_detector(model, where)
    scenes = read_folder(data, size, n, masks=loaded.masked)
    before = score(loaded.model, loaded.detector, scenes, scenes.x, where)
    record: dict[str, Any] = {
        "command": command(),
        "model": loaded.name,
        "data": data.name,
        "images": len(scenes),
        "size": size,
        "seed": seed,
        "torch": torch.__version__,
        "device": str(where),
        "hardware": hardware(where),
        "clean": {"boxes": asdict(before.boxes), "masks": before.masks and asdict(before.masks)},
        "lines": [],
    }
    for written, search in searches:
        with progress(f"{loaded.name}, {search.name}, {written}", quiet) as report:
            line, result, after = examine(
                search, loaded.model, loaded.detector, scenes, where, seed=seed, batch_size=batch_size, progress=report
            )
        record["lines"].append({"words": written, **asdict(line)})
        # written after every line, so that a killed run keeps its finished lines
        atomic.write(out_dir / "detect.json", (json.dumps(record, indent=2) + "\n").encode())
        stem = f"{search.name}-{written.replace(':', '').replace('@', '-')}"
        for i in range(min(pictures, len(scenes))):
            boxes = before.predictions[i], after.predictions[i]
            picture = side_by_side(scenes.x[i], result.x_adv[i], *boxes, loaded.classes)
            save_image(picture, out_dir / "pictures" / f"{stem}-{scenes.names[i]}.png")
    out.print(_table(record, refused))
    out.print(f"records in {out_dir / 'detect.json'}, pictures in {out_dir / 'pictures'}", soft_wrap=True)


def _searches(
    names: str, budgets: Sequence[str], steps: int, queries: int
) -> tuple[list[tuple[str, Attack]], list[str]]:
    """Every attack with every budget, and descriptions of the combinations that are not supported."""
    searches, refused = [], []
    for written in budgets:
        kind, _, count = written.rpartition("@")
        if not kind or not count.isdecimal():
            raise BudgetError(f"budget {written!r}; use PATTERN@K, e.g. pixel@1600 or patch:4@100")
        allowed = Budget(int(count), options.pattern(kind))
        for name in options.named(names):
            try:
                search = options.attack(name, allowed, steps, queries=queries)
                if not isinstance(search, Attack):
                    raise UnsupportedError(
                        f"{name} needs successes, and attacks on detectors have none; use spgd-unprojected"
                    )
                # once and untargeted, because there are no target classes
                searches.append((written, search.once() if isinstance(search, Repeated) else search))
            except UnsupportedError:
                if name not in options.ATTACKS or (len(budgets) == 1 and "," not in names):
                    raise
                refused.append(f"{name} {written}")
    if not searches:
        raise UnsupportedError(
            f"none of these attacks supports its pattern: {', '.join(refused)}; spgd-unprojected supports every pattern"
        )
    return searches, refused


def _table(record: dict[str, Any], refused: Sequence[str]) -> Table:
    side, lines, masked = record["size"], record["lines"], record["clean"]["masks"] is not None
    caption = (
        f"{counted(record['images'], 'images')} of {side}x{side}, seed {record['seed']}, {record['device']}; mAP in %"
    )
    if refused:
        caption += f"; not supported: {', '.join(refused)}"
    table = Table(title=record["model"], caption=caption, title_justify="left", caption_justify="left")
    columns = ["mAP50", "mAP50-95", *(["mask 50", "mask 50-95"] if masked else []), "loss", "pixels", "time"]
    for column in ("attack", "budget", *columns):
        named = column in ("attack", "budget")
        table.add_column(column, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    table.add_row("none", "-", *_percent(record["clean"], masked), f"{lines[0]['clean_loss']:.2f}", "0", "-")
    for line in lines:
        numbers = f"{line['loss']:.2f}", str(line["l0"]), f"{line['seconds']:.0f} s"
        table.add_row(line["attack"], line["words"], *_percent(line, masked), *numbers)
    return table


def _percent(line: dict[str, Any], masked: bool) -> list[str]:
    kinds = ("boxes", "masks") if masked else ("boxes",)
    return [f"{100 * line[kind][name]:.1f}" for kind in kinds for name in ("map50", "map50_95")]
