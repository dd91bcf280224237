"""Pre-activation ResNets for 32x32 images (He et al. 2016, "Identity mappings in deep residual networks").

`preact_resnet18` is the network of the paper's CIFAR experiments; its state-dict keys are those in
common use for this architecture, so that published checkpoints load. `small_preact_resnet` is for CPUs, and
`digits_resnet` for the 8x8 grey images of scikit-learn.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sparsepgd.errors import ShapeError, UnsupportedError, counted

Activation = Literal["relu", "softplus"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "softplus": nn.Softplus}

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class PreActBlock(nn.Module):
    """Twice (BN, activation, 3x3 convolution), plus the input or its 1x1 projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.activation = ACTIVATIONS[activation]()
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(self.activation(self.bn2(self.conv1(active))))
        return out + skip


class PreActResNet(nn.Module):
    """A 3x3 stem, one stage for each width (each at half the resolution), pooling, a linear layer.

    Images are (B, channels, H, W) in [0, 1]. `activation` is used inside the blocks; after the last batch
    normalisation it is always ReLU, as in the paper's code. With `mean` and `std` (one value per channel)
    the network normalises its input itself; they are buffers and belong to the state dict. `stem`: the width
    after the first convolution; default: that of the first stage.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        blocks: Sequence[int],
        num_classes: int = 10,
        activation: Activation = "relu",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        channels: int = 3,
        stem: int | None = None,
    ) -> None:
        super().__init__()
        _check(widths, blocks, activation, mean, std)
        self.normalised = mean is not None
        if mean is not None and std is not None:
            self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))
        inputs = stem or widths[0]
        self.conv1 = nn.Conv2d(channels, inputs, 3, padding=1, bias=False)
        self.stages = [f"layer{i + 1}" for i in range(len(widths))]
        for i, stage in enumerate(self.stages):
            layer = nn.Sequential()
            for j in range(blocks[i]):
                layer.append(PreActBlock(inputs, widths[i], 2 if i > 0 and j == 0 else 1, activation))
                inputs = widths[i]
            self.add_module(stage, layer)
        self.bn = nn.BatchNorm2d(inputs)
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.conv1.in_channels:  # (x - mean) / std would broadcast one channel to three
            raise ShapeError(
                f"images of shape {tuple(x.shape)}; this network takes {counted(self.conv1.in_channels, 'channels')}"
            )
        out: Tensor = self.conv1((x - self.mean) / self.std if self.normalised else x)
        for stage in self.stages:
            out = self.get_submodule(stage)(out)
        features = torch.relu(self.bn(out)).mean((2, 3))  # (B, last width)
        logits: Tensor = self.linear(features)
        return logits


def preact_resnet18(
    num_classes: int = 10,
    activation: Activation = "softplus",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> PreActResNet:
    """The paper's PreActResNet-18: 11.2 million parameters, softplus in the blocks, no normalisation."""
    return PreActResNet((64, 128, 256, 512), (2, 2, 2, 2), num_classes, activation, mean, std)


def wide_resnet28_5(num_classes: int = 10, activation: Activation = "relu") -> PreActResNet:
    """WideResNet-28-5 for 32x32 images: 9.1 million parameters, 2.4 times the arithmetic of PreActResNet-18."""
    return PreActResNet((80, 160, 320), (4, 4, 4), num_classes, activation, stem=16)


def wide_resnet28_10(num_classes: int = 10, activation: Activation = "relu") -> PreActResNet:
    """WideResNet-28-10 (Zagoruyko and Komodakis 2016) for 32x32 images: 36.5 million parameters."""
    return PreActResNet((160, 320, 640), (4, 4, 4), num_classes, activation, stem=16)


def small_preact_resnet(
    num_classes: int = 10,
    activation: Activation = "relu",
    mean: Sequence[float] | None = CIFAR10_MEAN,
    std: Sequence[float] | None = CIFAR10_STD,
) -> PreActResNet:
    """A network for CPUs: 372 thousand parameters, 42 million multiply-adds for an image of 32x32.

    The first stage is narrow because its time goes into memory traffic, not into arithmetic; the
    widths are multiples of 16, the number of floats in a vector register.
    """
    return PreActResNet((16, 48, 96), (1, 2, 2), num_classes, activation, mean, std)


def digits_resnet(num_classes: int = 10, activation: Activation = "relu") -> PreActResNet:
    """A network for 8x8 grey images: 20 thousand parameters, trained in seconds."""
    return PreActResNet((16, 32), (1, 1), num_classes, activation, channels=1)


def _check(widths: Sequence[int], blocks: Sequence[int], activation: str, mean: Any, std: Any) -> None:
    if len(widths) != len(blocks) or min([*widths, *blocks], default=0) < 1:
        raise UnsupportedError(
            f"widths={tuple(widths)}, blocks={tuple(blocks)}; expected one positive number of each per stage"
        )
    if activation not in ACTIVATIONS:
        raise UnsupportedError(f"activation={activation!r}; use one of {', '.join(ACTIVATIONS)}")
    if (mean is None) != (std is None):
        raise UnsupportedError(f"mean={mean}, std={std}; give both or neither")
