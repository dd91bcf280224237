"""State dicts of other code, converted to the layout of the networks here.

| from | what it looks like | what is done |
| --- | --- | --- |
| all | wrapped: {"state_dict": ...}, "model", "net", "ema", "last", ...; in front of every key "module.", "model.", "1.", "_orig_mod." | unwrapped, cut off |
| all | buffers mean or mu, and std or sigma, optionally after "normalize." or "0." | removed: they normalise the input |
| ResNet of the official code | "classifier." | "linear." |
| ResNet of the official code | convolutions with bias before batch normalisation | bias subtracted from the running mean, which is the same function |
| WideResNet of RobustBench | "block1.layer.0.", "convShortcut.", "bn1.", "fc." | "layer1.0.", "shortcut.0.", "bn.", "linear." |
| WideResNet of RobustBench | "sub_block1.", never used there | left out |
| WideResNet of RobustBench | no "fc.bias" | zero |
| PreActResNet of both | ReLU or softplus, which no key shows | inferred from the means in batch normalisation |
| PreActResNet of both, ResNet of RobustBench, VGG of common CIFAR code | as here | nothing |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.errors import SourceError
from sparsepgd.zoo.networks import ACTIVATIONS
from sparsepgd.zoo.normalise import Normalisation

State = dict[str, Tensor]

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "ema", "model_ema", "last", "best")
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "1.")
BUFFERS = (("mean", "std"), ("mu", "sigma"), ("mean", "sigma"), ("mu", "std"))  # of a normalisation
BEFORE = ("", "normalize.", "normalise.", "0.")
RENAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "resnet": ((r"^classifier\.", "linear."),),
    "wide": (
        (r"^block(\d+)\.layer\.", r"layer\1."),
        (r"\.convShortcut\.", ".shortcut.0."),
        (r"^bn1\.", "bn."),
        (r"^fc\.", "linear."),
    ),
}
ELSEWHERE = ("init_conv.weight", "conv_2d.weight")  # networks of Gowal et al., which differ in their padding


def unwrapped(found: object) -> tuple[State, Normalisation | None]:
    """The tensors of a checkpoint under plain names, and the normalisation that it contains, if any."""
    while isinstance(found, Mapping) and not _is_state(found):
        inner = next((found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping | nn.Module)), None)
        if inner is None:
            keys = ", ".join(map(str, list(found)[:5])) or "nothing"
            raise SourceError(f"the checkpoint holds {keys}; expected a state dict, or one under {', '.join(WRAPPERS)}")
        found = inner
    if isinstance(found, nn.Module):
        found = found.state_dict()
    if not isinstance(found, Mapping):
        raise SourceError(f"the checkpoint is a {type(found).__name__}; expected a state dict")
    state, how = dict(found), None
    while True:
        how = _normalisation(state) or how
        prefix = next((one for one in PREFIXES if state and all(key.startswith(one) for key in state)), None)
        if prefix is None:
            return state, how
        state = {key.removeprefix(prefix): value for key, value in state.items()}


def fitted(
    build: Callable[..., nn.Module], state: State, how: Normalisation | None, name: str, activation: str = ""
) -> tuple[nn.Module, Normalisation | None]:
    """The network with these weights and their number of classes, and the normalisation that it does not contain.

    `activation`: for a network with a choice; default: inferred from the weights, or an error if they do not show it.
    """
    if any(key in state for key in ELSEWHERE):
        raise SourceError("these weights belong to a network of Gowal et al. in RobustBench; use robustbench:NAME")
    with torch.device("meta"):
        own = build().state_dict()
    state = _folded(_renamed(state, name), own)
    last = next((key for key in reversed(own) if key in state), None)
    if last is None:
        raise SourceError(
            f"these weights do not fit {name}: {_keys(state)} instead of {_keys(own)}; use their own architecture"
        )
    if has_choice(build, name, activation):
        build = partial(build, activation=_chosen(activation, activation_of(state), name))
    network = build(num_classes=len(state[last]))
    if "mean" in own and how is not None:
        state |= {"mean": torch.tensor(how.mean).view_as(own["mean"]), "std": torch.tensor(how.std).view_as(own["std"])}
        how = None
    load(network, state, name)
    return network, how


def has_choice(build: Callable[..., nn.Module], name: str, activation: str) -> bool:
    """Whether a network has a choice of activations; it is an error to give one to a network without a choice."""
    choice = "activation" in signature(build).parameters
    if activation and not choice:
        raise SourceError(f"{name}:{activation}: {name} has a fixed activation; use {name}")
    return choice


def load(network: nn.Module, state: State, name: str) -> None:
    """Load all weights, or raise an error that names the first that does not fit."""
    own = network.state_dict()
    counters = {key: value for key, value in own.items() if key.endswith("num_batches_tracked")}
    state = {**counters, **state}  # older checkpoints have none
    missing, odd = [key for key in own if key not in state], [key for key in state if key not in own]
    wrong = [f"{key} is {tuple(state[key].shape)}, not {tuple(own[key].shape)}"
             for key in own if key in state and state[key].shape != own[key].shape]  # fmt: skip
    faults = [f"{key} is missing" for key in missing] + [f"{key} is unknown" for key in odd] + wrong
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise SourceError(f"these weights do not fit {name}: {faults[0]}{more}; use their own architecture")
    network.load_state_dict(state)


def activation_of(state: State) -> str | None:
    """The activation in the blocks of a trained pre-activation network; None if batch normalisation does not show it.

    The output of bn1 is about normal, so the mean of the activation is known for each channel, and conv1 maps it to
    the running mean of bn2. On the models here, the relative squared error of this prediction is at least 30 % for the
    wrong activation and at most 6 % for the right one.
    """
    normal = torch.special.ndtri((torch.arange(101) + 0.5) / 101)  # quantiles instead of random numbers
    misses = dict.fromkeys(ACTIVATIONS, 0.0)
    blocks = [key.removesuffix("bn2.running_mean") for key in state if re.fullmatch(r"layer.*bn2\.running_mean", key)]
    for block in blocks:
        names = ("bn1.weight", "bn1.bias", "conv1.weight", "bn2.running_mean")
        if any(block + name not in state for name in names):
            return None
        scale, shift, weight, met = (state[block + name].float().cpu() for name in names)
        for name, activation in ACTIVATIONS.items():
            mean = activation()(shift[:, None] + scale[:, None] * normal).mean(1)
            misses[name] += float((weight.sum((2, 3)) @ mean - met).square().sum() / met.square().sum()) / len(blocks)
    best, other = sorted(misses, key=lambda name: misses[name])
    return best if misses[best] < 0.2 and 3 * misses[best] < misses[other] else None


def _chosen(asked: str, shown: str | None, name: str) -> str:
    options = " or ".join(f"{name}:{one}" for one in ACTIVATIONS)
    if asked and asked not in ACTIVATIONS:
        raise SourceError(f"activation {asked!r}; use {options}")
    if asked and shown and asked != shown:
        raise SourceError(f"{name}:{asked} was given, but the batch normalisation shows {name}:{shown}; use that")
    if not asked and shown is None:
        raise SourceError(f"the activation cannot be inferred from these weights (are they trained?); use {options}")
    return asked or str(shown)


def _is_state(found: Mapping[Any, Any]) -> bool:
    return bool(found) and all(isinstance(value, Tensor) for value in found.values())


def _normalisation(state: State) -> Normalisation | None:
    """Remove the buffers of a normalisation from `state` and return it."""
    for before in BEFORE:
        for mean, std in BUFFERS:
            if before + mean in state and before + std in state:
                means, deviations = (state.pop(before + name).flatten().tolist() for name in (mean, std))
                return Normalisation.of(means, deviations)
    return None


def _renamed(state: State, name: str) -> State:
    rules = next((rules for kind, rules in RENAMES.items() if name.startswith(kind)), ())
    renamed = {}
    for key, value in state.items():
        if name.startswith("wide") and key.startswith("sub_block1."):
            continue
        for pattern, instead in rules:
            key = re.sub(pattern, instead, key)
        renamed[key] = value
    if name.startswith("wide") and "linear.weight" in renamed:
        renamed.setdefault("linear.bias", renamed["linear.weight"].new_zeros(len(renamed["linear.weight"])))
    return renamed


def _folded(state: State, own: Mapping[str, Tensor]) -> State:
    """Move biases of convolutions, where the network has none, into the running mean of the batch normalisation."""
    folded = dict(state)
    for key in state:
        layer = re.fullmatch(r"(.*)(?:conv(\d)|shortcut\.0)\.bias", key)
        if layer is None or key in own:
            continue
        norm = f"{layer[1]}bn{layer[2]}" if layer[2] else f"{layer[1]}shortcut.1"
        if f"{norm}.running_mean" in folded:
            folded[f"{norm}.running_mean"] = folded[f"{norm}.running_mean"] - folded.pop(key)
    return folded


def _keys(state: Mapping[str, Tensor]) -> str:
    return ", ".join(list(state)[:2]) + ", ..."
