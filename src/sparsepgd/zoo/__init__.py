"""Networks, the shipped models with their cards, and the bundled images."""

from sparsepgd.zoo.networks import PreActResNet, preact_resnet18, small_preact_resnet
from sparsepgd.zoo.registry import CIFAR10_CLASSES, Card, bundled_images, card, load, names

__all__ = [
    "CIFAR10_CLASSES",
    "Card",
    "PreActResNet",
    "bundled_images",
    "card",
    "load",
    "names",
    "preact_resnet18",
    "small_preact_resnet",
]
