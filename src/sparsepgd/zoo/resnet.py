"""ResNets after He et al. 2016 ("Deep residual learning") with a 3x3 stem, and a VGG-11, both for 32x32 images.

`resnet18` is the paper's vanilla model on CIFAR, `vgg11` the other model of its transfer table. State-dict keys are
those in common use for CIFAR networks; other layouts are mapped to them in checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # widths; 0 halves the resolution


class BasicBlock(nn.Module):
    """Twice (3x3 convolution, BN), plus the input or its projection, with ReLU after each."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """A 3x3 stem without pooling, four stages, pooling, a linear layer; images (B, 3, H, W) of any size."""

    def __init__(self, blocks: Sequence[int], num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for i, count in enumerate(blocks):
            stage, width = nn.Sequential(), 64 << i
            for j in range(count):
                stage.append(BasicBlock(inputs, width, 2 if i and not j else 1))
                inputs = width
            self.add_module(f"layer{i + 1}", stage)
        self.stages = len(blocks)
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        for i in range(self.stages):
            out = self.get_submodule(f"layer{i + 1}")(out)
        logits: Tensor = self.linear(out.mean((2, 3)))
        return logits


class VGG(nn.Module):
    """3x3 convolutions with BN and ReLU, five halvings, one linear layer: (B, 3, 32, 32)."""

    def __init__(self, widths: Sequence[int], num_classes: int = 10) -> None:
        super().__init__()
        self.features, inputs = nn.Sequential(), 3
        for width in widths:
            if not width:
                self.features.append(nn.MaxPool2d(2))
                continue
            layers = (nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            self.features.extend(layers)
            inputs = width
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def resnet18(num_classes: int = 10) -> ResNet:
    """The paper's vanilla ResNet-18 for 32x32 images: 11.2 million parameters."""
    return ResNet((2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 100) -> ResNet:
    """ResNet-34 with the 3x3 stem, the network of the official ImageNet-100 and GTSRB checkpoints.

    At 224x224 it costs sixteen times as much as torchvision's ResNet-34 with its 7x7 stem and pooling.
    """
    return ResNet((3, 4, 6, 3), num_classes)


def vgg11(num_classes: int = 10) -> VGG:
    """VGG-11 with batch normalisation for 32x32 images: 9.2 million parameters."""
    return VGG(VGG11, num_classes)
