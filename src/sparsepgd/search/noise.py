"""Random numbers from a counter instead of a state: a value depends on (seed, image, step) and nothing else.

So the draws of an image do not depend on its batch, its place there or the number of workers, and the global
generators do not change. The mixing function is the 64-bit finaliser of
SplitMix64 (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from sparsepgd.errors import UnsupportedError
from sparsepgd.kernels import SPLITMIX, kernels

_GOLDEN, _FIRST, _SECOND = SPLITMIX


class Stream(IntEnum):
    """What a draw is for. Draws for different purposes are independent."""

    MAGNITUDE = 1
    MASK = 2
    COIN = 3
    PROPOSAL = 4  # all draws of a step of random search
    PLACE = 5  # the position of a group
    MOVE = 6  # which group moves, and how far
    VARIATION = 7  # all draws of a random variation of points


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: Tensor, whole: bool = True) -> Tensor:
    """In place, which moves less memory on a CPU. The last step changes only the lower 33 bits, and is left out unless
    the `whole` result is needed."""
    z ^= _shift(z, 30)
    z *= _FIRST
    z ^= _shift(z, 27)
    z *= _SECOND
    if whole:
        z ^= _shift(z, 31)
    return z


def _joined(key: Tensor, part: Tensor | int) -> Tensor:
    by = (part + 1) * _GOLDEN
    return _mix(key + (by if isinstance(by, Tensor) else signed(by)))


@dataclass(frozen=True)
class Noise:
    """The random numbers of one call. A seed on the device, (), may change between replays of a recorded step."""

    seed: int | Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.seed, Tensor):
            object.__setattr__(self, "seed", check_seed(self.seed))

    def again(self, attempt: int) -> Noise:
        """Independent draws for a further attempt of the same call; attempt 0 has those of the call itself."""
        return Noise(self.seed + attempt * _SECOND)

    def _bits(
        self, stream: Stream, index: Tensor, step: Tensor | int, shape: tuple[int, ...], whole: bool = True
    ) -> Tensor:
        """64 random bits for each entry of (B, *shape); of them only the upper 31, unless the `whole` is needed."""
        seed = self.seed
        key = seed.expand_as(index) if isinstance(seed, Tensor) else torch.full_like(index, signed(seed))
        for part in (int(stream), index, step):
            key = _joined(key, part)
        counter = torch.arange(1, math.prod(shape) + 1, device=index.device) * _GOLDEN
        return _mix(key[:, None] + counter, whole).view(-1, *shape)

    def _numbers(
        self, stream: Stream, index: Tensor, step: Tensor | int, shape: tuple[int, ...], left: tuple[int, ...]
    ) -> list[Tensor]:
        """Uniform numbers from the same random bits, shifted left by each of the given numbers of places."""
        found = kernels(index.device)
        if found is None:
            bits = self._bits(stream, index, step, shape, whole=any(left))
            return [_unit(bits << places if places else bits) for places in left]
        seed = self.seed if isinstance(self.seed, Tensor) else signed(self.seed)
        step = step if isinstance(step, Tensor) else torch.full_like(index, step)
        numbers = [found.uniform(seed, int(stream), index, step, places, math.prod(shape)) for places in left]
        return [one.view(-1, *shape) for one in numbers]

    def uniform(self, stream: Stream, index: Tensor, step: Tensor | int, shape: tuple[int, ...]) -> Tensor:
        """(B, *shape), uniform on (0, 1), float32. ``index`` and ``step`` are (B,) int64."""
        return self._numbers(stream, index, step, shape, (0,))[0]

    def normal(self, stream: Stream, index: Tensor, step: Tensor | int, shape: tuple[int, ...]) -> Tensor:
        """(B, *shape), standard normal, float32 (Box and Muller)."""
        one, other = self._numbers(stream, index, step, shape, (0, 23))
        return (-2 * one.log()).sqrt() * (2 * math.pi * other).cos()

    def coin(self) -> bool:
        """A fair coin for the whole call."""
        zero = torch.zeros(1, dtype=torch.int64)
        return bool((self._bits(Stream.COIN, zero, 0, (1,)) & 1).item())


def check_seed(seed: int) -> int:
    """The seed as an int. NumPy integers are accepted."""
    try:
        return operator.index(seed)
    except TypeError:
        raise UnsupportedError(f"seed={seed!r}; expected an integer") from None


def signed(seed: int) -> int:
    """Any integer as a signed one of 64 bits, modulo 2**64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _unit(bits: Tensor) -> Tensor:
    """The upper 23 bits -> (0, 1), both ends excluded: with 24 the largest would round to 1 in float32."""
    return _shift(bits, 41).float().add_(0.5).mul_(2.0**-23)
