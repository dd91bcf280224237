"""Speed, measured in one run: the bare model, the attacks on it, and other implementations of them.

A time says little without the strength of the attack, so every attack is listed with its robust accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from sparsepgd import atomic
from sparsepgd.analysis.summary import wilson
from sparsepgd.errors import counted
from sparsepgd.problem.compiled import wait_for_compilations
from sparsepgd.problem.engine import Engine, Precision, metered
from sparsepgd.problem.oracle import Oracle, borrowed
from sparsepgd.problem.verify import Result, verify
from sparsepgd.report.style import MUTED, colour, figure_style, new_figure, png
from sparsepgd.runs.identity import hardware
from sparsepgd.search import registry
from sparsepgd.search.loop import Progress
from sparsepgd.search.stepwise import Stepwise
from sparsepgd.speed.rivals import Rival
from sparsepgd.threat import Budget

ATTACKS = ("anneal", "spgd-unprojected", "spgd-projected", "sparse-rs")
T = TypeVar("T")
REPEAT = 0.5  # seconds for which the bare model is run


@dataclass(frozen=True)
class Bare:
    work: Literal["forward", "input gradient", "input and parameter gradients"]
    precision: Precision
    compiled: bool
    batch: int
    us: float  # microseconds per image


@dataclass(frozen=True)
class Timed:
    """An attack, ours or another implementation's, on all images, once per seed."""

    name: str
    precision: str
    compiled: bool
    warm_up: float  # seconds of a first run, during which code is compiled if requested
    seconds: tuple[float, ...]
    robust: tuple[int, ...]  # number of images not fooled
    images: int
    interval: tuple[float, float]  # of the robust accuracy, first seed
    us: float | None = None  # microseconds per image and step
    ratio: float | None = None  # of this time to the bare model in the same precision
    outside: float | None = None  # share of the time spent outside the model
    below: float | None = None  # seconds of the first run until robust accuracy was below the verdict
    slots_used: float | None = None  # share of the evaluations that counted
    steps: int | None = None  # of the whole table
    looks: int | None = None  # number of times that the host waited
    denied: int | None = None  # successes that full precision did not confirm
    recorded: int | None = None  # CUDA graphs
    memory: int | None = None  # peak bytes on the device


@dataclass(eq=False)
class Bench:
    model: nn.Module
    x: Tensor
    y: Tensor
    budget: Budget
    steps: int = 300
    queries: int = 300
    seeds: Sequence[int] = (0,)
    batch_size: int = 512
    verdict: float | None = None  # a robust accuracy

    def bare(self, precisions: Sequence[tuple[Precision, bool]]) -> Iterator[Bare]:
        """The model in each (precision, compiled), forward and with the gradient of the input."""
        points, labels = self.x[: self.batch_size], self.y[: self.batch_size]
        device = points.device
        oracle = Oracle(self.model, device=device)
        us = self._with_parameters(points) / len(points)
        tf32: Precision = "tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "fp32"
        yield Bare("input and parameter gradients", tf32, False, len(points), us)
        for precision, compiled in precisions:
            engine = Engine(precision, compiled).decided(self.model, points, device)
            for work, gradient in (("forward", False), ("input gradient", True)):
                with borrowed(self.model, device), engine.running(self.model, device) as run:
                    ask = partial(replace(oracle, model=run).evaluate, points, labels, labels, gradient)
                    ask()
                    run.finish()
                    us = _timed(ask, device) / len(points)
                yield Bare(work, precision, compiled, len(points), us)  # type: ignore[arg-type]

    def _with_parameters(self, points: Tensor) -> float:
        """Microseconds of a forward and a backward pass as in an ordinary script, with gradients of the parameters."""
        with borrowed(self.model, points.device), torch.enable_grad():
            parameters = [one.requires_grad_(True) for one in self.model.parameters() if one.is_floating_point()]

            def work() -> object:
                inputs = points.detach().requires_grad_()
                return torch.autograd.grad(self.model(inputs).sum(), [inputs, *parameters], allow_unused=True)

            us = _timed(work, points.device)
            for one in parameters:
                one.requires_grad_(False)  # as `borrowed` requires; it restores the flags
        return us

    def attack(self, name: str) -> Stepwise[Any]:
        """One of our attacks by name, with the length of this benchmark."""
        entry = registry.ENTRIES[name]
        attack: Stepwise[Any] = entry.kind.of_length(self.budget, self.steps, self.queries, **entry.settings)
        return attack

    def ours(self, attack: Stepwise[Any], precision: Precision, compiled: bool, bare: Mapping[str, float]) -> Timed:
        """Time one of our attacks; `bare`: microseconds of the model for each kind of work, for the ratio."""
        device = self.x.device
        first, below = self._first(attack, Engine(precision, compiled))
        seconds, robust, memory = [], [], None
        for seed in self.seeds:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            with metered() as meter:
                result, took = self.once(attack, Engine(precision, compiled), seed)
            seconds.append(took)
            robust.append(int(result.robust.sum()))
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated()
        useful = int(result.forwards.sum())
        us = 1e6 * seconds[-1] / max(useful, 1)
        work = "input gradient" if attack.needs_gradient else "forward"
        ratio = us / bare[work] if work in bare else None
        return Timed(
            name=attack.name,
            precision=precision,
            compiled=compiled,
            warm_up=first,
            seconds=tuple(seconds),
            robust=tuple(robust),
            images=len(self.x),
            interval=wilson(robust[0], len(self.x)),
            us=us,
            ratio=ratio,
            outside=max(1 - 1 / ratio, 0.0) if ratio else None,
            below=below,
            slots_used=useful / max(meter.slot_steps, 1),
            steps=meter.steps,
            looks=meter.looks,
            denied=meter.denied,
            recorded=meter.recorded,
            memory=memory,
        )

    def _first(self, attack: Stepwise[Any], engine: Engine) -> tuple[float, float | None]:
        """Seconds of a first run, and seconds until robust accuracy was below the verdict, if it was."""
        start, fooled = time.perf_counter(), list[tuple[float, int]]()

        def progress(done: int, total: int, count: int) -> None:
            fooled.append((time.perf_counter() - start, count))

        result, seconds = self.once(attack, engine, self.seeds[0], progress)
        fooled.append((seconds, int(result.fooled.sum())))
        wait_for_compilations()  # the next run uses the code from its first check on
        most = -1.0 if self.verdict is None else self.verdict * len(self.x)
        right = int(result.clean_correct.sum())
        return seconds, next((when for when, count in fooled if right - count < most), None)

    def theirs(self, name: str, attack: Rival) -> Timed:
        """Time another implementation, unchanged, after a first run like ours; our verifier decides on successes."""
        seconds, robust = [], []
        x_adv, first = self._clocked(partial(attack, self.model, self.x, self.y, self.seeds[0]))
        reached = self.verdict is not None and self._left(x_adv) < self.verdict * len(self.x)
        for seed in self.seeds:
            x_adv, took = self._clocked(partial(attack, self.model, self.x, self.y, seed))
            seconds.append(took)
            robust.append(self._left(x_adv))
        return Timed(
            name=name,
            precision="as it comes",
            compiled=False,
            warm_up=first,
            seconds=tuple(seconds),
            robust=tuple(robust),
            images=len(self.x),
            interval=wilson(robust[0], len(self.x)),
            below=first if reached else None,  # it reports nothing before its end
        )

    def _left(self, x_adv: Tensor) -> int:
        with borrowed(self.model, self.x.device):
            oracle = Oracle(self.model, device=self.x.device)
            clean = oracle.answers(self.x, self.batch_size).argmax(1) == self.y
            verdict = verify(oracle, self.budget, self.x, x_adv, self.y, self.y, batch_size=self.batch_size)
        return int((clean & ~verdict.reached).sum())

    def once(
        self, attack: Stepwise[Any], engine: Engine, seed: int, progress: Progress | None = None
    ) -> tuple[Result, float]:
        options: Any = {"seed": seed, "engine": engine, "progress": progress}
        return self._clocked(partial(attack, self.model, self.x, self.y, **options))

    def _clocked(self, work: Callable[[], T]) -> tuple[T, float]:
        _wait(self.x.device)
        start = time.perf_counter()
        result = work()
        _wait(self.x.device)
        return result, time.perf_counter() - start


