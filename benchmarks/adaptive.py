"""An adaptive attack on the networks with a median filter: another gradient, the same logits.

    spgd evaluate --model benchmarks/adaptive.py:averaged --attack anneal --steps 6000 --data npz:cifar10.npz

The median passes its gradient to one pixel of nine. Here the backward pass is that of the mean instead (backward pass
differentiable approximation, Athalye et al. 2018), so that the gradient reaches all nine.
"""

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsepgd import zoo
from sparsepgd.zoo.networks import PreActResNet, median_filter

NAME = os.environ.get("SPARSEPGD_ADAPTIVE", "prn18-median")


class Straight(torch.autograd.Function):
    """The median in the forward pass, the mean in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return median_filter(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return F.avg_pool2d(gradient, 3, 1, 1)


class Averaged(nn.Module):
    """The network with its own logits, but with the gradients of a mean filter instead of the median filter."""

    def __init__(self, network: PreActResNet) -> None:
        super().__init__()
        assert network.filtered, "a network without a median filter"
        self.network = network
        self.network.filtered = False

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(Straight.apply(x))  # type: ignore[no-untyped-call]
        return logits


def averaged() -> nn.Module:
    network = zoo.load(NAME)
    assert isinstance(network, PreActResNet)
    return Averaged(network).eval()
