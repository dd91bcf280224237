"""The model compiled by torch in a thread beside the search, which runs it uncompiled until then: nothing waits for the
compiler."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from threading import Thread, main_thread
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

T = TypeVar("T")
Call = Callable[..., Any]

FEW = 16  # images with which a model is compiled, and on which what is compiled or copied is compared with it
ALIKE = 3  # blocks for each set of shapes from which on one of them is compiled, and not the whole model
TRIES = 3  # a compilation during which the search switches TF32 off and on again may give code for the wrong setting
UNDER_WAY: WeakSet[Thread] = WeakSet()  # compilations


class Compiled:
    """A model compiled for batches of many sizes; it works on a copy of the modules that shares their weights. Only
    `make` compiles. To call it with images for which there is no code is an error."""

    def __init__(self, model: nn.Module, backend: Any) -> None:
        self.model, self.backend = model, backend
        self.code: Call | None = None
        shared: dict[int, Any] = {id(one): one for one in model.buffers()}
        # parameters of its own, with the same data: those of the model are as they were as soon as the call ends
        shared |= {id(one): nn.Parameter(one.data, requires_grad=False) for one in model.parameters()}
        try:
            self.model = copy.deepcopy(model, shared)
        except Exception:  # of what a model holds besides: files, locks, sockets; then the thread shares it
            return

    def make(self, x: Tensor) -> Any:
        """Have it compiled for images like x; what it says of them."""
        if self.code is None:
            blocks = repeated(self.model)
            for block in blocks:
                block.forward = self._code(block.forward)
            self.code = self.model if blocks else self._code(self.model)
        # every model of a class counts against the limit of that class, after which torch falls back silently
        with torch._dynamo.config.patch(recompile_limit=64):
            return self.code(x)

    def __call__(self, x: Tensor) -> Any:
        assert self.code is not None
        with torch.compiler.set_stance("fail_on_recompile"):
            return self.code(x)

    def _code(self, function: Any) -> Call:
        # padding of matrix products ties the code to a range of batch sizes: another range, another compilation
        settings: Any = {"shape_padding": False} if self.backend == "inductor" else None
        code: Call = torch.compile(function, backend=self.backend, options=settings)

        def run(*inputs: Any, **options: Any) -> Any:
            for x in inputs:
                if isinstance(x, Tensor) and x.dim():
                    torch._dynamo.maybe_mark_dynamic(x, 0)
                    for dimension in range(1, x.dim()):  # images of another size get code of their own
                        torch._dynamo.mark_static(x, dimension)
            return code(*inputs, **options)

        return run


def repeated(model: nn.Module) -> list[nn.Module]:
    """The blocks of one class that hold most of the weights, if many of them have the same shapes: they share code."""
    kinds: dict[type, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            for block in module.children():
                if not type(block).__module__.startswith("torch."):
                    kinds.setdefault(type(block), []).append(block)
    blocks = max(kinds.values(), key=_weights, default=[])
    shapes = {tuple(one.shape for one in block.parameters()) for block in blocks}
    many = len(blocks) >= ALIKE * len(shapes) and 2 * _weights(blocks) > _weights([model])
    return blocks if many else []


def _weights(modules: list[nn.Module]) -> int:
    return sum(one.numel() for module in modules for one in module.parameters())


class Beside:
    """A model on its way to be compiled: from the first answer that it gives, to a look that finds the code ready."""

    def __init__(self, compiled: Callable[[], Compiled], ask: Callable[[Call, Tensor], Any], within: float) -> None:
        """`compiled`: makes it of the model as it is after its first answer. `ask`: calls it in the precision of the
        search. `within`: how far the logits may be apart."""
        self.get, self.ask, self.within = cache(compiled), ask, within
        # images, whether gradients were on, and what the uncompiled model said of them
        self.seen: tuple[Tensor, bool, list[Tensor]] | None = None
        self.making: Future[None] | None = None
        self.tries = TRIES

    def remember(self, x: Tensor, answer: Any) -> None:
        if self.seen is None and len(x) > 1:  # torch makes code of its own for a batch of 1
            few = x[:FEW].detach().clone().requires_grad_(x.requires_grad)
            self.seen = few, torch.is_grad_enabled(), [one[:FEW].detach().clone() for one in _tensors(answer)]

    def look(self) -> Compiled | None:
        """Begin, or see whether it is done. An error: it cannot be compiled, or says something else then."""
        if self.seen is None:
            return None
        code = self.get()
        if self.making is None:
            self.making = beside(partial(self._make, code))
        if not self.making.done():
            return None
        self.making.result()
        few, gradients, wanted = self.seen
        try:
            with torch.set_grad_enabled(gradients):
                given = _tensors(self.ask(code, few))
        except Exception:
            self.tries -= 1
            if not self.tries:
                raise
            self.making = None
            return None
        if not agree(given, wanted, self.within):
            raise ArithmeticError("compiled code gives other logits")
        return code

    def _make(self, code: Compiled) -> None:
        assert self.seen is not None
        few, gradients, _ = self.seen
        with torch.cuda.device(few.device if few.is_cuda else -1), torch.set_grad_enabled(gradients):
            said = [one for one in _tensors(self.ask(code.make, few)) if one.requires_grad]
            if said and few.requires_grad:  # the code for the backward pass is made by a first one
                torch.autograd.grad([one.sum() for one in said], few)


def beside(work: Callable[[], T]) -> Future[T]:
    """The work in a thread of its own. Its backward passes are done in it, too: torch has one thread for those of all
    others, which the search needs. It is no daemon: one that is within torch when Python ends takes the process down
    with an error."""
    future: Future[T] = Future()

    def run() -> None:
        _silence_at_exit()
        try:
            with torch.autograd.set_multithreading_enabled(False):
                future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=run, name="sparsepgd-compile")
    UNDER_WAY.add(thread)
    thread.start()
    return future


def _silence_at_exit() -> None:
    """When Python ends in the middle of a compilation, torch logs that it cannot start its workers any more. Nobody
    waits for them then."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch")]
    for handler in {handler for one in loggers for handler in one.handlers}:
        if _needed not in handler.filters:
            handler.addFilter(_needed)


def _needed(record: logging.LogRecord) -> bool:
    return main_thread().is_alive()


def compiling() -> bool:
    return any(thread.is_alive() for thread in UNDER_WAY)


def wait_for_compilations() -> None:
    """For whoever measures compiled code."""
    for thread in list(UNDER_WAY):
        thread.join()


def agree(given: list[Tensor], wanted: list[Tensor], within: float) -> bool:
    """Whether tensors have the same shapes, and are apart by at most this share of the largest entry."""
    if not wanted or [one.shape for one in given] != [one.shape for one in wanted]:
        return False
    pairs = [(one.detach().float(), other.detach().float()) for one, other in zip(given, wanted, strict=True)]
    return all(bool((one - other).abs().max() <= within * other.abs().max()) for one, other in pairs if one.numel())


def _tensors(output: Any) -> list[Tensor]:
    """Of what a model says: those with numbers that have a gradient."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return [one for part in parts for one in _tensors(part)]
