"""Networks that a recipe trains itself: in seconds on scikit-learn's digits, or on given images as in the paper.

A second run loads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import nn

from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.jobs import SHIPPED, Job, Subject
from sparsepgd.sources import load_data
from sparsepgd.sources.data import images_in
from sparsepgd.threat import Budget
from sparsepgd.training import train
from sparsepgd.training.recipes import STARTS
from sparsepgd.training.run_folder import RECORD, WEIGHTS, load
from sparsepgd.zoo import digits_resnet, preact_resnet18, small_preact_resnet

DATA = "digits"
TRAINED = "trained"
ON_DIGITS: dict[str, Any] = {"schedule": "one-cycle", "clip": 1.0, "compile": False, "bf16": False}
ON_DIGITS |= {name: STARTS[DATA][name] for name in ("batch", "lr")}


def digits_vgg() -> nn.Module:
    """A network like VGG for 8x8 grey images: convolutions and pooling without shortcuts or normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "digits-resnet": digits_resnet,
    "digits-vgg": digits_vgg,
    "small_preact_resnet": small_preact_resnet,
    "preact_resnet18": preact_resnet18,
}


@dataclass(frozen=True, eq=False)
class Training:
    """The settings of such a network."""

    network: str  # of NETWORKS
    method: str
    budget: Budget
    seed: int
    options: dict[str, Any]
    data: str = DATA

    def subject(self, job: Job, role: str, name: str) -> Subject:
        """The network with its test images; it is trained when first needed."""
        if self.data == DATA:
            _check_options(job)
        images = load_data(self.data, job.images or job.scale.images, job.size, fewer=True)
        if int(images.y.max()) > 9:
            raise UnsupportedError(f"{self.data} has more than 10 classes; this table is of CIFAR-10: --data cifar10")
        x, y = images.to(job.device)
        per_image = 6 if self.method == "plain" else 2 * (self.options.get("steps", 20) + 1) + 6
        training = job.scale.epochs * self._images(job) * per_image
        return Subject(
            role, name, lambda: self.trained(job), x, y, self.data, stand_in=True, sample=self.fresh, training=training
        )

    def fresh(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return NETWORKS[self.network]()

    def trained(self, job: Job) -> nn.Module:
        """Load the network from its folder if it is finished, otherwise train it or resume its training."""
        folder, model = self._folder(job), self.fresh().to(job.device)
        if (folder / RECORD).is_file() and load(folder).finished:
            model.load_state_dict(load_tensors((folder / WEIGHTS).read_bytes()))
            return model.eval()
        images = load_data(self.data, self._images(job), job.size, "train").to(job.device)
        how = ON_DIGITS if self.data == DATA else {}  # the paper's
        train(
            model, images, self.method, self.budget, job.scale.epochs, out=folder, held_out=0,
            names={"model": self.network, "data": self.data}, seed=self.seed, **how, **self.options,
        )  # fmt: skip
        return model

    def _images(self, job: Job) -> int:
        """The training images: as many as the scale has, or all."""
        available = images_in(self.data, "train")
        return min(job.scale.training_images or available, available)

    def _folder(self, job: Job) -> Path:
        decided = [self.network, self.method, repr(self.budget), self.seed, sorted(self.options.items())]
        decided += [job.scale.epochs, job.scale.training_images]
        if self.data != DATA:
            decided.append(self.data)
        if job.size is not None:
            decided.append(job.size)
        digest = hashlib.sha256(json.dumps(decided, default=str).encode()).hexdigest()[:10]
        return job.out / TRAINED / f"{self.network}-{self.method}-{digest}"


def _check_options(job: Job) -> None:
    """Refuse options that a recipe with its own networks and images cannot use."""
    given = {"--model": bool(job.models), "--data": job.data != SHIPPED, "--size": job.size is not None}
    if unread := [option for option, is_given in given.items() if is_given]:
        raise UnsupportedError(
            f"the networks of this table are trained here, on {DATA}, so {', '.join(unread)} cannot be used; omit it"
        )
