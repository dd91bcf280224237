"""How the model is run while the search goes on: precision, compiled code, recorded steps.

It changes the speed, never what counts: every success is confirmed, and every result verified, in full precision
by the model as it was handed over.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from sparsepgd.errors import EngineWarning, UnsupportedError, first_line
from sparsepgd.kernels import ready
from sparsepgd.problem.checks import check_fields, choice
from sparsepgd.problem.compiled import FEW, Beside, Compiled, agree, wait_for_compilations
from sparsepgd.problem.lean import lean
from sparsepgd.problem.precision import full_precision, tf32

T = TypeVar("T")
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
COMPILED_ON = ("cuda",)  # on a CPU compiled code gains less than the compiler costs (docs/long-runs.md)


@dataclass
class Meter:
    """What a search did on the device, counted by the loop."""

    steps: int = 0  # of the whole table
    slot_steps: int = 0  # evaluations, with those of empty or finished slots
    looks: int = 0  # times that the host waited for the device
    denied: int = 0  # successes of the search that full precision denied
    recorded: int = 0  # steps recorded as a CUDA graph
    halved: int = 0  # times that the memory did not suffice


METER: ContextVar[Meter | None] = ContextVar("METER", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    meter = Meter()
    before = METER.set(meter)
    try:
        yield meter
    finally:
        METER.reset(before)


@dataclass(frozen=True)
class Engine:
    """How the model is run during a search. By default the device decides: on a GPU half precision and CUDA graphs;
    elsewhere the precision of the model. In half precision, models with batch normalisation run as a faster copy. The
    memory format is channels-last.

    ``precision``: "bf16" and "fp16" autocast, "tf32" and "fp32" do not. A search compares losses that differ
    only slightly, so fp16, with three more bits of precision than bf16, makes it stronger; a model whose values are
    too large for fp16 uses bf16.
    ``compile``: torch.compile, with one dynamic batch size, in a thread beside the search, which changes over as soon
    as the code is ready; it rounds differently, so two runs may differ in a few images. ``graphs``: a step is recorded
    as a CUDA graph and replayed, on a GPU. Options that a model does not support, and ``compile`` without a GPU, are
    switched off with a warning.
    """

    precision: Precision | None = choice(None, PRECISIONS)
    compile: bool = False
    graphs: bool | None = None
    backend: str = "inductor"  # of torch.compile

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def scale(self) -> float:
        """Of the loss before its gradient is taken, so that small ones do not vanish."""
        return 1024.0 if self.precision == "fp16" else 1.0

    def decided(self, model: Any, x: Tensor, device: torch.device) -> Engine:
        """The engine with all options decided for images like x. A plain function may do anything, so it is recorded as
        a CUDA graph only if `graphs` is set."""
        gpu = device.type == "cuda"
        quick = gpu and x.dtype == torch.float32
        precision: Precision | None = "fp16" if self.precision is None and quick else self.precision
        graphs = isinstance(model, nn.Module) if self.graphs is None else self.graphs
        return replace(self.on(device), precision=precision, graphs=graphs and gpu)

    def on(self, device: torch.device) -> Engine:
        """The engine without compilation, after a warning, if that has no effect on the device."""
        if not self.compile or device.type in COMPILED_ON:
            return self
        words = f"compile=True has no effect on {device.type}: the compiler would take longer than its code saves"
        warnings.warn(f"{words}; use compile=False to silence this", EngineWarning, stacklevel=4)
        return replace(self, compile=False)

    @contextmanager
    def running(self, model: Any, device: torch.device) -> Iterator[Running]:
        """A context with the model run as decided, and with TF32 set as the precision requires."""
        strict = full_precision() if self.precision == "fp32" else tf32() if self.precision else nullcontext()
        run = Running(model, self, device)
        try:
            with strict, warnings.catch_warnings():
                # the compiler looks at the gradient of its inputs, which here is none of its business
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
                yield run
        finally:
            run.beside = None  # a thread may go on for a while, but nobody waits for it
            run.as_it_was()


def cpu_has_bf16() -> bool:
    """Whether the processor has instructions for bf16. Convolutions are faster with them, small models may not be."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def check_engine(engine: Any) -> None:
    if not isinstance(engine, Engine | None):
        raise UnsupportedError(f"engine={engine!r}; expected an Engine, e.g. Engine('fp32')")


