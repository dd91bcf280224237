"""Train a model of the zoo on CIFAR-10, on one GPU.

    train="python recipes/train_bundled.py --data cifar10.npz --out runs/zoo"
    $train --arch small --method plain --epochs 40 --name small-plain
    $train --arch small --method strades --epochs 20 --compile --name small-strades
    $train --arch prn18 --method strades --epochs 24 --compile --name prn18-strades

The npz file holds x_train, y_train, x_test, y_test: uint8 images (N, 32, 32, 3) and labels (N,), which are
`data` and `targets` of torchvision.datasets.CIFAR10 (Krizhevsky 2009). Written are NAME.safetensors, the
averaged weights, and NAME.json, the card with all that was measured.
"""

import argparse
import copy
import hashlib
import inspect
import math
import os
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, pad

from sparsepgd import Budget, SparsePGD
from sparsepgd.runs.identity import hardware
from sparsepgd.zoo import CIFAR10_CLASSES, Card, Figure, load
from sparsepgd.zoo.registry import ARCHITECTURES

ARCHS = {"small": "small_preact_resnet", "prn18": "preact_resnet18"}
METHODS = {
    "plain": "cross-entropy on clean images",
    "sat": "sAT: cross-entropy on images under sPGD",
    "strades": "sTRADES: cross-entropy on clean images + beta * KL(clean || under sPGD)",
    "linf": "cross-entropy on images under l_inf PGD-7 of radius 8/255",
}
MULTI_EPS = 6  # the training adversary has 6 times the pixels of the tested one, the paper's best choice
PAD = 4  # pixels around the image, from which the random crop is taken


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="npz file with CIFAR-10")
    parser.add_argument("--arch", choices=ARCHS, default="small")
    parser.add_argument("--activation", choices=("relu", "softplus"), help="left out: the architecture's own")
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--lr", type=float, help="peak of the one-cycle; left out: plain 0.2, others 0.06")
    parser.add_argument("--k", type=int, default=20, help="pixels of the tested adversary")
    parser.add_argument("--steps", type=int, default=20, help="sPGD steps of the training adversary")
    parser.add_argument("--beta-trades", type=float, default=6.0)
    parser.add_argument("--ema", type=float, default=0.995, help="decay of the weight average, a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--limit", type=int, help="training images, and test images, for a quick try")
    parser.add_argument("--out", type=Path, default=Path("runs/zoo"))
    parser.add_argument("--name", required=True)
    args = parser.parse_args()
    if args.lr is None:
        args.lr = 0.2 if args.method == "plain" else 0.06
    return args


def read(args: argparse.Namespace, device: torch.device) -> dict[str, Tensor]:
    """All of the data on the device, as uint8, so that a batch is one gather."""
    with np.load(args.data) as file:
        data = {name: torch.from_numpy(file[name])[: args.limit].to(device) for name in file.files}
    for part in ("train", "test"):
        data[f"x_{part}"] = data[f"x_{part}"].permute(0, 3, 1, 2)
        data[f"y_{part}"] = data[f"y_{part}"].long()
    data["x_train"] = pad(data["x_train"], (PAD,) * 4)
    if len(data["x_train"]) < args.batch:
        sys.exit(f"--batch {args.batch} with {len(data['x_train'])} training images: use a smaller batch")
    return data


def augmented(padded: Tensor, rows: Tensor) -> Tensor:
    """A random 32x32 crop of each padded image, half of them mirrored: (B, 3, 32, 32) in [0, 1]."""
    count, device = len(rows), padded.device
    top, left = torch.randint(0, 2 * PAD + 1, (2, count, 1, 1, 1), device=device)
    mirrored = torch.rand(count, 1, 1, 1, device=device) < 0.5
    along = torch.arange(32, device=device)
    channel = torch.arange(3, device=device).view(1, 3, 1, 1)
    column = torch.where(mirrored, 31 - along, along) + left
    return padded[rows.view(-1, 1, 1, 1), channel, along.view(1, 1, 32, 1) + top, column].float() / 255


