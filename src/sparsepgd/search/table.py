"""The table of slots: images under attack, waiting images and results.

Every few steps the host looks at the table: finished images leave, and waiting images take their slots, so that the
batch stays full. When no image waits any more, the batch shrinks. On a GPU a new batch size must be recorded first
(graphs.py), so there empty slots are kept until a new size is worth it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from sparsepgd.problem.engine import METER, Meter, Running
from sparsepgd.problem.oracle import Evaluator
from sparsepgd.problem.rows import join, select, tensors, waits_for_host
from sparsepgd.search.graphs import Stepper
from sparsepgd.search.loop import Best, Images, Slots, Step, Waiting, no_success, start
from sparsepgd.search.noise import Noise
from sparsepgd.threat import Threat

if TYPE_CHECKING:
    from sparsepgd.search.attack import Task
    from sparsepgd.search.stepwise import Stepwise

S = TypeVar("S")

SMALLEST = 32  # images in a batch on a GPU; fewer take as long
LONGEST = 64  # steps between two looks at a GPU
SHORT = 8  # steps that a finished image may stay in its slot
RECORDING = 8000 * 3 * 32 * 32  # cost of a new batch size: entries of images times steps
COARSE = 128  # largest difference between two sizes of the batches that confirm successes
CLAIMS = 256  # successes that are confirmed together on a GPU
PATIENCE = 32  # largest number of steps that a success waits for its confirmation


def run(search: Stepwise[S], task: Task, running: Running) -> Best:
    """Search for adversarial versions of all images of the task, at most `batch_size` at a time.

    The search evaluates the model as it is `running`; the oracle of the task confirms successes.
    """
    engine, oracle, threat, waiting = running.engine, task.oracle, task.threat, task.waiting
    step = Step(search, oracle.running(running, engine.scale), threat, task.noise, search.keeps)
    stepper: Stepper[Slots[S]] = Stepper(step, bool(engine.graphs), METER.get() or Meter())
    table = Table(search, oracle, threat, task.noise, waiting, stepper, task.batch_size)
    interval = LookInterval(LONGEST if table.on_device else 1)
    total, done = len(waiting.x) * search.evaluations, 0
    while table.fill(interval.horizon):
        if running.change_over():
            stepper.forget()
        table.advance(interval.every)
        left = table.look()
        interval.adapt(left, table.count)
        if task.progress is not None:
            done = max(done, total - table.evaluations_left())  # images with a denied success are attacked again
            task.progress(done, total, table.fooled)
    return table.best


@dataclass
class LookInterval:
    """The number of steps between two looks: fewer if many images finish, more if few do.

    A look costs about as much as a step, and the slot of a finished image is idle until the next look. So about a fifth
    of the images should finish between two looks.
    """

    longest: int
    every: int = 1
    horizon: int = 1  # expected steps until half of the images are finished

    def adapt(self, left: int, stayed: int) -> None:
        self.horizon = self.every * (stayed + 1) // (left + 1)
        if 3 * left > left + stayed:
            self.every = max(1, self.every // 2)
        elif 8 * left < left + stayed:
            self.every = min(2 * self.every, self.longest)


@dataclass(eq=False)
class Table(Generic[S]):
    search: Stepwise[S]
    oracle: Evaluator
    threat: Threat
    noise: Noise
    waiting: Waiting
    stepper: Stepper[Slots[S]]
    slots: int

    def __post_init__(self) -> None:
        self.on_device = waits_for_host(self.threat.kernel.device)
        self.entries = math.prod(self.threat.shape)  # of an image
        self.best = no_success(self.waiting, self.search.evaluations)
        self.fooled = 0  # number of successes in `best`
        self.largest = min(self.slots, len(self.waiting.x))
        self.parked: list[Slots[S]] = []  # to be continued: after denied successes or lack of memory
        self.leaving: list[Slots[S]] = []  # finished images and unconfirmed successes
        self.waited = 0  # steps since the first of these left its slot
        self.live: Slots[S] | None = None
        self.size = 0  # of the batch
        self.count = 0  # images in the slots; empty slots are the last rows
        self.under_way = self.newest = self.oldest = 0  # evaluations of the images in the slots: sum, least, most

    def fill(self, horizon: int = 1) -> bool:
        """Give free slots to waiting images; False if all are done. `horizon`: expected steps with the new size."""
        if self.live is None and not len(self.waiting.x) and not self.parked:
            self.settle()
        fresh = self._admit()
        if fresh:
            here = [] if self.live is None else [select(self.live, slice(0, self.count))]
            self.live = join(*here, *fresh)
            self.count = len(self.live.step)
        if self.live is not None:
            self.size = self._batch_size(horizon)
            self.live = self._padded(self.live, self.size)
        return self.live is not None

    def advance(self, steps: int) -> None:
        """Take `steps` steps, or fewer if images finish earlier. If memory is too small, half of them are parked."""
        assert self.live is not None
        last = self.search.evaluations
        steps = min(steps, max(last - self.oldest, SHORT), last - self.newest)
        self.waited += steps * bool(self.leaving)
        try:
            self.live = self.stepper(self.live, steps)
            return
        except torch.OutOfMemoryError:
            if self.count == 1:
                raise
        self.stepper.forget()
        self.stepper.meter.halved += 1
        self.slots = self.largest = self.count // 2
        self.parked.append(select(self.live, slice(self.slots, self.count)))
        self.live, self.count = select(self.live, slice(0, self.slots)), self.slots
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def look(self) -> int:
        """Remove finished images and unconfirmed successes from their slots; returns how many."""
        now = self.live
        assert now is not None
        taken = now.images.row >= 0
        leaves = ((now.step >= self.search.evaluations) | (now.best.fooled & self.search.early_stop)) & taken
        if self.search.keeps == "latest":
            self.live = now = self._confirm_new(now)
        gone = self._survey(now, taken & ~leaves)
        if gone:
            self.leaving.append(select(now, leaves.nonzero()[:, 0]))
            stays = (~leaves & taken).nonzero()[:, 0]
            self.live, self.count = (select(now, stays) if len(stays) else None), len(stays)
        enough = CLAIMS if self.on_device else 1
        if sum(len(part.step) for part in self.leaving) >= enough or self.waited >= PATIENCE:
            self.settle()
        return gone

    def settle(self) -> None:
        """Record the images that left. A success counts only if the model confirms it in full precision; otherwise the
        search on the image continues if it has evaluations left."""
        if not self.leaving:
            return
        now = join(*self.leaving)
        self.leaving, self.waited = [], 0
        images, best = now.images, now.best
        claimed = best.fooled.nonzero()[:, 0]
        if len(claimed):
            real = self._confirmed(select(images, claimed), best.x_adv[claimed])
            best.fooled[claimed] = real
            best.step[claimed] = torch.where(real, best.step[claimed], self.search.evaluations)
        done = best.fooled | (now.step >= self.search.evaluations)
        gone, back = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
        self._record(images.row[gone], select(best, gone))
        if len(back):
            self.parked.append(select(now, back))

    def _confirmed(self, images: Images, x_adv: Tensor) -> Tensor:
        """(B,) bool: whether these points are successes in full precision. On a GPU the last point is repeated so that
        there are few batch sizes, because libraries select their kernels anew for each size."""
        count = size = len(x_adv)
        if self.on_device and (rest := count % self.slots):  # a power of 2, a multiple of COARSE, or a full batch
            unit = min(max(1 << (rest - 1).bit_length(), SMALLEST), COARSE)
            size += min(-(-rest // unit) * unit, self.slots) - rest
        rows = torch.arange(size, device=x_adv.device).clamp(max=count - 1)
        real = self.oracle.confirmed(x_adv[rows], images.y[rows], images.label[rows], self.slots)[:count]
        self.stepper.meter.denied += len(real) - int(real.sum())
        return real

    def _record(self, row: Tensor, best: Best) -> None:
        """Write the outcome of some images to their rows; a failure does not replace a success."""
        row = row.to(self.best.step.device)
        news = best.fooled.to(row.device) | ~self.best.fooled[row]
        self.fooled += int((best.fooled.to(row.device) & ~self.best.fooled[row]).sum())
        for into, of in zip(tensors(self.best), tensors(best), strict=True):
            into[row[news]] = of.to(into.device)[news]

    def _confirm_new(self, now: Slots[S]) -> Slots[S]:
        """For a search that continues after a success: confirm new successes and record them now, because the next one
        may be denied. Denied successes are dropped."""
        row = now.images.row.clamp(min=0).to(self.best.step.device)
        known = self.best.fooled[row] & (self.best.step[row] == now.best.step.to(row.device))
        fresh = (now.best.fooled & (now.images.row >= 0) & ~known.to(now.step.device)).nonzero()[:, 0]
        if not len(fresh):
            return now
        images, none = select(now.images, fresh), torch.zeros_like(now.best.fooled)
        held = self._confirmed(images, now.best.x_adv[fresh])
        real, denied = none.index_copy(0, fresh, held), none.index_copy(0, fresh, ~held)
        sure = real.nonzero()[:, 0]
        self._record(now.images.row[sure], select(now.best, sure))
        step = torch.where(denied, self.search.evaluations, now.best.step)
        best = replace(now.best, fooled=now.best.fooled & ~denied, step=step)
        return replace(now, state=self.search.judged(now.state, real, denied), best=best)

    def evaluations_left(self) -> int:
        """The largest number of evaluations that may follow, for all images."""
        parked = sum(int((self.search.evaluations - part.step).sum()) for part in self.parked)
        return (self.count + len(self.waiting.x)) * self.search.evaluations - self.under_way + parked

    def _survey(self, now: Slots[S], stays: Tensor) -> int:
        """Read with one synchronisation how many images leave (returned) and the evaluations of those that stay."""
        newest = torch.where(stays, now.step, self.search.evaluations).amin()
        counts = [stays.sum(), (now.step * stays).sum(), newest, (now.step * stays).amax()]
        stayed, self.under_way, self.newest, self.oldest = torch.stack(counts).tolist()
        self.stepper.meter.looks += 1
        return self.count - int(stayed)

    def _admit(self) -> list[Slots[S]]:
        """Images for the free slots: first parked, then waiting ones."""
        fresh, room = [], self.slots - self.count
        if self.live is None:
            self.newest, self.oldest, self.under_way = self.search.evaluations, 0, 0
        if self.parked and room > 0:
            everyone = join(*self.parked)
            self.parked = [select(everyone, slice(room, None))] if len(everyone.step) > room else []
            fresh.append(select(everyone, slice(0, room)))
            room -= len(fresh[0].step)
            steps: list[int] = fresh[0].step.tolist()
            self.newest, self.oldest = min(self.newest, *steps), max(self.oldest, *steps)
            self.under_way += sum(steps)
        if len(self.waiting.x) and room > 0:
            entering = Images.entering(select(self.waiting, slice(0, room)), self.threat, self.search.quantize)
            self.waiting = select(self.waiting, slice(room, None))
            fresh.append(start(self.search, self.threat, entering, self.noise))
            self.newest = 0
        return fresh

    def _batch_size(self, horizon: int) -> int:
        """The batch size. The last one is kept while its empty slots cost less than a new size."""
        if not self.on_device:
            return self.count
        fit = max(-(-self.count // 8) * 8, SMALLEST)
        fit = min(fit, max(self.largest, self.count))
        empty = (self.size - fit) * min(horizon, self.search.evaluations - self.newest)
        return self.size if 0 <= empty * self.entries < RECORDING else fit

    def _padded(self, live: Slots[S], size: int) -> Slots[S]:
        """The batch with empty slots at the end, up to the size."""
        if len(live.step) == size:
            return live
        taken = select(live, slice(0, self.count))
        empty = select(live, torch.zeros(size - self.count, dtype=torch.int64, device=live.step.device))
        images = replace(empty.images, row=torch.full_like(empty.images.row, -1))
        over = torch.full_like(empty.step, self.search.evaluations)
        return join(taken, replace(empty, images=images, step=over))
