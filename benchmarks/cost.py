"""How the cost of an evaluation grows, measured on one CPU core: python benchmarks/cost.py run

It writes benchmarks/results/cost-cpu.json. Seconds are processor time, which other work on the machine does not affect.
"""

import argparse
import hashlib
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from provenance import head, write_record
from records import RESULTS
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.evaluation import QUERIES, STEPS
from sparsepgd.runs import folders
from sparsepgd.sources.pictures import Framing, load_image
from sparsepgd.zoo.networks import preact_resnet18, small_preact_resnet

Row = dict[str, Any]
GROWTH = {"images": (100, 1000, 10_000, 100_000), "k": (1, 10, 100, 500), "image side": (32, 64, 224)}
GROWTH["classes"] = (10, 100, 1000)
WORKERS = (1, 2, 4, 8, 16)
SHORT = 4  # steps of the timed attacks
KEPT, KEPT_SIDE = (600, 2400), 128  # images of a run with a folder, and their side
LAUNCH = ["-m", "torch.distributed.run"]
EVALUATE = shlex.split("-m sparsepgd evaluate --model small-strades -n 80 --steps 40 --queries 40 --chunk 5 -q")


def tiny() -> nn.Module:
    """A model so small that 100,000 images take minutes."""
    parts = (nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(*parts)


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def grown(what: str, value: int) -> Row:
    """Time and memory of sPGD without early stop, with one quantity changed."""
    size = {"images": 20, "k": 20, "image side": 32, "classes": 10} | {what: value}
    torch.manual_seed(0)
    model = (tiny() if what == "images" else small_preact_resnet(size["classes"])).eval()
    attack = sp.SparsePGD(sp.Budget(k=size["k"]), SHORT, early_stop=False)
    few = zoo.bundled_images()[0]
    attack(model, few[:20], model(few[:20]).argmax(1))  # a warm-up
    before = peak()
    x = few.repeat(-(-size["images"] // len(few)), 1, 1, 1)[: size["images"]]
    if what == "image side":
        x = F.interpolate(x, size["image side"])
    with torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(100)])
    begun = time.process_time()
    result = attack(model, x, y)
    seconds = time.process_time() - begun
    us = 1e6 * seconds / int(result.forwards.sum())
    return {"what": what, "value": value, "seconds": seconds, "us": us, "memory": peak() - before}


def kept(images: int) -> Row:
    """The memory of an evaluation with a folder, on images so large that the rows of its record are negligible."""
    torch.manual_seed(0)
    model, few = tiny().eval(), F.interpolate(zoo.bundled_images(20)[0], KEPT_SIDE)
    before = peak()
    x = few.repeat(-(-images // len(few)), 1, 1, 1)[:images]
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(100)])
        sp.evaluate(model, x, y, sp.Budget(k=20), attack="sparse-rs", queries=2, chunk=200, out=out)
    return {"what": "images of a run", "side": KEPT_SIDE, "value": images, "memory": peak() - before}


def passes(name: str, images: int) -> Row:
    """The passes of saa+ of the default length."""
    model, (x, y) = sp.load_model(f"zoo:{name}").model, (part[:images] for part in zoo.bundled_images())
    attack = sp.SparseAutoAttack(sp.Budget(k=20), STEPS, QUERIES, version="standard")
    result = attack(model, x, y)
    forwards, backwards = (sum(work.tolist()) for work in (result.forwards, result.backwards))
    left = attack.history(result)
    return {"model": name, "images": len(x), "left": left, "forwards": forwards, "backwards": backwards}


def together(workers: int) -> tuple[Row, str]:
    """`spgd evaluate` by several workers: the processor time of all, and the checksum of the rows."""
    with tempfile.TemporaryDirectory() as out:
        words = [*LAUNCH, "--nproc-per-node", str(workers), *EVALUATE]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words, "--out", out], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = "".join(row.model_dump_json() for row in folders.load(out).rows)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"what": "workers", "value": workers, "seconds": seconds}, hashlib.sha256(rows.encode()).hexdigest()


def pictures(count: int) -> Row:
    """The time to read JPEG files of the size of ImageNet's."""
    noise = torch.randn(count, 3, 375, 500, generator=torch.Generator().manual_seed(0))
    x = F.interpolate(zoo.bundled_images()[0][:count], (375, 500), mode="bicubic") + 0.06 * noise
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.jpg" for i in range(count)]
        for file, one in zip(files, (255 * x.clamp(0, 1)).byte().permute(0, 2, 3, 1), strict=True):
            Image.fromarray(one.numpy()).save(file, quality=90)
        begun = time.process_time()
        for file in files:
            load_image(str(file), Framing(224, 256, "bilinear"))
        seconds, size = time.process_time() - begun, sum(file.stat().st_size for file in files)
    return {"what": "pictures", "value": count, "seconds": seconds, "memory": size}


def counted(name: str, make: Callable[[], nn.Module], side: int) -> Row:
    """The multiply-adds of a forward pass, and the number of outputs of convolutions and linear layers."""
    found = {"multiply-adds": 0, "outputs": 0}

    def add(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        found["multiply-adds"] += output.numel() * weight[0].numel()
        found["outputs"] += output.numel()

    with torch.device("meta"):
        model = make().eval()
        for part in model.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                part.register_forward_hook(add)
        model(torch.empty(1, 3, side, side))
    return {"network": name, "side": side, **found}


def alone(work: Callable[..., Any], *args: object) -> Any:
    """Run a function in a process of its own, so that the peak of memory is that of this function."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(work, *args).result()
    print(found, flush=True)
    return found


def run(args: argparse.Namespace) -> None:
    from torchvision.models import resnet50

    begun = time.perf_counter()
    networks = [counted("PreActResNet-18", preact_resnet18, 32), counted("ResNet-50", resnet50, 224)]
    rows = [alone(grown, what, value) for what, values in GROWTH.items() for value in values]
    rows += [alone(kept, images) for images in KEPT] + [alone(pictures, 50)]
    shared = [alone(together, workers) for workers in WORKERS]
    if any(found != shared[0][1] for _, found in shared):
        sys.exit("the results of several workers differ from those of one")
    rows += [row for row, _ in shared]
    record = {
        **head(args, *zoo.bundled_images()),
        "note": f"one thread; workers: {shlex.join(['python', *LAUNCH, *EVALUATE])}",
        "seed": 0,
        "steps": SHORT,
        "rows": rows,
        "passes": [alone(passes, name, 200) for name in ("small-plain", "small-strades")],
        "networks": networks,
    }
    record["seconds"] = round(time.perf_counter() - begun, 1)  # wall-clock time
    write_record(args.out, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("run",))
    parser.set_defaults(data=None, data_name=None, device="cpu", commit=None, out=RESULTS / "cost-cpu.json")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