def measure(
    bench: Bench,
    settings: Sequence[tuple[Precision, bool]],
    rivals: Mapping[str, Rival],
    *,
    names: Sequence[str] = ATTACKS,
    on_row: Callable[[Bare | Timed], None] = lambda row: None,
    **more: Any,
) -> dict[str, Any]:
    """Measure everything in each (precision, compiled); return plain values, with the machine.

    `names`: of our attacks. `on_row`: called with every row as soon as it is measured. `more`: added to the record.
    """
    bare: list[Bare] = []
    for row in bench.bare(settings):
        bare.append(row)
        on_row(row)
    timed: list[Timed] = []
    for precision, compiled in settings:
        costs: dict[str, float] = {
            row.work: row.us for row in bare if (row.precision, row.compiled) == (precision, compiled)
        }
        for name in names:
            timed.append(bench.ours(bench.attack(name), precision, compiled, costs))
            on_row(timed[-1])
    for name, rival in rivals.items():
        timed.append(bench.theirs(name, rival))
        on_row(timed[-1])
    return {
        **more,
        "hardware": hardware(bench.x.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "images": len(bench.x),
        "shape": list(bench.x.shape[1:]),
        "budget": repr(bench.budget),
        "steps": bench.steps,
        "queries": bench.queries,
        "seeds": list(bench.seeds),
        "verdict": bench.verdict,
        "bare": [asdict(row) for row in bare],
        "attacks": [asdict(row) for row in timed],
    }


def draw(record: dict[str, Any], file: Path) -> None:
    """Draw a record as bars: seconds for each attack, ours and others', with the number of images not fooled."""
    rows = sorted(record["attacks"], key=lambda row: -mean(row["seconds"]))
    ours = [row["us"] is not None for row in rows]
    how = [f" ({row['precision']}{', compiled' if row['compiled'] else ''})" for row in rows]
    labels = [row["name"] + (text if mine else "") for row, text, mine in zip(rows, how, ours, strict=True)]
    seconds = [mean(row["seconds"]) for row in rows]
    with figure_style():
        figure = new_figure(7.2, 0.9 + 0.34 * len(rows))
        axes = figure.subplots()
        axes.barh(labels, seconds, color=[colour(0 if mine else 1) for mine in ours], height=0.62)
        axes.set_xscale("log")
        axes.set_xlabel(
            f"seconds, {counted(record['images'], 'images')}, {record['hardware']}; at the bars: images not fooled"
        )
        axes.grid(axis="y", visible=False)
        for bar, row in enumerate(rows):
            left = f" {seconds[bar]:.3g} s, {mean(row['robust']):.0f} left"
            axes.text(seconds[bar], bar, left, va="center", fontsize=8, color=MUTED)
        axes.set_xlim(right=max(seconds) * 4)
        atomic.write(file, png(figure))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one call, without the first ones."""
    for _ in range(3):
        work()
    _wait(device)
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < REPEAT or calls < 3:
        work()
        calls += 1
        if calls % 10 == 0:
            _wait(device)
    _wait(device)
    return 1e6 * (time.perf_counter() - start) / calls
