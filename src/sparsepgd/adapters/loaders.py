"""Our attacks with the interface of secml-torch: attack(model, loader) -> a loader of adversarial images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from sparsepgd.errors import SourceError
from sparsepgd.problem import Result
from sparsepgd.problem.shapes import View
from sparsepgd.search.contract import Attacker

Batches = Iterable[tuple[Tensor, Tensor]]  # a DataLoader of (images, labels), or a list of them


@dataclass(frozen=True, eq=False)
class OnLoader:
    """``OnLoader(SparsePGD(budget))(model, loader)`` -> a DataLoader of (x_adv, y), in the order of the images.

    The random numbers of an image depend on its position in the data set, not on the batch size of the loader.
    ``options`` are passed to the attack: batch_size, logits, ...
    """

    attack: Attacker
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, model: Any, loader: Batches) -> DataLoader[tuple[Tensor, ...]]:
        x_adv, y = zip(*((result.x_adv, y) for result, y in self.results(model, loader)), strict=True)
        size = getattr(loader, "batch_size", None) or len(x_adv[0])
        return DataLoader(TensorDataset(torch.cat(x_adv), torch.cat(y)), batch_size=size)

    def results(self, model: Any, loader: Batches) -> Iterator[tuple[Result, Tensor]]:
        """The verified result of each batch, with its labels, as soon as it is finished."""
        seen, scores = 0, getattr(model, "decision_function", None)
        if scores is not None:  # secml-torch hides a module and its preprocessing behind a classifier with scores
            model = View(scores, getattr(model, "model", None))
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise SourceError(
                    f"the loader yields batches of type {type(batch).__name__}; expected pairs (images, labels)"
                )
            x, y = batch
            index = torch.arange(seen, seen + len(x))
            seen += len(x)
            yield self.attack(model, x, y, seed=self.seed, index=index, **dict(self.options)), y
        if not seen:
            raise SourceError("the loader is empty; it must yield at least one batch (images, labels)")
