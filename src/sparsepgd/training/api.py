"""`train`: trains a model on data with a method; returns the robust model and its curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsepgd import atomic, kernels
from sparsepgd.distributed import Workers, joined
from sparsepgd.errors import ModelError, UnsupportedError
from sparsepgd.problem.checks import check_classes, check_device, check_images, check_labels
from sparsepgd.problem.oracle import check_logits, logits_of
from sparsepgd.runs.autoattack import Extracted
from sparsepgd.search.noise import signed
from sparsepgd.sources import TRAINED, Data, as_tensors
from sparsepgd.threat import Budget
from sparsepgd.training import data as sources
from sparsepgd.training import inputs
from sparsepgd.training import state as states
from sparsepgd.training.adversaries import adversary, times, training_budgets
from sparsepgd.training.annealing import Changes
from sparsepgd.training.entries import Figures, measure, zoo_entry
from sparsepgd.training.loop import Progress, Run, watch
from sparsepgd.training.objective import Extract, Mixed, Objective, SoftTargets
from sparsepgd.training.settings import Settings, make_settings
from sparsepgd.training.team import Team
from sparsepgd.zoo import Card

TESTED = 100  # steps of the attacks on the test images


@dataclass(frozen=True, eq=False)
class Trained:
    """The model in evaluation mode (with the averaged weights, if there are any) and the history of its training."""

    model: nn.Module
    settings: Settings
    curves: states.Curves  # one value per epoch: loss, attacked, lr, clean, robust, seconds
    notices: tuple[str, ...]
    seconds: float
    test: Data | None = None  # the test images
    set_apart: bool = False  # the test images were split from the data; they are in test.npz of the folder
    figures: Figures | None = None  # accuracies on the test images
    card: Card | None = None  # the card next to the weights


def train(
    model: nn.Module | str,
    data: Any,
    method: str = "strades",
    budget: Budget | None = None,
    epochs: int = 100,
    *,
    validation: Any = None,
    test: Any = None,
    size: int | None = None,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    logits: Extract | None = None,
    names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    tensorboard: bool = False,
    save_seconds: float = 30.0,
    command: str = "sp.train",
    **options: Any,
) -> Trained:
    """Train a model to be robust under `budget` (default: 20 pixels). A module is trained in place, on its own device.

    - `model`: a module, or a name as in `spgd train`, built on `device`.
    - `data`: a pair (x, y), a Dataset, a DataLoader, or a name; `size` is the size of the pictures of data by name.
    - `method`: one of `training.METHODS`, with +s, +n or +sn for soft targets and noise.
    - `options`: fields of `training.Settings`.
    - `validation`: images to monitor the training on; default: some of the data are held out.
    - `test`: images to measure the trained model on; data by name have their own.
    - `out`: a folder for checkpoint, weights and record; the same call resumes from it. For a network by name it also
      gets the card, if there are test images.
    - `logits`: extracts the logits from the model's output.
    - `names`: names of the model and the data, for the record; `command`: for the card.
    - `save_seconds`: minimum time between two checkpoints, which are written at the end of an epoch.

    Under torchrun, all workers call this with the same arguments; `batch` is the size over all workers, and the first
    worker measures.
    """
    settings = make_settings(method, budget or Budget(k=20), {"epochs": epochs, **options})
    if validation is not None and settings.held_out:
        raise UnsupportedError(f"held_out={settings.held_out} with validation images; use one of them")
    if tensorboard and out is None:
        raise UnsupportedError("tensorboard=True needs a folder; pass out=...")
    datasets = inputs.load_datasets(data, test, size, settings.seed)
    known_names = {key: name for key, name in (("model", model), ("data", data)) if isinstance(name, str)}
    network = _network(model, datasets, settings.seed, device)
    device, folder = _device(network.model), atomic.folder(out)
    on_gpu = device.type == "cuda"
    bf16, compiled = (on_gpu if value is None else value for value in (settings.bf16, settings.compile))
    settings = replace(settings, bf16=bf16, compile=compiled)
    with joined() as workers, _seeded_torch(device, settings):
        team = Team.of(workers, device)
        images = sources.images(datasets.train, settings, device)
        classes = _class_count(network.model, images, logits)
        settings = replace(settings, augment=settings.augment or sources.default_augment(images.shape))
        if budget is None and not settings.sparse:  # only for noise and for measurements
            settings = replace(settings, budget=Budget(k=min(settings.budget.k, images.shape[1] * images.shape[2])))
        if datasets.test is not None:
            _check_test(datasets.test, network.model, settings, classes, logits)
        run = _run(network.model, images, settings, validation, classes, logits, team, progress)
        if folder is None:
            run.train(lambda: None)
        else:
            from sparsepgd.training.run_folder import RunFolder  # needs pydantic

            configuration = states.configuration(settings, network.model, images, {**known_names, **(names or {})})
            RunFolder(folder, run, configuration, save_seconds, tensorboard).train()
        state = run.state
        state.use_average()
        if state.network is not network.model:
            network.model.load_state_dict(state.network.state_dict())
        trained = Trained(network.model.eval(), settings, state.curves, tuple(state.notices), state.seconds)
        del run, state  # they hold references to the other workers, which are about to exit
    return _with_figures(trained, datasets, network, logits, folder, command)


def _network(
    model: nn.Module | str, datasets: inputs.Datasets, seed: int, device: torch.device | str | None
) -> inputs.Network:
    """A module as it is, or a network by name on the device."""
    if isinstance(model, str):
        network = inputs.network(model, datasets, seed)
        network.model.to(check_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
        return network
    if device is not None and isinstance(model, nn.Module):
        raise UnsupportedError(
            f"device={str(device)!r} was given with a module, which is trained on its own device; move the module "
            "instead"
        )
    return inputs.Network(model)


def _with_figures(
    trained: Trained,
    datasets: inputs.Datasets,
    network: inputs.Network,
    logits: Extract | None,
    out: Path | None,
    command: str,
) -> Trained:
    """Add the accuracies on the test images, and a card if the zoo can build the network."""
    if datasets.test is None or not Workers.here().first:
        return trained
    trained = replace(trained, test=datasets.test, set_apart=datasets.apart)
    count = 1000 if next(trained.model.parameters()).is_cuda else 200
    if out is not None:
        datasets.save_test(out)
    if out is None or network.architecture is None:
        model = trained.model if logits is None else Extracted(trained.model, logits)
        return replace(trained, figures=measure(model, datasets.test, trained.settings.budgets, count, TESTED))
    card = zoo_entry(
        trained,
        out,
        TRAINED,
        network.architecture,
        datasets.test,
        arguments=network.arguments,
        data=datasets.name,
        classes=datasets.test.class_names,
        command=command,
        images=count,
        steps=TESTED,
    )
    return replace(trained, figures=Figures(card.clean_accuracy, card.robust, card.measured), card=card)


def _run(
    model: nn.Module,
    images: sources.Images,
    settings: Settings,
    validation: Any,
    classes: int,
    logits: Extract | None,
    team: Team,
    progress: Progress | None,
) -> Run:
    """Build what the training loop needs: the optimizer, the loss, the training attack and the monitor."""
    device, shape = _device(model), images.shape
    held: sources.Resident | None  # monitored, not trained on
    if validation is not None:
        rows, held = torch.arange(len(images)), sources.resident(*as_tensors(validation), device)
    else:
        rows, rest = sources.split(len(images), settings)
        held = images.take(rest) if len(rest) else None
    if held is not None:
        _class_count(model, held, logits)  # checks the images and all labels
    network = team.network(model, device)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(
        trained, settings.lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=settings.nesterov
    )
    targets = SoftTargets(len(images), classes, device) if settings.soft_targets else None
    mixed: nn.Module = Mixed(network, device, bool(settings.bf16), logits)
    kernels.wait(device)  # a recorded graph without them would stay without them
    if settings.compile:
        mixed = torch.compile(mixed, dynamic=False)  # type: ignore[assignment]
    state = states.State(network, optimizer, [], targets, _changes(settings, images, device))
    if settings.ema is not None:  # after Mixed, which may change the memory format of the weights
        state.average = [value.detach().clone() for value in state.live]
    objective = Objective(mixed, settings.kind.trades, settings.lam, settings.soft_momentum, team)
    threat = times(settings.budget, settings.multi_eps, shape).resolve(shape, device) if settings.noise else None
    run = Run(
        settings=settings,
        images=images,
        rows=rows,
        state=state,
        model=mixed,
        objective=team.shared(objective, device),
        adversary=adversary(settings, shape),
        threat=threat,
        watch=None,
        team=team,
        progress=progress if team.first else None,
    )
    if held is not None:
        run.watch = watch(settings, held, run.batch, team)
    return run


def _changes(settings: Settings, images: sources.Images, device: torch.device) -> list[Changes]:
    """Storage for the perturbation of each image under each budget, if they are kept."""
    if not settings.keep:
        return []
    shape, edge = images.shape, sources.border(images.shape, settings.augment or "none")
    made = []
    for budget in training_budgets(settings, shape):
        cells = min(budget.k * budget.resolve(shape).kernel.numel(), shape[1] * shape[2])
        made.append(Changes(len(images), cells, shape, edge, device))
    return made


def _class_count(model: nn.Module, images: sources.Images, logits: Extract | None) -> int:
    """The number of classes, from the logits of two images; the same checks as before an attack."""
    sample = images.take(torch.arange(min(2, len(images))))
    x = sources.as_float(sample.x)
    check_images(x)
    check_labels(sample.y, x)
    answer = logits_of(model, x, len(x), logits, x.device)
    check_logits(answer)
    check_classes(images.y if isinstance(images, sources.Resident) else sample.y, answer.shape[1])
    return answer.shape[1]


def _check_test(test: Data, model: nn.Module, settings: Settings, classes: int, logits: Extract | None) -> None:
    """Raise errors about the test images before the training, not after it."""
    check_images(test.x)
    check_labels(test.y, test.x)
    check_classes(test.y, classes)
    first = sources.resident(test.x[:2], test.y[:2], _device(model))
    _class_count(model, first, logits)
    for budget in settings.budgets:
        budget.resolve(first.shape)


def _device(model: nn.Module) -> torch.device:
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    first = next(model.parameters(), None)
    if first is None or not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{type(model).__name__} has no trainable parameter; use requires_grad_(True)")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ModelError(f"{type(model).__name__} was built under torch.inference_mode; build it outside to train it")
    return first.device


@contextmanager
def _seeded_torch(device: torch.device, settings: Settings) -> Iterator[None]:
    """Seed torch's generators, for dropout and the like, and let cuDNN search for the fastest convolutions; everything
    is restored afterwards."""
    benchmark = torch.backends.cudnn.benchmark
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        if settings.compile:  # a model is compiled three times, and a process may train several models
            patch: Any = torch._dynamo.config.patch
            stack.enter_context(patch(recompile_limit=64))
        torch.manual_seed(signed(settings.seed))
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
