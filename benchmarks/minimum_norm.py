"""Minimum-norm l0 attacks at equal passes: how few pixels, or features, each needs.

    python benchmarks/minimum_norm.py small-plain prn18-fast-ls -n 500 --passes 1000 --out minimum-norm.json
    python benchmarks/minimum_norm.py preact_resnet18=A.safetensors,B.safetensors --data images.npz --out ...
    python benchmarks/minimum_norm.py --merge first.json second.json --out benchmarks/results/minimum-norm.json
    python benchmarks/minimum_norm.py --table benchmarks/results/minimum-norm.json
    python benchmarks/minimum_norm.py --figure benchmarks/results/minimum-norm.json --out docs/images/minimum-norm.svg

The attacks are those of minimum_norm_attacks.py; what the model is asked is counted around it, outside of them. Every
image they return is put into [0, 1] and judged here, by a forward pass in float32 without TF32; its size is the number
of pixels, or features, that are not bit for bit those of the clean image. An attack that fails is noted and left out.
adv-lib and foolbox are taken from wherever Python finds them.
"""

import argparse
import json
import math
import random
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from minimum_norm_attacks import ATTACKS, PATTERNS, Attack, Task
from minimum_norm_numbers import CUT, WITHIN, Record, finish, merged, rows
from provenance import commit
from safetensors.torch import load_file
from torch import Tensor, nn

from sparsepgd import zoo
from sparsepgd.errors import first_line
from sparsepgd.problem.precision import full_precision
from sparsepgd.runs.identity import digest, hardware, model_digest
from sparsepgd.zoo.registry import ARCHITECTURES

