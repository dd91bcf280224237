"""Our attacks as ART attacks: x_adv = attack.generate(x=x, y=y, mask=mask), with numpy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sparsepgd.adapters.ours import Range, attacked, unknown
from sparsepgd.errors import UnsupportedError
from sparsepgd.extras import needs
from sparsepgd.problem.shapes import View
from sparsepgd.search.contract import Attacker
from sparsepgd.threat import Budget

with needs("the adapter for art"):
    from art.attacks.attack import EvasionAttack
    from art.estimators.classification import PyTorchClassifier
    from art.estimators.classification.classifier import ClassifierMixin
    from art.estimators.estimator import BaseEstimator

Array = Any  # numpy arrays; ART does not specify their dtype


class ARTAttack(EvasionAttack):
    """``ARTAttack(classifier, SparsePGD(Budget(k=20)))``. The images may have any clip values of the classifier.

    Gradients are available for a `PyTorchClassifier`; for every other classifier use a black-box attack such as
    `SparseRS`. As with ART's own attacks, y holds class numbers or one-hot rows, true labels or, with `targeted`,
    targets; default: the predictions of the classifier. `mask`: 0 where nothing may change.
    """

    attack_params: ClassVar[list[str]] = [*EvasionAttack.attack_params, "attack", "seed", "targeted", "batch_size"]
    _estimator_requirements = (BaseEstimator, ClassifierMixin)

    def __init__(
        self, estimator: Any, attack: Attacker, targeted: bool = False, batch_size: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(estimator=estimator)
        self.attack, self.batch_size, self.seed = attack, batch_size, seed
        self._targeted = targeted

    def generate(self, x: Array, y: Array | None = None, mask: Array | None = None, **kwargs: Any) -> Array:
        if kwargs:
            raise UnsupportedError(f"generate got {', '.join(kwargs)}; it takes x, y and mask")
        images = self._torch(x)
        labels = torch.from_numpy(self._labels(x, y))
        options: dict[str, Any] = {"seed": self.seed, "batch_size": self.batch_size}
        options |= _range(self.estimator.clip_values).maps
        true, options["target"] = (unknown(labels), labels) if self.targeted else (labels, None)
        search = self.attack
        if mask is not None:
            search = _masked(search, self._torch(np.broadcast_to(np.asarray(mask) != 0, x.shape)))
        found = self._numpy(attacked(search, self._model(), images, true, **options))
        whole: Array = np.where(found != self._numpy(images), found, x)
        return whole.astype(x.dtype if np.issubdtype(x.dtype, np.floating) else found.dtype, copy=False)

    def _model(self) -> View:
        estimator = self.estimator
        if isinstance(estimator, PyTorchClassifier) and estimator.all_framework_preprocessing:
            return View(self._logits, estimator.model)
        return View(self._predictions, None)

    def _logits(self, x: Tensor) -> Any:
        for step in self.estimator.preprocessing_operations:
            x = step.forward(x)[0] if step.apply_predict else x
        return self.estimator.model(x)

    def _predictions(self, x: Tensor) -> Tensor:
        answers = self.estimator.predict(self._numpy(x.detach()))
        return torch.from_numpy(np.asarray(answers)).to(x)

    def _labels(self, x: Array, y: Array | None) -> Array:
        """(B,) class numbers, int64."""
        if y is None and self.targeted:
            raise UnsupportedError("targeted=True needs targets; pass them as labels: generate(x, y)")
        if y is None:
            y = self.estimator.predict(x)
        return np.asarray(y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(-1)).astype(np.int64)

    def _torch(self, x: Array) -> Tensor:
        """(B, C, H, W); floating point becomes float32, which ART passes to its models."""
        x = x if getattr(self.estimator, "channels_first", True) else x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x if x.dtype == bool else x.astype(np.float32)))

    def _numpy(self, x: Tensor) -> Array:
        array = x.cpu().numpy()
        return array if getattr(self.estimator, "channels_first", True) else array.transpose(0, 2, 3, 1)


def _range(clip_values: Any) -> Range:
    if clip_values is None:
        return Range()
    low, high = (np.unique(np.asarray(value, dtype=np.float64)) for value in clip_values)
    if len(low) > 1 or len(high) > 1:
        raise UnsupportedError("clip_values differ between entries; use one pair for all, e.g. (0, 1)")
    return Range(float(low[0]), float(high[0]))


def _masked(attack: Attacker, mask: Tensor) -> Attacker:
    """The attack restricted to where the mask (B, C, H, W) is set."""
    if bool((mask != mask[:, :1]).any()):
        raise UnsupportedError("the mask differs between the channels of a pixel; give one value per pixel")

    def within(budget: Budget) -> Budget:
        allowed = mask[:, 0] if budget.allowed is None else mask[:, 0] & budget.allowed.cpu()
        return dataclasses.replace(budget, allowed=allowed)

    return attack.with_budget(within)
