"""Models of all kinds: requirements on their outputs, and their restoration."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.errors import (
    DeviceError,
    LogitsShapeError,
    ModelError,
    NoGradientError,
    NonFiniteLogitsError,
    ProbabilitiesWarning,
)
from sparsepgd.search import registry
from support.models import SmallConvNet, images, labelled

MODEL = SmallConvNet().eval()
X = images(3)
Y = labelled(MODEL, X)
ATTACK = sp.SparsePGD(sp.Budget(k=3), steps=4)


@pytest.mark.parametrize(
    ("wrap", "extract"),
    [
        (lambda z: (z, None), lambda out: out[0]),
        (lambda z: {"logits": z}, lambda out: out["logits"]),
        (lambda z: SimpleNamespace(logits=z), lambda out: out.logits),
        (lambda z: z[:, :, None, None], lambda out: out.flatten(1)),
    ],
    ids=["tuple", "dict", "object", "reshape"],
)
def test_logits_are_extracted_from_any_output(wrap: Any, extract: Any) -> None:
    result = ATTACK(lambda x: wrap(MODEL(x)), X, Y, logits=extract)
    assert torch.equal(result.x_adv, ATTACK(MODEL, X, Y).x_adv)


@pytest.mark.parametrize("attack", [ATTACK, sp.SparseRS(sp.Budget(k=3), queries=20)], ids=lambda attack: attack.name)
def test_a_model_may_change_its_input_in_place(attack: Any) -> None:
    before = X.clone()
    result = attack(lambda x: MODEL(x.sub_(0.1).relu_()), X, Y)
    assert torch.equal(X, before)
    expected = attack(lambda x: MODEL((x - 0.1).relu()), X, Y)
    assert torch.equal(result.x_adv, expected.x_adv)
    assert torch.equal(result.fooled, expected.fooled)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_frozen_script_is_attacked_like_its_model() -> None:
    frozen = torch.jit.freeze(torch.jit.script(MODEL))
    torch.testing.assert_close(ATTACK(frozen, X, Y).x_adv, ATTACK(MODEL, X, Y).x_adv)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda x: (MODEL(x), 1),
            "a tuple of 2, not a tensor of logits; pass logits=.*, or change the model to return them",
        ),
        (lambda x: {"out": MODEL(x)}, r"a dict with keys \['out'\]"),
        (lambda x: SimpleNamespace(logits=MODEL(x)), "a SimpleNamespace"),
        (lambda x: MODEL(x)[:, :, None], r"\(3, 5, 1\) for 3 images; expected \(3, classes\)"),
        (lambda x: MODEL(x)[:1], r"\(1, 5\) for 3 images"),
        (lambda x: MODEL(x)[:, :1], r"\(3, 1\) for 3 images"),
        (lambda x: MODEL(x)[:, 0], r"\(3,\) for 3 images"),
    ],
)
def test_outputs_that_are_not_logits_are_refused(model: Any, message: str) -> None:
    with pytest.raises(LogitsShapeError, match=message):
        ATTACK(model, X, Y)


def test_non_finite_logits_on_clean_images_are_an_error() -> None:
    with pytest.raises(NonFiniteLogitsError, match=r"the logit of clean image 1 for class \d is (nan|-?inf)"):
        ATTACK(lambda x: MODEL(x) * torch.tensor([[1.0], [torch.nan], [1.0]]), X, Y)


def test_non_finite_logits_during_the_search_are_not_a_success() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.where((x != X[:1]).any(), torch.nan, 0.0) + MODEL(x)

    result = ATTACK(model, X[:1], Y[:1])
    assert not bool(result.fooled.any())


def test_a_model_on_another_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="the model is on meta, the images on cpu"):
        ATTACK(SmallConvNet().to("meta"), X, Y)


@pytest.mark.parametrize("name", [name for name in options.ATTACKS if name != "loap" and not registry.black_box(name)])
def test_a_model_without_gradients_is_refused(name: str) -> None:
    def model(x: Tensor) -> Tensor:
        with torch.no_grad():
            return MODEL(x)

    def of_weights_only(x: Tensor) -> Tensor:
        return MODEL(x.detach())

    attack = options.preset(name, ATTACK.budget, "quick")
    for cut in (model, of_weights_only):
        with pytest.raises(NoGradientError, match=r"use SparseRS, a black-box attack \(--attack sparse-rs\)"):
            attack(cut, X, Y)


def test_probabilities_get_a_warning() -> None:
    with pytest.warns(ProbabilitiesWarning, match="remove the final softmax"):
        ATTACK(lambda x: MODEL(x).softmax(1), X, Y)


def test_round_off_beyond_the_range_is_accepted_and_untouched_pixels_kept() -> None:
    x = X.clone()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = -2.98e-08, 1 + 1.2e-07
    result = ATTACK(MODEL, x, labelled(MODEL, x))
    assert bool(((result.x_adv == x) | ((result.x_adv >= 0) & (result.x_adv <= 1))).all())
    assert result.l0.tolist()[0] <= 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type_are_accepted(dtype: torch.dtype) -> None:
    assert torch.equal(ATTACK(MODEL, X, Y.to(dtype)).x_adv, ATTACK(MODEL, X, Y).x_adv)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_result_has_the_dtype_of_the_images_and_the_model_sees_it(dtype: torch.dtype) -> None:
    seen = set()

    class Model(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(x.dtype)
            return super().forward(x)

    model = Model(dtype=dtype).eval()
    x = X.to(dtype)
    result = ATTACK(model, x, labelled(model, x))
    assert seen == {dtype}
    assert result.x_adv.dtype == dtype
    assert bool((result.l0 <= 3).all())


def test_everything_is_restored_after_an_exception() -> None:
    class Broken(SmallConvNet):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 4:
                torch.rand(7)
                raise RuntimeError("out of luck")
            return super().forward(x)

    model = Broken().train()
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of luck"):
        ATTACK(model, X, Y)
    assert all(module.training for module in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_batch_norm_statistics_stay_and_are_used() -> None:
    model = SmallConvNet().train()
    before = model.net[1].running_mean.clone()
    result = ATTACK(model, X, Y)
    assert torch.equal(model.net[1].running_mean, before)
    assert torch.equal(result.x_adv, ATTACK(MODEL, X, Y).x_adv)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_inside_no_grad_and_inference_mode(context: Any) -> None:
    with context():
        result = ATTACK(MODEL, X.clone(), Y.clone())
    assert torch.equal(result.x_adv, ATTACK(MODEL, X, Y).x_adv)


def test_a_model_that_draws_random_numbers_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    ATTACK(nn.Sequential(MODEL, nn.Identity()), X, Y)
    ATTACK(lambda x: MODEL(x) + 1e-6 * torch.rand(len(x), 5), X, Y)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_saved_png_is_still_adversarial(tmp_path: Any) -> None:
    import numpy as np
    from PIL import Image

    x = images(12)
    y = labelled(MODEL, x)
    result = sp.SparsePGD(sp.Budget(k=20), steps=60, quantize=True)(MODEL, x, y)
    assert int(result.fooled.sum()) >= 6
    for i in result.fooled.nonzero()[:, 0].tolist():
        file = tmp_path / f"{i}.png"
        Image.fromarray((result.x_adv[i] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()).save(file)
        read = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).float() / 255
        assert torch.equal(read, result.x_adv[i])
        with torch.no_grad():
            assert int(MODEL(read[None]).argmax()) != int(y[i])


@pytest.mark.parametrize(
    "settings",
    [
        "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high')",
        "torch.backends.cudnn.conv.fp32_precision = torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ],
)
def test_precision_settings_of_either_kind_are_switched_off_and_given_back(settings: str) -> None:
    """In a process of its own: torch refuses to go back from the newer switches to the older ones."""
    if "fp32_precision" in settings and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has only the older switches")
    program = f"""
