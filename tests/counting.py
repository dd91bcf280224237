"""A model that counts what it is asked: a cost that is the same on every machine."""

from __future__ import annotations

from torch import Tensor, nn


class Counting(nn.Module):
    """Counts the rows it is asked about, and those that a gradient flows back to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked, self.flowed = model, 0, 0
        self.train(model.training)  # some put it back into the mode in which they found it

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        logits: Tensor = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self.backward)
        return logits

    def backward(self, g: Tensor) -> None:
        self.flowed += len(g)