class Mixed(nn.Module):
    """The network in bfloat16 and channels_last on a GPU, in float32 elsewhere; logits are float32."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network = network.to(device, memory_format=torch.channels_last)
        self.kind = device.type

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.kind == "cuda"):
            return self.network(x.contiguous(memory_format=torch.channels_last)).float()


def linf_pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float = 8 / 255, steps: int = 7) -> Tensor:
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    x_adv = x + (2 * torch.rand_like(x) - 1) * eps
    model.eval().requires_grad_(False)
    for _ in range(steps):
        x_adv = x_adv.clamp(low, high).requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(model(x_adv), y), x_adv)
        x_adv = x_adv.detach() + 2 / 255 * g.sign()
    model.train().requires_grad_(True)
    return x_adv.clamp(low, high)


def adversarial(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
    """What the adversary makes of x; it sees the model in evaluation mode, the loss in training mode."""
    if args.method == "plain":
        return x
    if args.method == "linf":
        return linf_pgd(model, x, y)
    attack = SparsePGD(Budget(k=MULTI_EPS * args.k), steps=args.steps, gradient="random", tolerance=10)
    return attack.perturb(model, x, y, seed=step)


def objective(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
    """The loss of a batch and the accuracy on what the adversary made of it: (2,)."""
    x_adv = adversarial(args, model, x, y, step)
    logits = model(x_adv)
    if args.method == "strades":
        clean = model(x)
        kl = kl_div(logits.log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True)
        loss = cross_entropy(clean, y) + args.beta_trades * kl  # KL(clean || adversarial)
    else:
        loss = cross_entropy(logits, y)
    return torch.stack([loss, (logits.argmax(1) == y).float().mean()])


def train(args: argparse.Namespace, network: nn.Module, data: dict[str, Tensor], device: torch.device):
    """Train the network; returns its average and the curves. The host waits for the device once an epoch."""
    model: nn.Module = Mixed(network, device).train()
    if args.compile:
        model = torch.compile(model)
    ema = copy.deepcopy(network).eval()
    states = [one.state_dict().values() for one in (ema, network)]  # batch-norm statistics are averaged too
    slow, fast = ([value for value in state if value.is_floating_point()] for state in states)
    batches = len(data["x_train"]) // args.batch
    optimizer = torch.optim.SGD(network.parameters(), args.lr, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, args.epochs * batches + 1, pct_start=0.25, cycle_momentum=False
    )
    curves: dict[str, list[float]] = {"loss": [], "train_accuracy": [], "lr": [], "seconds": []}
    for epoch in range(1, args.epochs + 1):
        start, total = time.perf_counter(), torch.zeros(2, device=device)
        order = torch.randperm(len(data["x_train"]), device=device)
        for rows in order.split(args.batch)[:batches]:
            step = schedule.last_epoch
            values = objective(args, model, augmented(data["x_train"], rows), data["y_train"][rows], step)
            optimizer.zero_grad()
            values[0].backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            torch._foreach_lerp_(slow, fast, 1 - min(args.ema, (1 + step) / (10 + step)))
            total += values.detach()
        loss, accuracy = (total / batches).tolist()
        row = loss, accuracy, schedule.get_last_lr()[0], time.perf_counter() - start
        for curve, value in zip(curves.values(), row, strict=True):
            curve.append(round(value, 5))
        words = "epoch {}/{}  loss {:.4f}  train accuracy {:.2%}  lr {:.4f}  {:.1f} s"
        print(words.format(epoch, args.epochs, *row), flush=True)
        if not math.isfinite(loss):
            sys.exit(f"the loss is {loss} in epoch {epoch}: use a lower --lr (now {args.lr})")
    return ema, curves


def measure(network: nn.Module, data: dict[str, Tensor], k: int) -> dict[str, object]:
    """Clean accuracy on the whole test set, robust accuracy on its first 1000 images, in float32."""
    torch.backends.cudnn.allow_tf32 = False
    x, y = data["x_test"].float() / 255, data["y_test"]
    with torch.no_grad():
        guesses = torch.cat([network(part).argmax(1) for part in x.split(1000)])
    robust = []
    for gradient in ("unprojected", "projected"):
        attack = SparsePGD(Budget(k=k), steps=100, gradient=gradient)
        result = attack(network, x[:1000], y[:1000])
        accuracy, count = float(result.robust_accuracy), len(result)
        robust.append(Figure(attack.name, accuracy, count, k, {"kind": "Pixels"}, 1.0, attack.steps))
    how = f"float32; clean: {len(x)} test images; robust: the first {min(len(x), 1000)} of them"
    clean = (guesses == y).float().mean().item()
    return {"clean_accuracy": round(clean, 5), "robust": robust, "measured": how}


def command(args: argparse.Namespace) -> str:
    """The command line with every option written out; of paths only the name of the data file."""
    words = ["python", "recipes/train_bundled.py"]
    for key, value in {**vars(args), "data": args.data.name, "out": None}.items():
        if value is not None and value is not False:
            words += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(words)


def write(path: Path, content: bytes) -> None:
    """All of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(content)
    os.replace(part, path)


def main() -> None:
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(args.seed)
    data = read(args, device)
    build = ARCHITECTURES[ARCHS[args.arch]]
    options = {name: option.default for name, option in inspect.signature(build).parameters.items()}
    options["activation"] = args.activation or options["activation"]
    start = time.perf_counter()
    ema, curves = train(args, build(**options), data, device)
    seconds = round(time.perf_counter() - start, 1)
    weights = save({name: value.cpu().contiguous() for name, value in ema.state_dict().items()})
    write(args.out / f"{args.name}.safetensors", weights)
    count = sum(p.numel() for p in ema.parameters())
    card = Card(
        name=args.name,
        description=f"PreActResNet of {count:,} parameters for CIFAR-10; {METHODS[args.method]}",
        architecture=ARCHS[args.arch],
        arguments=options,
        parameters=count,
        sha256=hashlib.sha256(weights).hexdigest(),
        method=args.method,
        command=command(args),
        seed=args.seed,
        epochs=args.epochs,
        hardware=hardware(device),
        torch_version=torch.__version__,
        training_seconds=seconds,
        classes=list(CIFAR10_CLASSES),
        curves=curves,
        **measure(ema, data, args.k),
    )
    write(args.out / f"{args.name}.json", card.to_json().encode())
    load(args.name, args.out)  # what was written can be read
    print(f"{args.name}: clean {card.clean_accuracy:.2%}, {card.robust}, {card.training_seconds} s of training")


if __name__ == "__main__":
    main()
