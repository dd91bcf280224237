"""Models by name: the zoo, torchvision, timm, RobustBench, a Python file, an exported program, an ONNX file.

Each comes with what its source knows: how pictures are cropped and resized, how they are normalised, the class names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd import zoo
from sparsepgd.errors import SourceError, counted, first_line
from sparsepgd.extras import needs
from sparsepgd.sources import factories, files
from sparsepgd.sources.data import class_name
from sparsepgd.sources.pictures import Framing, Size, framing
from sparsepgd.zoo import checkpoints
from sparsepgd.zoo.normalise import Normalisation, Normalised, parse
from sparsepgd.zoo.registry import ARCHITECTURES

TRAINED = "model"  # the name of weights and card in the folder of a training run
THREATS = ("Linf", "L2", "corruptions")  # of RobustBench
ROBUSTBENCH = {"cifar10": Framing(32), "cifar100": Framing(32), "imagenet": Framing(224, 256, "bicubic")}


@dataclass(frozen=True, eq=False)
class Source:
    """A model with its input size, normalisation and class names. A factory may return one instead of a module."""

    name: str
    model: nn.Module
    classes: tuple[str, ...] = ()  # names, if known
    size: Size = None  # of its input, if fixed; a Framing also says how pictures are cropped and resized
    normalisation: Normalisation | str = "inside the model, if at all"  # of the input; part of `model`
    black_box: bool = False  # no gradients

    def class_name(self, number: int) -> str:
        return class_name(self.classes, number)

    @property
    def grey(self) -> bool:
        """Whether the model takes images of one channel, judging by its first convolution or its file."""
        first = next((one.in_channels for one in self.model.modules() if isinstance(one, nn.Conv2d)), None)
        shape = self.model.shape if isinstance(self.model, files.Exported | files.Onnx) else ()
        return (shape[1] if len(shape) == 4 else first) == 1

    @property
    def about(self) -> str:
        """A description in one line, shown before a run."""
        known = [f"input {framing(self.size) or 'of any size'}", f"normalised {self.normalisation}"]
        known += [counted(len(self.classes), "classes")] if self.classes else []
        known += ["no gradients, for black-box attacks only"] if self.black_box else []
        return f"{self.name}: {'; '.join(known)}"


def load_model(
    name: str | Path, *, weights: str | Path | None = None, trust: bool = False, normalise: str | None = None
) -> Source:
    """A model on the CPU that takes images in [0, 1]. It is in evaluation mode, unless a factory returns it in training
    mode, which is reported before a run.

    `name`: ``zoo:NAME``, or just NAME; ``trained:FOLDER``, written by `spgd train`; ``torchvision:NAME``, with
    ``@WEIGHTS`` for weights other than the default; ``timm:NAME``; ``robustbench:NAME``, or
    ``robustbench:DATASET/THREAT/NAME``; ``FILE.py:FACTORY``, a function without arguments that returns a module or a
    `Source`; ``FILE.pt2``, an exported program; ``FILE.onnx``, for black-box attacks; or the name of a network, such as
    preact_resnet18, with `weights`; preact_resnet18:relu if the activation cannot be inferred from them.
    `weights`: a file for an architecture of torchvision, timm, this package or your own factory; no code in it is run.
    `trust`: also read pickles, and ``FILE.pt`` with a whole module. Python files and exported programs are code and are
    run in any case. `normalise`: overrides the normalisation of the source: imagenet, cifar10, cifar100, none or
    ``0.5,0.5,0.5/0.2,0.2,0.2``.
    """
    name = str(name)
    kind = name.partition(":")[0]
    is_factory = Path(kind).suffix == ".py"
    source = _source(name, weights, trust)
    if any(one.is_meta for one in chain(source.model.parameters(), source.model.buffers())):
        raise SourceError(f"{name} holds no values, its weights are on the device meta; build it on the CPU")
    if weights is not None and not (is_factory or kind in ("torchvision", "timm") or kind in ARCHITECTURES):
        raise SourceError(
            f"{name} has its own weights; use --weights only with torchvision:, timm:, FILE.py:FACTORY or a network"
        )
    how = source.normalisation if normalise is None else parse(normalise)
    if isinstance(how, Normalisation):
        source = replace(source, model=Normalised(source.model, how), normalisation=how)
    elif not isinstance(source.normalisation, str):  # text describes what the network does itself
        source = replace(source, normalisation="not at all")
    return _filled(source, weights, trust) if is_factory and weights is not None else source


def _source(name: str, weights: str | Path | None, trust: bool) -> Source:
    """The model, not yet normalised; one of a factory without the weights."""
    kind, _, rest = name.partition(":")
    suffix = Path(kind).suffix
    if kind == "zoo":
        return _from_zoo(rest)
    if kind == "trained":
        return _from_training(rest)
    if kind == "torchvision":
        return _from_torchvision(rest, weights, trust)
    if kind == "timm":
        return _from_timm(rest, weights, trust)
    if kind == "robustbench":
        return _from_robustbench(rest)
    if kind in ARCHITECTURES:
        return _from_architecture(name, weights, trust)
    if suffix == ".py":
        return _from_factory(Path(kind), rest)
    if suffix in (".pt2", ".onnx", ".pt", ".pth"):
        return _from_archive(Path(name), trust)
    if zoo.known(name):
        return _from_zoo(name)
    raise SourceError(
        f"no model {name!r}; use zoo:NAME (spgd zoo lists them), trained:FOLDER, torchvision:NAME, timm:NAME, "
        "robustbench:NAME, FILE.py:FACTORY, where FACTORY() returns a model, FILE.pt2, "
        f"FILE.onnx, or, with weights, {', '.join(ARCHITECTURES)}"
    )


def _from_zoo(name: str) -> Source:
    about, network = zoo.card(name), zoo.load(name)
    return Source(name, network, tuple(about.classes), _side(about.architecture), _inside(network))


def _from_training(folder: str) -> Source:
    if not (Path(folder) / f"{TRAINED}.json").is_file():
        file = Path(folder) / f"{TRAINED}.safetensors"
        advice = "use the output folder of a finished spgd train"
        if file.is_file():
            advice = f"give the network of these weights: --model NETWORK --weights {file}"
        raise SourceError(f"no trained model in {folder!r}; {advice}")
    classes = tuple(zoo.card(TRAINED, Path(folder)).classes)
    return Source(folder, zoo.load(TRAINED, Path(folder)), classes, normalisation="inside the network, if at all")


def _from_architecture(name: str, weights: str | Path | None, trust: bool) -> Source:
    if weights is None:
        raise SourceError(f"{name} is a network without weights; give a file: --weights FILE.safetensors")
    state, how = checkpoints.unwrapped(files.read(weights, trust))
    architecture, _, activation = name.partition(":")
    network, left = checkpoints.fitted(ARCHITECTURES[architecture], state, how, architecture, activation)
    inside: Any = left or _inside(network)
    return Source(f"{name}:{Path(weights).stem}", network.eval(), (), _side(architecture), inside)


def _side(architecture: str) -> int | None:
    """The image size that a network is for; None if there is no single one."""
    return None if architecture in ("digits_resnet", "resnet34") else 32


def _inside(network: nn.Module) -> str:
    return "inside the network" if hasattr(network, "mean") else "not at all"


def _from_torchvision(name: str, weights: str | Path | None, trust: bool) -> Source:
    from torchvision import models

    architecture, _, chosen = name.partition("@")
    known = models.list_models(module=models)
    if architecture not in known:
        raise SourceError(f"torchvision has no classifier {architecture!r}; {_similar(architecture, known)}")
    enum = models.get_model_weights(architecture)
    try:
        entry = enum[chosen] if chosen else enum.DEFAULT
    except KeyError:
        raise SourceError(f"{architecture} has no weights {chosen!r}; use {', '.join(enum.__members__)}") from None
    prepare = entry.transforms()
    size = Framing(prepare.crop_size[0], prepare.resize_size[0], prepare.interpolation.value)
    how: Any = Normalisation(tuple(prepare.mean), tuple(prepare.std))
    if weights is None:
        model = _fetched(lambda: models.get_model(architecture, weights=entry), f"torchvision:{name}", entry.url)
        return Source(f"torchvision:{name}", model, tuple(entry.meta["categories"]), size, how)
    model, in_file = _with_weights(
        lambda **classes: models.get_model(architecture, weights=None, **classes), weights, trust, architecture
    )
    return Source(f"torchvision:{architecture}:{Path(weights).stem}", model, (), size, in_file or how)


def _from_timm(name: str, weights: str | Path | None, trust: bool) -> Source:
    with needs(f"timm:{name}"):
        import timm
    known = timm.list_models() + timm.list_pretrained()
    if ":" not in name and name not in known:
        raise SourceError(f"timm has no model {name!r}; {_similar(name, known)}")
    in_file = None
    if weights is None:
        model = _fetched(lambda: timm.create_model(name, pretrained=True), f"timm:{name}", "Hugging Face")
    else:
        model, in_file = _with_weights(
            lambda **classes: timm.create_model(name, pretrained=False, **classes), weights, trust, name
        )
    config = timm.data.resolve_model_data_config(model)
    side = config["input_size"][-1]
    size = Framing(side, max(side, int(side / config["crop_pct"])), config["interpolation"])
    full_name = f"timm:{name}" if weights is None else f"timm:{name}:{Path(weights).stem}"
    return Source(full_name, model, (), size, in_file or Normalisation(tuple(config["mean"]), tuple(config["std"])))


def _from_robustbench(name: str) -> Source:
    with needs(f"robustbench:{name}"):
        from robustbench import model_zoo, utils
    dataset, threat, model = name.split("/", 2) if name.count("/") > 1 else ("cifar10", "Linf", name)
    if dataset not in ROBUSTBENCH or threat not in THREATS:
        raise SourceError(
            f"no {name!r} in RobustBench; use robustbench:DATASET/THREAT/NAME with {', '.join(ROBUSTBENCH)} "
            f"and {', '.join(THREATS)}"
        )
    try:
        network = _fetched(
            lambda: utils.load_model(model, dataset=dataset, threat_model=threat), f"robustbench:{name}", "its zoo"
        )
    except KeyError:
        zoos = model_zoo.model_dicts
        known = [one for d in zoos for t in zoos[d] if (d.value, t.value) == (dataset, threat) for one in zoos[d][t]]
        raise SourceError(
            f"RobustBench has no model {model!r} for {dataset}, {threat}; {_similar(model, known)}"
        ) from None
    classes = zoo.CIFAR10_CLASSES if dataset == "cifar10" else ()
    return Source(f"robustbench:{name}", network, classes, ROBUSTBENCH[dataset], "by RobustBench, inside the model")


def _from_factory(path: Path, factory: str) -> Source:
    made = factories.call(path, factory)
    if isinstance(made, Source):
        return made
    if not isinstance(made, nn.Module):
        raise SourceError(f"{path}:{factory} returned a {type(made).__name__}; expected a torch.nn.Module or a Source")
    return Source(f"{path.stem}:{factory}", made)


def _from_archive(path: Path, trust: bool) -> Source:
    """A model in one file: an exported program, an ONNX file, or a pickled module."""
    if path.suffix in (".pt2", ".onnx"):
        runtime: Any = files.Exported(path, trust) if path.suffix == ".pt2" else files.Onnx(path)
        side = runtime.shape[-1] if len(runtime.shape) == 4 and runtime.shape[-1] == runtime.shape[-2] else None
        return Source(path.stem, runtime, size=side, black_box=path.suffix == ".onnx")
    if not path.is_file():
        raise SourceError(f"no file {str(path)!r}; give FILE.pt2, FILE.onnx, or FILE.pt with a whole module")
    if not trust:
        raise SourceError(f"{str(path)!r} is a pickle; {files.TRUST}; for weights, use --model NETWORK --weights FILE")
    model = files.read(path, trust)
    if not isinstance(model, nn.Module):
        raise SourceError(
            f"{str(path)!r} contains a {type(model).__name__}, not a module; for weights, use --model NETWORK "
            "--weights FILE"
        )
    return Source(path.stem, model)


def _filled(source: Source, weights: str | Path, trust: bool) -> Source:
    """The model in evaluation mode, with weights under its own names, as `spgd train` writes them."""
    state, model = files.read(weights, trust), source.model.eval()
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise SourceError(f"{str(weights)!r} contains more than a state dict; load it in the factory of {source.name}")
    if isinstance(model, Normalised) and not model.state_dict().keys() & state.keys():
        model = model.model  # weights of the network alone
    checkpoints.load(model, state, source.name)
    return replace(source, name=f"{source.name}:{Path(weights).stem}")


def _with_weights(
    build: Callable[..., nn.Module], weights: str | Path, trust: bool, name: str
) -> tuple[nn.Module, Normalisation | None]:
    """The architecture with the weights of a file and their number of classes, and the normalisation in the file."""
    state, how = checkpoints.unwrapped(files.read(weights, trust))
    with torch.device("meta"):
        last = next(reversed(build().state_dict()))
    if last not in state:
        raise SourceError(f"{str(weights)!r} has no {last}, so it does not belong to {name}; use its own architecture")
    model = build(num_classes=len(state[last]))
    checkpoints.load(model, state, name)
    return model.eval(), how


def _fetched(load: Callable[[], nn.Module], name: str, origin: str) -> nn.Module:
    """A pretrained model. A KeyError passes: RobustBench raises it for an unknown name."""
    try:
        return load().eval()
    except KeyError:
        raise
    except Exception as error:
        raise SourceError(
            f"the weights of {name} cannot be downloaded from {origin}: {first_line(error)}; without a connection, use "
            "an architecture and weights from a file: --weights FILE"
        ) from error


def _similar(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 3, 0.4)
    return f"did you mean {', '.join(near)}?" if near else "see the list of its models"
