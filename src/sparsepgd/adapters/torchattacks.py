"""Our attacks as torchattacks attacks: x_adv = attack(images, labels)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.adapters.ours import attacked, unknown
from sparsepgd.errors import UnsupportedError
from sparsepgd.extras import needs
from sparsepgd.problem.oracle import borrowed
from sparsepgd.search.contract import Attacker

with needs("the adapter for torchattacks"):
    from torchattacks.attack import Attack as Base


class TorchAttack(Base):
    """``TorchAttack(model, SparsePGD(Budget(k=20)))``. `set_normalization_used`, targeted modes, `save` and MultiAttack
    work as for every attack of torchattacks.

    Unlike in their attacks, unchanged pixels stay exact under normalisation, the mode of each submodule is restored
    even after an exception, and `save` with save_type="int" rounds to the nearest level.
    """

    def __init__(self, model: nn.Module, attack: Attacker, seed: int = 0) -> None:
        super().__init__(attack.name, model)
        self.search, self.seed = attack, seed
        self.supported_mode = ["default", "targeted"]

    def __call__(self, inputs: Tensor, labels: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        if labels is None or args or kwargs:
            raise UnsupportedError("expected attack(images, labels) and nothing else")
        x, labels = inputs.detach().to(self.device), labels.detach().to(self.device)
        target = self.get_target_label(x, labels) if self.targeted else None
        y = labels if target is None else unknown(target)
        maps = {"unit": self.inverse_normalize, "back": self.normalize} if self._normalization_applied else {}
        return attacked(self.search, self.model, x, y, target=target, seed=self.seed, **maps)

    forward = __call__

    @torch.no_grad()
    def get_output_with_eval_nograd(self, inputs: Tensor) -> Tensor:
        with borrowed(self.model, inputs.device):
            return self.get_logits(inputs)  # type: ignore[no-any-return]

    def set_model_training_mode(self, *modes: bool, **named: bool) -> None:
        if any(modes) or any(named.values()):
            raise UnsupportedError("the model is always attacked in evaluation mode; do not set a training mode")

    @staticmethod
    def to_type(inputs: Tensor, type: str) -> Tensor:
        if type == "int" and inputs.is_floating_point():
            return (inputs * 255).round().to(torch.uint8)
        return Base.to_type(inputs, type)  # type: ignore[no-any-return]
