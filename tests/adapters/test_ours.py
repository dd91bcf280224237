"""What all adapters of our attacks share."""

from __future__ import annotations

import torch

from sparsepgd.adapters.ours import attacked
from support.packages import changed, predictions, problem, spgd


def test_round_off_on_the_way_to_0_and_1_is_no_error() -> None:
    """An offset of 100 costs some 1e-5 of precision, so that black and white come out beyond 0 and 1."""
    model, x, _ = problem()
    x[:, :, 0, 0], x[:, :, 0, 1] = 0, 1
    far = (x - 100) * torch.tensor(1 / 3)

    def back(point: torch.Tensor) -> torch.Tensor:
        return (point - 100) / 3

    def unit(values: torch.Tensor) -> torch.Tensor:
        return values * 3 + 100

    assert float(unit(far).min()) < -1e-6 or float(unit(far).max()) > 1 + 1e-6
    y = predictions(model, unit(far).clamp(0, 1))
    x_adv = attacked(spgd(), lambda values: model(unit(values)), far, y, unit=unit, back=back)
    assert 1 <= int(changed(far, x_adv).max()) <= 12