import torch
from sparsepgd.problem.precision import full_precision
def state():
    newer = hasattr(torch.backends.cudnn, "conv")
    places = (torch.backends.cudnn.conv, torch.backends.cuda.matmul) if newer else ()
    return [p.fp32_precision == 'tf32' for p in places] if newer else torch.get_float32_matmul_precision()
{settings}
print(state())
with full_precision():
    print(state())
print(state())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, inside, after = done.stdout.splitlines()
    assert inside in ("[False, False]", "highest")
    assert after == before


@pytest.mark.parametrize("attack", [ATTACK, sp.SparseRS(sp.Budget(k=1), queries=20)], ids=lambda attack: attack.name)
def test_a_model_that_fails_during_the_search_is_named_in_one_line(attack: Any) -> None:
    calls: list[Tensor] = []

    def server(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > 2:
            raise ConnectionError("no answer")
        return MODEL(x)

    with pytest.raises(ModelError, match=r"the model fails on images of shape .*: ConnectionError: no answer; check"):
        attack(server, X, Y)


def test_a_model_whose_backward_pass_fails_is_refused_by_gradient_attacks_alone() -> None:
    def model(x: Tensor) -> Tensor:
        inner = x.sigmoid()
        logits = MODEL(inner)
        inner.add_(1)
        return logits

    with pytest.raises(NoGradientError, match=r"the backward pass of the model fails: RuntimeError: .*use SparseRS"):
        ATTACK(model, X, Y)
    assert len(sp.evaluate(model, X, Y, attack=sp.SparseRS(sp.Budget(k=3), queries=20)).result) == len(X)


def test_gradient_attacks_on_a_numpy_function_name_a_black_box_attack() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy().mean((2, 3)))

    with pytest.raises(ModelError, match=r"Can't call numpy.*; if it has no gradient, use SparseRS"):
        ATTACK(model, X, model(X).argmax(1))


def test_a_model_for_inference_only_is_evaluated_by_black_box_attacks() -> None:
    def model(x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError("inference only")
        return MODEL(x)

    assert len(sp.evaluate(model, X, Y, attack=sp.SparseRS(sp.Budget(k=3), queries=20)).result) == len(X)
