"""A table like the paper's on YOLOv8: mAP of a detector before and after sPGD, SAIF, Sparse-RS and SparseAnneal.

python benchmarks/detection.py --model yolov8n.pt --data coco-val48 --out runs/yolov8n [--device cuda --jobs 5]

Each line of the table is one process and one file (LINE.json, and LINE.npz with the changed pixels); a line whose file
exists is not run again. record.json contains all lines, for benchmarks/results. On a machine without pycocotools mAP
cannot be computed, but the changed pixels are stored: the same command on another machine, without --device, adds the
scores. Requires torch, torchvision, pillow, scipy, ultralytics.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import command, origin
from torch import Tensor

import sparsepgd as sp
from sparsepgd import atomic
from sparsepgd.baselines import SAIF
from sparsepgd.detection import Scenes, Yolo, attack_detector, load_yolo, read_folder
from sparsepgd.detection.study import score
from sparsepgd.errors import MissingPackageError
from sparsepgd.runs.identity import hardware

PIXELS, PATCHES = (1600, 3200), (100, 200)  # of 640x640; 4x4 patches, the same number of pixels


def attacks(options: argparse.Namespace) -> dict[str, sp.Attack | None]:
    """The attack of every line of the table, by name; None stands for the clean images."""
    share = (options.size / 640) ** 2
    pixels = {f"pixels-{k}": sp.Budget(round(k * share)) for k in PIXELS}
    patches = {f"patches-{k}": sp.Budget(round(k * share), sp.Patches(4)) for k in PATCHES}
    found: dict[str, sp.Attack | None] = {"clean": None}
    for name, budget in {**pixels, **patches}.items():
        for gradient in ("unprojected", "projected"):
            found[f"{name}-spgd-{gradient}"] = sp.SparsePGD(budget, options.steps, gradient)
        found[f"{name}-rs"] = sp.SparseRS(budget, options.queries)
        found[f"{name}-anneal"] = sp.SparseAnneal(budget, options.steps)
    for name, budget in pixels.items():
        found[f"{name}-saif"] = SAIF(budget, options.steps, targets=0)
    return found


def run_line(name: str, options: argparse.Namespace) -> None:
    """Attack, unless the changed pixels are stored already; then compute the scores, if that is possible."""
    attack, device = attacks(options)[name], torch.device(options.device)
    model, _ = load_yolo(options.model)
    model, detector = model.to(device), Yolo.of(model.to(device))
    scenes = read_folder(options.data, options.size, options.n, masks=detector.masked)
    line, x_adv = {"line": name, "images": len(scenes), "size": options.size}, scenes.x
    kept = options.out / f"{name}.npz"
    if attack is not None and kept.exists():
        x_adv = applied(scenes.x, kept)
        line |= json.loads((options.out / f"{name}.attack.json").read_text())
    elif attack is not None:
        facts, x_adv = searched(attack, model, detector, scenes, options)
        line |= facts
        save(scenes.x, x_adv, kept)
        write(options.out / f"{name}.attack.json", facts)
    try:
        seen = score(model, detector, scenes, x_adv, device)
    except MissingPackageError as error:
        print(f"{name}: attacked, not scored: {error}", flush=True)
        return
    line |= {"boxes": asdict(seen.boxes), "masks": None if seen.masks is None else asdict(seen.masks)}
    write(options.out / f"{name}.json", line)


def searched(
    attack: sp.Attack, model: Any, detector: Yolo, scenes: Scenes, options: argparse.Namespace
) -> tuple[dict[str, Any], Tensor]:
    start = time.perf_counter()
    result = attack_detector(
        attack, model, scenes.x, scenes.targets, detector, content=scenes.content, batch_size=options.batch_size
    )
    facts = {
        "attack": attack.name,
        "budget": repr(attack.budget),
        "evaluations": attack.evaluations,
        "clean_loss": result.clean_loss.tolist(),
        "loss": result.loss.tolist(),
        "l0": result.l0.tolist(),
        "groups": result.groups.tolist(),
        "seconds": time.perf_counter() - start,
        "torch": torch.__version__,
        "device": hardware(torch.device(options.device)),
    }
    return facts, result.x_adv


def save(x: Tensor, x_adv: Tensor, path: Path) -> None:
    """Save only the changed pixels."""
    image, row, column = (x_adv != x).any(1).nonzero(as_tuple=True)
    values = x_adv[image, :, row, column]
    np.savez_compressed(path, image=image.cpu(), row=row.cpu(), column=column.cpu(), values=values.cpu())


def applied(x: Tensor, path: Path) -> Tensor:
    with np.load(path) as file:
        image, row, column, values = (torch.from_numpy(file[name]) for name in ("image", "row", "column", "values"))
    x_adv = x.clone()
    x_adv[image, :, row, column] = values
    return x_adv


def write(path: Path, content: dict[str, Any]) -> None:
    atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())


def record(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """All finished lines with their origin, for benchmarks/results."""
    files = (options.out / f"{name}.json" for name in names)
    lines = [json.loads(file.read_text()) for file in files if file.exists()]
    scenes = read_folder(options.data, options.size, options.n)
    return {
        "model": options.model.stem,
        "command": command(),
        **origin(options.data.name, scenes.x, torch.arange(len(scenes))),
        "data": options.data.name,
        "images": len(scenes),
        "hardware": hardware(torch.device(options.device)),
        "torch": torch.__version__,
        "seed": 0,
        "steps": options.steps,
        "queries": options.queries,
        "seconds": round(sum(line.get("seconds", 0) for line in lines), 1),
        "lines": lines,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("-n", type=int)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lines", help="names with commas; left out: all")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.line:
        run_line(options.line, options)
        return
    names = options.lines.split(",") if options.lines else list(attacks(options))
    open_lines = [name for name in names if not (options.out / f"{name}.json").exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda name: subprocess.run([sys.executable, *sys.argv, "--line", name]), open_lines))
    for name in names:
        file = options.out / f"{name}.json"
        if file.exists():
            line = json.loads(file.read_text())
            scores = ", ".join(f"{key} {100 * value:.1f}" for key, value in line["boxes"].items())
            print(f"{name:32} {scores}")
    write(options.out / "record.json", record(options, names))
    failed = [name for name, process in zip(open_lines, done, strict=True) if process.returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; run the same again")


if __name__ == "__main__":
    main()
