"""PGD_0: gradient ascent, then projection on the budget (Croce and Hein, Sparse and Imperceivable Attacks, 2019)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from sparsepgd.baselines.restarts import Repeated
from sparsepgd.problem.checks import count, positive
from sparsepgd.problem.oracle import Evaluation
from sparsepgd.search.loop import Images
from sparsepgd.search.noise import Noise, Stream
from sparsepgd.search.registry import registered
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.threat import Columns, Features, Frame, Pattern, Pixels, Rows, Threat


@dataclass(frozen=True, eq=False)
class State:
    """delta = d * E(v), the projection of the last step."""

    d: Tensor  # (B, C, H, W), inside the box, zero off the chosen groups
    v: Tensor  # (B, *grid), binary, exactly k ones


@registered("PGD0")
@dataclass(frozen=True, eq=False)
class PGD0(Repeated, Stepwise[State]):
    """White box. Steps of ``eta`` along the gradient divided by its l1 norm; every evaluated point is a projection.

    The projection is exact if groups do not overlap: pixels, features, rows, columns and frames are supported.
    The defaults are those of the sPGD paper: 5 restarts, untargeted and towards 9 classes, 300 steps each.
    `perturb`, for training, makes one untargeted attempt.
    """

    name: ClassVar[str] = "pgd0"
    patterns: ClassVar[tuple[type[Pattern], ...]] = (Pixels, Features, Rows, Columns, Frame)
    points_besides: ClassVar[int] = 1
    quick_settings: ClassVar[dict[str, Any]] = {"steps": 40, "restarts": 1, "targets": 0}

    steps: int = count(300)
    _: KW_ONLY
    eta: float = positive(120_000 / 255)
    restarts: int = count(5)
    targets: int = 9

    @property
    def evaluations(self) -> int:
        return self.attempts * (self.steps + 1)  # the random start is evaluated, too

    def for_call(self, noise: Noise) -> Self:
        return self.once()

    def start(self, threat: Threat, images: Images, noise: Noise) -> State:
        low, high = (images.low - images.x).float(), (images.high - images.x).float()
        u = noise.uniform(Stream.MAGNITUDE, images.index, 0, threat.shape)
        return _project(low + u * (high - low), threat, images)

    def propose(self, threat: Threat, images: Images, state: State) -> Tensor:
        return images.render(state.d, threat.expand(state.v), self.quantize)

    def update(
        self, threat: Threat, images: Images, state: State, seen: Evaluation, step: Tensor, noise: Noise
    ) -> State:
        """The noise only breaks ties between entries whose gradient is zero."""
        assert seen.gradient is not None
        g = seen.gradient.to(state.d.dtype)
        g = g / (1e-10 + g.flatten(1).norm(p=1, dim=1).view(-1, 1, 1, 1))
        u = noise.uniform(Stream.MAGNITUDE, images.index, step + 1, threat.shape)
        return _project(state.d + self.eta * g + 1e-12 * (u - 0.5), threat, images)


def _project(d: Tensor, threat: Threat, images: Images) -> State:
    """The nearest point within the budget: the k groups whose clipped values c reduce ||d - c||^2 most."""
    c = images.clip(d)
    gain = threat.gather(c * (2 * d - c))  # d^2 - (d - c)^2, not negative since low <= 0 <= high
    v = threat.top_k(gain, images.usable)
    return State(c * threat.expand(v), v)
