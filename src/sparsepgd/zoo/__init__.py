"""Networks, the shipped models with their cards, and the bundled images."""

from sparsepgd.zoo.networks import (
    PreActResNet,
    digits_resnet,
    preact_resnet18,
    small_preact_resnet,
    wide_resnet28_10,
)
from sparsepgd.zoo.registry import CIFAR10_CLASSES, Card, bundled_images, card, load, names
from sparsepgd.zoo.resnet import ResNet, resnet18, resnet34, vgg11

__all__ = [
    "CIFAR10_CLASSES",
    "Card",
    "PreActResNet",
    "ResNet",
    "bundled_images",
    "card",
    "digits_resnet",
    "load",
    "names",
    "preact_resnet18",
    "resnet18",
    "resnet34",
    "small_preact_resnet",
    "vgg11",
    "wide_resnet28_10",
]