WARM_UP = 16  # images of a first run with a few passes, which is not measured
VERSIONS = ("sparsepgd", "adv_lib", "foolbox", "eagerpy", "numba", "numpy")
MEANT = {
    "pass": "one forward and one backward of an image; a forward alone is half a pass. `passes` of an attack: (images "
    "forward + images backward) / 2 / images, counted around the model, checks of the attack's own included",
    "size": "pixels or features of x_adv that are not bit for bit those of x, if the model is wrong about x_adv, "
    "clamped to [0, 1], in float32 without TF32; null: it is not. An attack that counts features alone is measured in "
    "pixels on the same x_adv",
    "mean": f"of sizes cut at {CUT}, which is also what an image that is not fooled counts for",
    "within": "share of images not fooled within k",
    "optimality": "AttackBench (Cina et al., AAAI 2025, arXiv 2404.19460, equations 4 and 5), by the smallest size of "
    "each image that any attack of the table found; global: the mean over the models",
    "seconds": "of one run after a short one, on the whole device; models run eagerly, in float32 without TF32",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="of the zoo, or ARCH=FILE[,FILE] of safetensors")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--data", type=Path, help="npz with x_test (N, H, W, C) uint8 and y_test; else bundled images")
    parser.add_argument("-n", type=int, default=100, help="images")
    parser.add_argument("--slow-images", type=int, default=30, help="of these, for attacks that work image by image")
    parser.add_argument("--passes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="of this repository, where there is no git")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--figure", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args()
    if not (args.table or (args.out and (args.models or args.merge or args.figure))):
        parser.error("nothing to do: name models, or use --merge, --figure (all with --out) or --table")
    return args


# The measurement


class Counting(nn.Module):
    """The model, with the images counted that pass through it, forward and backward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._count_back)
        return logits

    def _count_back(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def measured(attack: Attack, counts: str, model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Record:
    """One attack on one model; an error is part of the record."""
    if attack.slow:
        x, y = x[: args.slow_images], y[: args.slow_images]
    try:
        attacked(attack, counts, model, x[:WARM_UP], y[:WARM_UP], 2 * WARM_UP, args)
        counting, x_adv, seconds = attacked(attack, counts, model, x, y, args.passes, args)
        found = judged(model, x, y, x_adv, args.batch_size)
    except Exception as error:
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return {"error": f"{type(error).__name__}: {first_line(error)}"}
    forwards, backwards = counting.forwards / len(x), counting.backwards / len(x)
    passes = (forwards + backwards) / 2
    used = {"images": len(x), "forwards": forwards, "backwards": backwards, "passes": passes, "seconds": seconds}
    return {**used, **found}


def attacked(
    attack: Attack, counts: str, model: nn.Module, x: Tensor, y: Tensor, passes: int, args: argparse.Namespace
) -> tuple[Counting, Tensor, float]:
    random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002
    torch.manual_seed(args.seed)
    counting, found = Counting(model), []
    start = clock(x.device)
    for part in batches(len(x), args.batch_size):
        task = Task(counting, x[part].clone(), y[part].clone(), passes, PATTERNS[counts], args.seed)
        found.append(attack.run(task).detach())
    return counting, torch.cat(found), clock(x.device) - start


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def judged(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor, batch_size: int) -> Record:
    """The sizes of what fools the model, in pixels and in features, and how far the images were out of range."""
    if x_adv.shape != x.shape:
        raise ValueError(f"{tuple(x_adv.shape)} for images {tuple(x.shape)}")
    x_adv = torch.where(x_adv.isfinite(), x_adv, x).to(x.dtype)
    beyond = torch.maximum(x_adv - 1, -x_adv).flatten(1).amax(1)
    x_adv = x_adv.clamp(0, 1)
    fooled = said(model, x_adv, batch_size) != y
    changed = x_adv != x
    counted = {"pixels": changed.any(1).flatten(1).sum(1), "features": changed.flatten(1).sum(1)}
    sizes = {
        unit: [size if hit else None for size, hit in zip(size.tolist(), fooled.tolist(), strict=True)]
        for unit, size in counted.items()
    }
    return {
        "out of range": {"images": int((beyond > 0).sum()), "by": float(beyond.amax().clamp(min=0).abs())},
        "sizes": sizes,
    }


@torch.no_grad()
def said(model: nn.Module, x: Tensor, batch_size: int) -> Tensor:
    with full_precision():
        return torch.cat([model(x[part]).argmax(1) for part in batches(len(x), batch_size)])


def batches(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


# The record


def images(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    if args.data is None:
        return zoo.bundled_images(args.n)
    with np.load(args.data) as file:
        x, y = (file[f"{name}_test" if f"{name}_test" in file else name][: args.n] for name in "xy")
    # contiguous: adv-lib projects in place through views, which otherwise are copies
    pixels = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    return pixels.float() / 255, torch.from_numpy(y).long().flatten()


def load(name: str) -> tuple[str, nn.Module]:
    """By name from the zoo, or from pieces of its weights, NAME-0.safetensors or NAME-a.safetensors and so on."""
    if "=" not in name:
        return name, zoo.load(name)
    arch, _, files = name.partition("=")
    paths = [Path(file) for file in files.split(",")]
    model = ARCHITECTURES[arch]()
    state = {key: value for path in paths for key, value in load_file(path).items()}
    model.load_state_dict({key: value.float() if value.is_floating_point() else value for key, value in state.items()})
    return re.sub(r"-(\d+|[a-z])$", "", paths[0].stem), model.eval()


def measure(args: argparse.Namespace) -> None:
    """Writes the record after each run."""
    device, (x, y) = torch.device(args.device), images(args)
    record: Record = {
        "command": command(args),
        "commit": args.commit or commit() or "unknown",
        "device": args.device,
        "hardware": hardware(device),
        "torch": torch.__version__,
        "seed": args.seed,
        "passes": args.passes,
        "batch size": args.batch_size,
        "images": len(x),
        "data": {"name": args.data.name if args.data else "bundled", "sha256": digest(x, y)},
        "meant": MEANT,
        "attacks": {name: {"is": ATTACKS[name].about, "counts": ATTACKS[name].counts} for name in args.attacks},
        "packages": {},
        "models": [],
    }
    x, y = x.to(device), y.to(device)
    for given in args.models:
        name, model = load(given)
        about: Record = {"model": name, "sha256": model_digest(model)}
        model.to(device).requires_grad_(False)
        right = said(model, x, args.batch_size) == y
        about |= {"right": int(right.sum()), "runs": []}
        record["models"].append(about)
        for attack in args.attacks:
            for counts in ATTACKS[attack].counts:
                with full_precision():
                    run = measured(ATTACKS[attack], counts, model, x[right], y[right], args)
                about["runs"].append({"attack": attack, "counts": counts, **run})
                record["packages"] = {name: sys.modules[name].__version__ for name in VERSIONS if name in sys.modules}
                write(args.out, finish(record))
                print(line(name, about["runs"][-1]), flush=True)


def line(model: str, run: Record) -> str:
    head = f"{model}: {run['attack']}, {run['counts']}:"
    if "error" in run:
        return f"{head} {run['error']}"
    found = run["numbers"][run["counts"]]
    return (
        f"{head} median {found['median']}, mean {found['mean']:.1f}, {run['passes']:.1f} passes, {run['seconds']:.1f} s"
    )


def write(file: Path, record: Record) -> None:
    """Lists of numbers on one line."""
    text = json.dumps(record, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r'\[[^][{}"]*\]', lambda found: " ".join(found[0].split()), text) + "\n")


def command(args: argparse.Namespace) -> str:
    """The command line; of files only their names."""
    words = sys.argv[1:]
    for file in (args.data, args.out):
        words = [file.name if file is not None and word == str(file) else word for word in words]
    words = [
        "=".join([arch, ",".join(Path(file).name for file in files.split(","))])
        if word in args.models and files
        else word
        for word, (arch, _, files) in ((word, word.partition("=")) for word in words)
    ]
    return shlex.join(["python", "benchmarks/minimum_norm.py", *words])


# What is shown


def table(record: Record) -> str:
    """Markdown: one table for each model and way of counting, then the global optimality."""
    from sparsepgd.tables import markdown

    parts = []
    for model in record["models"]:
        for counts in PATTERNS:
            title = f"{model['model']}, {counts} ({model['right']} of {record['images']} images right)"
            titles = ["attack", "passes", "median", f"mean (cut at {CUT})", "not fooled"]
            titles += [f"> {k}" for k in WITHIN] + ["optimality", "ms an image"]
            shown = [cells(run, counts, model) for run in rows(model, counts)]
            parts.append(f"**{title}**\n\n{markdown(titles, shown)}")
    means = record["global optimality"]
    names = list(dict.fromkeys(name for counts in PATTERNS for name in means[counts]))
    shown = [[name, *(percent(means[counts].get(name)) for counts in PATTERNS)] for name in names]
    parts.append(f"**Global optimality**\n\n{markdown(['attack', *PATTERNS], shown)}")
    parts.append(
        f"{record['passes']} passes asked for. Not fooled, > k (not fooled within k) and optimality in percent. * "
        f"counts features alone. {record['hardware']}, torch {record['torch']}."
    )
    if errors := [f"- {model['model']}: {run['attack']}: {run['error']}"
                  for model in record["models"] for run in model["runs"] if "error" in run]:  # fmt: skip
        parts.append("\n".join(["Failed:", *dict.fromkeys(errors)]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def cells(run: Record, counts: str, model: Record) -> list[str]:
    name = run["attack"] if counts == run["counts"] else f"{run['attack']} *"
    if "error" in run:
        return [name, "failed", *["-"] * (len(WITHIN) + 5)]
    if run["images"] < model["right"]:
        name += f" ({run['images']} images)"
    found = run["numbers"][counts]
    return [
        name,
        f"{run['passes']:.1f}",
        "-" if found["median"] is None else f"{found['median']:g}",
        f"{found['mean']:.1f}",
        percent(found["not fooled"]),
        *(percent(found["within"][str(k)]) for k in WITHIN),
        percent(found["optimality"]),
        f"{1000 * run['seconds'] / run['images']:.0f}",
    ]


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def figure(record: Record) -> Any:
    """The share of images not fooled within k: a column for each model, a row for each way of counting."""
    from sparsepgd.report.style import colour, dash, figure_style, new_figure

    with figure_style():
        drawn = new_figure(4 * len(record["models"]) + 2.5, 6.5)
        panels = drawn.subplots(len(PATTERNS), len(record["models"]), sharex=True, sharey=True, squeeze=False)
        names = list(ATTACKS)
        for panel_row, counts in zip(panels, PATTERNS, strict=True):
            for panel, model in zip(panel_row, record["models"], strict=True):
                for run in rows(model, counts):
                    if "error" in run:
                        continue
                    sizes = [math.inf if size is None else size for size in run["sizes"][counts]]
                    shares = [100 * sum(size > k for size in sizes) / len(sizes) for k in range(1, CUT + 1)]
                    place = names.index(run["attack"])
                    look_of = {"color": colour(place), "linestyle": dash(place), "label": run["attack"]}
                    panel.plot(range(1, CUT + 1), shares, drawstyle="steps-post", **look_of)
                panel.set(xscale="log", xlim=(1, CUT), ylim=(0, 100))
                panel.set(xlabel=f"k, {counts}", ylabel=f"not fooled within k {counts}, %")
                panel.set_xticks(WITHIN, [str(k) for k in WITHIN])
        for panel, model in zip(panels[0], record["models"], strict=True):
            panel.set_title(model["model"])
        lines = {one.get_label(): one for panel in panels.flat for one in panel.get_lines()}
        drawn.legend(lines.values(), lines.keys(), loc="outside right upper")
    return drawn


def main() -> None:
    args = arguments()
    if args.table:
        print(table(merged(args.table)), end="")
    elif args.merge:
        write(args.out, merged(args.merge))
    elif args.figure:
        from sparsepgd.report.style import svg

        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_bytes(svg(figure(merged(args.figure))))
    else:
        measure(args)


if __name__ == "__main__":
    main()
