"""The ensemble with the interface of AutoAttack (Croce and Hein, 2020), so that its scripts run unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsepgd.errors import FolderError, SourceError, UnsupportedError
from sparsepgd.problem.checks import check_classes, check_counts, check_device, check_images, check_labels
from sparsepgd.problem.oracle import Model, check_logits, logits_of
from sparsepgd.problem.shapes import seen_as_images
from sparsepgd.problem.verify import Result, untouched
from sparsepgd.runs.identity import model_digest
from sparsepgd.search.contract import Attacker
from sparsepgd.search.ensemble import SparseAutoAttack, Stage, Version, cascade, survivors, verified
from sparsepgd.search.loop import Progress
from sparsepgd.search.noise import check_seed
from sparsepgd.threat import Budget, Pattern, Pixels

CHUNK = 16  # batches on the device at a time: a fooled image makes room for the next
SUSPICIOUS = 0.002  # share of images that a black-box attack may fool after the gradient attacks without a warning
MASKED = (
    "warning: {name} needs no gradient, but broke {gain:.2%} of the images that withstood the attacks before it; "
    "the model may mask its gradients, or more steps are needed"
)
Images = Tensor | Iterable[tuple[Tensor, Tensor]]  # a tensor, or a DataLoader of (images, labels)
Labelled = tuple[Tensor, Tensor]


class AutoAttack:
    """``AutoAttack(model, k=20).run_standard_evaluation(x, y)`` attacks and returns adversarial images.

    ``version``: "standard" (saa+: SparseAnneal, then short sPGD and Cluster-RS), "paper" (saa: sPGD unprojected, sPGD
    projected, Sparse-RS) or "custom" (``attacks_to_run``: their names, or attacks). ``norm="L0", eps=24`` means
    k=24; an ``eps`` of at most 1 bounds the magnitudes. Unlike in the original, results do not depend on ``bs``, and a
    resumed run returns all adversarial images.
    """

    def __init__(
        self,
        model: Model,
        k: int | None = None,  # default: 20, unless given by eps
        *,
        norm: str = "L0",
        pattern: Pattern | None = None,
        eps: float = 1.0,
        version: str = "standard",
        seed: int | None = 0,  # None: from the clock
        device: torch.device | str | None = None,  # of the model; default: that of the images
        log_path: str | Path | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str | Attacker] = (),
        steps: int = 10_000,
        queries: int = 10_000,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> None:
        if str(norm).upper() != "L0":
            raise UnsupportedError(f"norm={norm!r}; this is the sparse ensemble; for {norm} use the autoattack package")
        if version != "custom" and len(attacks_to_run):
            raise UnsupportedError(f"attacks_to_run with version={version!r}; use version='custom' to choose attacks")
        if isinstance(eps, Real) and (eps > 1 or (eps == 1 and isinstance(eps, Integral) and k is None)):
            if k not in (None, eps) or int(eps) != eps:
                raise UnsupportedError(f"k={k} and eps={eps}; use k={int(eps)}, or eps <= 1 to bound the magnitudes")
            k, eps = int(eps), 1.0
        self.model, self.logits = model, logits
        self.device = None if device is None else check_device(device)
        self.seed = None if seed is None else check_seed(seed)
        self.verbose, self.log_path = verbose, log_path
        self.ensemble = SparseAutoAttack(Budget(20 if k is None else k, pattern or Pixels(), eps), steps, queries)
        self.attacks_to_run: list[str | Attacker] = list(attacks_to_run)
        self.result: Result | None = None  # of the last evaluation, with counters and losses
        self.set_version(version)

    def set_version(self, version: str) -> None:
        if version == "plus":
            raise UnsupportedError("version='plus' was removed; use 'standard', which begins with SparseAnneal")
        if version not in ("standard", "paper", "custom"):
            raise UnsupportedError(f"version={version!r}; use 'standard', 'paper' or 'custom'")
        self.version = version
        self.ensemble = replace(self.ensemble, version="standard" if version == "standard" else "paper")
        if version != "custom":
            self.attacks_to_run = list(self.ensemble.names)

    def run_standard_evaluation(
        self,
        x_orig: Images,
        y_orig: Tensor | None = None,
        bs: int = 250,
        return_labels: bool = False,
        state_path: str | Path | None = None,
    ) -> Tensor | Labelled:
        """Adversarial images (clean ones where no attack succeeds) and, on request, their predictions.

        ``state_path`` is a folder in which the evaluation is saved chunk by chunk, like a run of ``spgd evaluate``;
        the same call resumes it.
        """
        x, y = self._gather(x_orig, y_orig, bs)
        result = self._evaluate(self._chosen(), x, y, bs, Path(state_path) if state_path is not None else None)
        return _output(result, x, return_labels)

    def run_standard_evaluation_individual(
        self, x_orig: Images, y_orig: Tensor | None = None, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Tensor | Labelled]:
        """The adversarial images of each attack, run alone, by name."""
        x, y = self._gather(x_orig, y_orig, bs)
        ensemble, outputs = self._chosen(), {}
        for name, member in zip(ensemble.names, ensemble.members, strict=True):
            alone = self._evaluate(replace(ensemble, attacks=(member,)), x, y, bs, None)
            outputs[name] = _output(alone, x, return_labels)
        return outputs

    def clean_accuracy(self, x_orig: Images, y_orig: Tensor | None = None, bs: int = 250) -> float:
        x, y = self._gather(x_orig, y_orig, bs)
        accuracy = untouched(x, y, self._clean(x, y, bs)).clean_accuracy
        self._log(f"clean accuracy: {accuracy:.2%}")
        return accuracy

    def _gather(self, x: Images, y: Tensor | None, bs: int) -> Labelled:
        check_counts(bs=bs)
        if y is None:
            if isinstance(x, Tensor):
                raise UnsupportedError("y_orig is missing; give labels (B,), or a DataLoader of (images, labels)")
            batches = list(x)
            if not batches:
                raise SourceError("the DataLoader is empty; it must yield at least one batch")
            x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        check_images(seen_as_images(x, self.ensemble.budget))  # type: ignore[arg-type]
        return x.detach(), check_labels(y, x)  # type: ignore[union-attr, arg-type]

    def _chosen(self) -> SparseAutoAttack:
        by_name: dict[str, Attacker] = {}
        versions: list[Version] = ["standard", "paper"] if self.version == "custom" else [self.ensemble.version]
        for version in versions:
            known = replace(self.ensemble, version=version, targeted=True)
            by_name |= zip(known.names, known.members, strict=True)
        unknown = [one for one in self.attacks_to_run if isinstance(one, str) and one not in by_name]
        if unknown or not self.attacks_to_run:
            raise UnsupportedError(f"attacks_to_run={self.attacks_to_run}; use {', '.join(by_name)}, or attacks")
        members = tuple(by_name[one] if isinstance(one, str) else one for one in self.attacks_to_run)
        return replace(self.ensemble, attacks=members)

    def _evaluate(self, ensemble: SparseAutoAttack, x: Tensor, y: Tensor, bs: int, path: Path | None) -> Result:
        started = time.monotonic()
        self._log(f"using {self.version} version including {', '.join(ensemble.names)}")
        result = untouched(x, y, self._clean(x, y, bs))
        accuracy = [result.clean_accuracy]
        self._log(f"initial accuracy: {result.clean_accuracy:.2%}")

        def done(number: int, left: float) -> None:
            name, gain, seconds = ensemble.names[number], accuracy[-1] - left, time.monotonic() - started
            if number and gain > SUSPICIOUS and not ensemble.members[number].needs_gradient:
                self._log(MASKED.format(name=name, gain=gain))
            accuracy.append(left)
            self._log(f"robust accuracy after {name.upper()}: {left:.2%} (total time {seconds:.1f} s)")

        if path is None:
            named = zip(ensemble.names, ensemble.members, strict=True)
            stages = [Stage(partial(self._run, one, x, y, bs), one.evaluations, name) for name, one in named]
            result = cascade(
                result, stages, survivors, verified, size=CHUNK * int(bs),
                after=lambda number, now: done(number, now.robust_accuracy),
            )  # fmt: skip
        else:
            result = self._in_folder(path, ensemble, x, y, bs)
            for number, name in enumerate(ensemble.names):
                done(number, ensemble.history(result)[name])
        most = int(result.groups[result.fooled].max()) if bool(result.fooled.any()) else 0
        self._log(f"max {ensemble.budget.pattern.unit} changed: {most} of {ensemble.budget.k}")
        self._log(f"robust accuracy: {result.robust_accuracy:.2%}")
        self.result = result
        return result

    def _in_folder(self, path: Path, ensemble: SparseAutoAttack, x: Tensor, y: Tensor, bs: int) -> Result:
        """The evaluation as a run in a folder, resumed if it was interrupted."""
        # imported here because they need pydantic
        from sparsepgd.runs import runs
        from sparsepgd.runs.chunks import result_of
        from sparsepgd.runs.folders import Folder, load_adversarial

        if model_digest(self.model) is None:
            raise UnsupportedError(
                "state_path was given, but the model is a plain function, which cannot be recognised when the "
                "evaluation resumes; use a torch.nn.Module, or omit state_path"
            )
        if path.is_file():
            raise FolderError(
                f"{path} is a file, but the state of an evaluation is a folder; choose another state_path"
            )
        seed = self.seed
        if seed is None:  # a run that is resumed keeps its seed
            begun = Folder(path).head()
            seed = time.time_ns() if begun is None else begun.configuration["seed"]
        model = self.model if self.logits is None else Extracted(self.model, self.logits)
        record = runs.run(path, ensemble, model, (x, y), seed=seed, chunk=CHUNK * int(bs), batch_size=int(bs))
        return result_of(record.rows, load_adversarial(path, record)["x_adv"].to(x.device))

    def _run(self, member: Attacker, x: Tensor, y: Tensor, bs: int, rows: Tensor, report: Progress) -> Result:
        device, seed = self.device or x.device, time.time_ns() if self.seed is None else self.seed
        images, labels = x[rows].to(device), y[rows].to(device)
        return member.for_rows(rows)(
            self.model, images, labels, seed=seed, logits=self.logits, index=rows, batch_size=bs
        )

    def _clean(self, x: Tensor, y: Tensor, bs: int) -> Tensor:
        """The logits of the clean images, on their device."""
        if not len(x):
            return x.new_zeros(0, 2)
        clean = logits_of(self.model, x, bs, self.logits, self.device)
        check_logits(clean)
        check_classes(y, clean.shape[1])
        return clean

    def _log(self, line: str) -> None:
        if self.verbose:
            print(line, flush=True)
        if self.log_path is not None:
            with Path(self.log_path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")


class Extracted(nn.Module):
    """A model that returns the logits which `logits` extracts from the output of another model."""

    def __init__(self, model: Model, logits: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.logits = model, logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.model(x))


def _output(result: Result, x: Tensor, labels: bool) -> Tensor | Labelled:
    x_adv = torch.where(result.fooled.view(-1, *[1] * (x.dim() - 1)), result.x_adv, x)
    return (x_adv, torch.where(result.fooled, result.prediction, result.clean_prediction)) if labels else x_adv
