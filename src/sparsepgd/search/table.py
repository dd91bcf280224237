"""The slots: who is at work, who waits, who is done.

At a look the finished leave and the waiting take their place, so that the batch stays full to the end. When nobody
waits any more the batch is cut to size, but only where that pays: on a device a new size has to be recorded first
(graphs.py), so that empty slots are kept for a while. On a CPU every size is as good as another.
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

SMALLEST = 32  # images of a batch on a device; fewer cost as much
LONGEST = 64  # steps between two looks at a device
SHORT = 8  # steps that a finished image may idle in its slot for the others' sake
RECORDING = 8000 * 3 * 32 * 32  # entries of images, each for one step, that cost as much as a new size
COARSE = 128  # the largest step from one size to the next of batches in which successes are confirmed
CLAIMS = 256  # successes that are confirmed together on a device
PATIENCE = 32  # steps that they wait for it at most


def run(search: Stepwise[S], task: Task, running: Running) -> Best:
    """Search for all images of the task; at most `batch_size` of them are on the device's table at a time.

    The model as it is `running` is asked during the search, the oracle of the task confirms.
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
            done = max(done, total - table.evaluations_left())  # a denied success goes back to work
            task.progress(done, total, table.fooled)
    return table.best


@dataclass
class LookInterval:
    """How many steps lie between two looks: few while many images leave, more when few do.

    A look costs about as much as a step, an idle slot its share of one; so a look should find a fifth of the images
    gone, more or less.
    """

    longest: int
    every: int = 1
    horizon: int = 1  # steps until half of the images will have left, if it goes on like this

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
        self.fooled = 0  # of those in `best`
        self.largest = min(self.slots, len(self.waiting.x))
        self.parked: list[Slots[S]] = []  # to go on later: denied successes, and those for whom there was no memory
        self.leaving: list[Slots[S]] = []  # finished, or successful as the search sees it; to be confirmed together
        self.waited = 0  # steps since the first of them left
        self.live: Slots[S] | None = None
        self.size = 0  # of the batch
        self.count = 0  # images in the slots; empty slots are the last rows
        self.under_way = self.newest = self.oldest = 0  # evaluations done: of all in the slots, fewest, most

    def fill(self, horizon: int = 1) -> bool:
        """Give free slots to those who wait; False when nobody is left. `horizon`: steps that a size will last."""
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
        """So many steps, or fewer if images finish before. If the memory does not suffice, half of them are parked."""
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
        """Finished images, and those that the search takes for fooled, leave the table; how many they are."""
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
        """Write those who leave to their place. A success counts only if the model confirms it in full precision;
        otherwise the image goes on from where it was, if it has evaluations left."""
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
        """(B,) bool: whether these points are successes in full precision. On a device the last one is repeated so that
        there are few sizes of batches: for each of them, libraries look for their kernels anew."""
        count = size = len(x_adv)
        if self.on_device and (rest := count % self.slots):  # a power of 2, a multiple of COARSE, or a full batch
            unit = min(max(1 << (rest - 1).bit_length(), SMALLEST), COARSE)
            size += min(-(-rest // unit) * unit, self.slots) - rest
        rows = torch.arange(size, device=x_adv.device).clamp(max=count - 1)
        real = self.oracle.confirmed(x_adv[rows], images.y[rows], images.label[rows], self.slots)[:count]
        self.stepper.meter.denied += len(real) - int(real.sum())
        return real

    def _record(self, row: Tensor, best: Best) -> None:
        """The outcome of some images, unless a success is known for an image and this is none."""
        row = row.to(self.best.step.device)
        news = best.fooled.to(row.device) | ~self.best.fooled[row]
        self.fooled += int((best.fooled.to(row.device) & ~self.best.fooled[row]).sum())
        for into, of in zip(tensors(self.best), tensors(best), strict=True):
            into[row[news]] = of.to(into.device)[news]

    def _confirm_new(self, now: Slots[S]) -> Slots[S]:
        """Of a search that goes on after a success, write down the new ones that are confirmed: the next may be
        denied. Those that are denied now are forgotten."""
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
        """At most, for all who are at work or wait."""
        parked = sum(int((self.search.evaluations - part.step).sum()) for part in self.parked)
        return (self.count + len(self.waiting.x)) * self.search.evaluations - self.under_way + parked

    def _survey(self, now: Slots[S], stays: Tensor) -> int:
        """What the host must know, in one question: how many leave, and the evaluations of those who stay."""
        newest = torch.where(stays, now.step, self.search.evaluations).amin()
        counts = [stays.sum(), (now.step * stays).sum(), newest, (now.step * stays).amax()]
        stayed, self.under_way, self.newest, self.oldest = torch.stack(counts).tolist()
        self.stepper.meter.looks += 1
        return self.count - int(stayed)

    def _admit(self) -> list[Slots[S]]:
        """As many as there is room for: first those who were parked, then those who wait."""
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
        """The size of the batch: that of before as long as less is lost by its empty slots than by a new one."""
        if not self.on_device:
            return self.count
        fit = max(-(-self.count // 8) * 8, SMALLEST)
        fit = min(fit, max(self.largest, self.count))
        empty = (self.size - fit) * min(horizon, self.search.evaluations - self.newest)
        return self.size if 0 <= empty * self.entries < RECORDING else fit

    def _padded(self, live: Slots[S], size: int) -> Slots[S]:
        """With empty slots at the end, as many as it takes."""
        if len(live.step) == size:
            return live
        taken = select(live, slice(0, self.count))
        empty = select(live, torch.zeros(size - self.count, dtype=torch.int64, device=live.step.device))
        images = replace(empty.images, row=torch.full_like(empty.images.row, -1))
        over = torch.full_like(empty.step, self.search.evaluations)
        return join(taken, replace(empty, images=images, step=over))
