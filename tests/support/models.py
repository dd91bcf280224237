"""Small models with known best perturbations, with counters or with limits, and images for them."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsepgd.problem import rows


class Linear(nn.Module):
    """Two classes; z_1 - z_0 = <weight, x> + bias. With y = 0 the best perturbation is known in closed form."""

    def __init__(self, weight: Tensor, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(torch.tensor(bias, dtype=weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weight).flatten(1).sum(1) + self.bias
        return torch.stack([torch.zeros_like(score), score], 1)


class SmallConvNet(nn.Module):
    """A convolutional network with BatchNorm, deterministic weights and confident enough to be attacked."""

    def __init__(self, channels: int = 3, classes: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, classes),
        )
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Dial(nn.Module):
    """Three classes; the first value of an image, 0 to 3 tenths, selects the logits. With label 0:

    0: class 0; 1: barely class 1, a success with a small cross-entropy; 2: barely class 0, a failure with a larger one;
    3: class 1, a success with the largest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers = nn.Parameter(torch.tensor([[3.0, 0, 0], [0, 0.1, -9], [0.1, 0, 0], [0, 2, -9]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.answers[(10 * x[:, 0, 0, 0]).round().long()]


class Tight(nn.Module):
    """A network on a device with little memory; it counts how often the memory did not suffice."""

    def __init__(self, room: int, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.room, self.refused = net or SmallConvNet(dtype=torch.float64), room, 0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.room:
            self.refused += 1
            raise torch.OutOfMemoryError("no room")
        out: Tensor = self.net(x)
        return out


class Counting(nn.Module):
    """Counts the rows in forward and in backward passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked, self.flowed = model, 0, 0
        self.train(model.training)  # some callers restore the mode in which they found it

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self.backward)
        return logits

    def backward(self, g: Tensor) -> None:
        self.flowed += len(g)


class NoLook(TorchDispatchMode):
    """Forbids every operation for whose result, or its shape, the host would have to wait on a GPU."""

    def __enter__(self) -> Self:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(rows, "waits_for_host", lambda device: True)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.patch.undo()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "lift_fresh")
        if name in ("index", "index_put", "index_put_"):
            assert all(one is None or one.dtype != torch.bool for one in args[1])
        return func(*args, **(kwargs or {}))


class Moved(TorchDispatchMode):
    """Counts the bytes that operations read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.bytes += sum(one.nbytes for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor))
        return result


def images(count: int, channels: int = 3, size: int = 12, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random images on the 8-bit grid."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 256, (count, channels, size, size), generator=generator)
    return levels.to(dtype) / 255


def labelled(model: nn.Module, x: Tensor) -> Tensor:
    """The model's own predictions, so that every image is classified correctly."""
    training = model.training
    with torch.no_grad():
        y = model.eval()(x).argmax(1)
    model.train(training)
    return y


class Flattening(nn.Module):
    """Flattens feature maps by `view`, as many networks do; tensors in channels-last layout do not allow it."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3), nn.Linear(400, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).relu().view(len(x), -1))
        return out
