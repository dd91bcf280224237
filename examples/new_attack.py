"""A new attack in one file: each step changes the k most promising groups along the sign of the gradient."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import sparsepgd as sp
from sparsepgd.problem.checks import check_counts
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise
from sparsepgd.search.registry import registered
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.threat import Threat


@dataclass(frozen=True, eq=False)
class State:
    delta: Tensor  # (B, C, H, W), a perturbation of all entries
    v: Tensor  # (B, *grid), the chosen groups, 0 or 1


@registered()
@dataclass(frozen=True, eq=False)
class Promising(Stepwise[State]):
    """White box, for every budget."""

    name: ClassVar[str] = "promising"

    steps: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(steps=self.steps)

    @property
    def evaluations(self) -> int:
        return self.steps

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        delta = torch.zeros_like(images.x, dtype=torch.float32)
        return State(delta, delta.new_zeros(len(delta), *threat.grid))

    def propose(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.delta, threat.expand(state.v), self.quantize)

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        assert seen.gradient is not None
        g = seen.gradient.float()
        delta = images.clip(state.delta + 0.25 * self.budget.eps * g.sign())
        return State(delta, threat.top_k(threat.gather((g * delta).clamp(min=0)), images.usable))


if __name__ == "__main__":
    x, y = sp.zoo.bundled_images(32)
    print(Promising(sp.Budget(k=20))(sp.zoo.load("small-plain"), x, y))