class Running:
    """The model under an engine: with channels last, as convolutions like it, and in half precision as a lean copy,
    unless the first answers show that the model does not allow it; compiled from the look on that finds it so."""

    def __init__(self, model: Any, engine: Engine, device: torch.device) -> None:
        self.engine, self.device, self.model, self.call = engine, device, model, model
        able = isinstance(model, nn.Module) and not hasattr(model, "_orig_mod")  # or compiled already
        self.half = HALF.get(engine.precision or "")
        self.within = 0.1 if self.half == torch.bfloat16 else 0.02  # how far logits of the same model may be apart
        self.shown = False
        parameters = model.parameters() if isinstance(model, nn.Module) else ()
        self.kernels = [(one, one.data) for one in parameters if one.dim() == 4]  # with their data as they were
        for kernel, data in self.kernels:
            kernel.data = data.contiguous(memory_format=torch.channels_last)
        self.lean = lean(model, self.half) if able and self.half else None
        self.compiled: Compiled | None = None
        self.uncompiled: set[int] = set()  # sizes of batches for which torch would have to compile it anew
        compiles = able and engine.compile
        self.beside = Beside(partial(Compiled, model, engine.backend), self._ask, self.within) if compiles else None

    def __call__(self, x: Tensor) -> Any:
        answer = self._answer(x)
        if self.beside is not None:
            self.beside.remember(self._laid(x), answer)
        return answer

    def change_over(self) -> bool:
        """At a look: whether the model runs compiled from now on, and did not before. It is compiled from the first
        look on. Where that fails, the search goes on without, after one warning."""
        if self.beside is None:
            return False
        try:
            self.compiled = self.beside.look()
        except Exception as error:
            self.beside = None
            warn(f"{type(self.model).__name__} cannot be compiled ({first_line(error)})", "compile=False")
        if self.compiled is None:
            return False
        self.beside = None
        return True

    def finish(self) -> None:
        """For whoever measures the model after a first call: wait until it is compiled."""
        while self.beside is not None and self.beside.seen is not None:
            self.change_over()
            wait_for_compilations()

    def _answer(self, x: Tensor) -> Any:
        """The first answer shows whether the model takes channels last: it may want a view of contiguous maps."""
        laid = self._laid(x)
        if self.shown or not self.kernels or x.dim() != 4:
            return self._cast(laid)
        try:
            if self.lean is not None:
                self.call = self.lean if self._agrees(self.lean, laid) else self.model
            answer = self._cast(laid)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an error of its own comes again
            self.as_it_was()
            self.call = self.model
            return self._cast(x)
        self.shown = True
        return answer

    def _laid(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.kernels and x.dim() == 4 else x

    def _agrees(self, other: nn.Module, x: Tensor) -> bool:
        """Whether the lean copy gives a few images the logits of the model, as far as half precision goes. Both are
        asked for the whole batch: for each size of a batch, libraries look for their kernels anew."""
        with torch.no_grad(), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            wanted = self._ask(self.model, x)
            self._load_libraries(x)
            try:
                given = self._ask(other, x)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                return False
        both = isinstance(wanted, Tensor) and isinstance(given, Tensor)
        return both and agree([given[:FEW]], [wanted[:FEW]], self.within)

    def _load_libraries(self, x: Tensor) -> None:
        """Instead of waiting for the kernels: a first backward pass, for which torch loads much."""
        if x.requires_grad and not ready(self.device):
            with suppress(Exception), torch.enable_grad():
                point = x.detach().requires_grad_()
                torch.autograd.grad(self._ask(self.model, point).float().sum(), point)

    def _cast(self, x: Tensor) -> Any:
        if self.compiled is not None and len(x) not in self.uncompiled:
            try:
                return self._ask(self.compiled, x)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # there is no code for such a batch, or the model has an error, which comes again
                self.uncompiled.add(len(x))
        return self._ask(self.call, x)

    def _ask(self, model: Any, x: Tensor) -> Any:
        if self.half is None:
            return model(x)
        with torch.autocast(self.device.type, self.half, cache_enabled=False):
            return model(x)

    def as_it_was(self) -> None:
        for kernel, data in self.kernels:
            kernel.data = data
        self.kernels = []


def in_parts(work: Callable[[slice], T], count: int, size: int) -> tuple[list[T], int]:
    """What the work makes of the rows 0 to count - 1, `size` at a time, and how many at a time it was at the end: if
    the memory does not suffice, half as many."""
    parts: list[T] = []
    start = 0
    while start < count:
        stop = min(start + size, count)
        try:
            parts.append(work(slice(start, stop)))
            start = stop
            continue
        except torch.OutOfMemoryError:
            if stop - start == 1:
                raise
        size = (stop - start) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return parts, size


def warn(what: str, instead: str) -> None:
    words = f"{what}; the result is the same but the run is slower; use Engine({instead}) to silence this"
    warnings.warn(words, EngineWarning, stacklevel=4)
