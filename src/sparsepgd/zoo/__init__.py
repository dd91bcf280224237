"""Networks, the shipped models with their cards, and the bundled images."""

from sparsepgd.zoo.networks import (
    PreActResNet,
    digits_resnet,
    preact_resnet18,
    small_preact_resnet,
    wide_resnet28_5,
    wide_resnet28_10,
)
from sparsepgd.zoo.places import FULL_SIZE, Place
from sparsepgd.zoo.registry import (
    ALL_RUNS,
    CIFAR10_CLASSES,
    Card,
    Figure,
    bundled_images,
    bundled_names,
    card,
    known,
    load,
    names,
    where,
)
from sparsepgd.zoo.resnet import ResNet, resnet18, resnet34, vgg11

__all__ = [
    "ALL_RUNS",
    "CIFAR10_CLASSES",
    "FULL_SIZE",
    "Card",
    "Figure",
    "Place",
    "PreActResNet",
    "ResNet",
    "bundled_images",
    "bundled_names",
    "card",
    "digits_resnet",
    "known",
    "load",
    "names",
    "preact_resnet18",
    "resnet18",
    "resnet34",
    "small_preact_resnet",
    "vgg11",
    "where",
    "wide_resnet28_5",
    "wide_resnet28_10",
]
