"""Where the time of the first call in a process goes. Each measurement has a fresh process.

    python benchmarks/cold.py --model prn18-fast-ls --data images.npz --out benchmarks/results/cold-prn18-fast-ls.json
    python benchmarks/cold.py --model small-plain -n 16 --steps 3 --device cpu --out cold.json            # a try

The functions of the package are wrapped from outside; a device is synchronised before and after each of them. The time
of a phase does not contain that of phases within it. Jobs, all unless `--only` names some:

    plain       the attack unchanged, twice in a process; the same in another process, and in one that computes
                gradients in the caller's thread, so that libraries are not set up for a second thread
    phases      the same attack and SparseAnneal, phase by phase, with every recording and every eager step
    official    the authors' code, twice in a process; needs --official
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BEGUN = time.time()
JOBS = ("plain", "plain again", "plain one-thread", "phases spgd", "phases anneal", "official")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="of the zoo")
    parser.add_argument("--data", type=Path, help="npz with x_test or x (N, H, W, C) uint8; default: bundled images")
    parser.add_argument("--data-name", help="of the images, for the record")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--anneal-steps", type=int, default=131)
    parser.add_argument("--official", type=Path, help="a checkout of the authors' code")
    parser.add_argument("--device", help="default: the GPU, if there is one")
    parser.add_argument("--commit", help="of this repository; default: from git")
    parser.add_argument("--only", nargs="+", choices=sorted({job.split()[0] for job in JOBS}))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)  # for the processes that it starts
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


class Clock:
    """Seconds and calls of each phase, without those of the phases within it; events are also listed in order."""

    def __init__(self) -> None:
        self.wait: Callable[[], None] = lambda: None
        self.clear()

    def clear(self) -> None:
        self.phases: dict[str, list[float]] = {}
        self.events: list[list[Any]] = []  # name, size, calls, seconds of the first, seconds of all
        self.within, self.size = [0.0], 0

    @contextmanager
    def phase(self, name: str, size: int | None = None) -> Iterator[None]:
        """`size`: that of the batch, for phases that are listed as events."""
        self.wait()
        start = time.perf_counter()
        self.within.append(0.0)
        try:
            yield
        finally:
            self.wait()
            seconds = time.perf_counter() - start
            inner = self.within.pop()
            self.within[-1] += seconds
            total = self.phases.setdefault(name, [0.0, 0])
            total[0] += seconds - inner
            total[1] += 1
            if size is not None:
                self._note(name, size, seconds - inner)

    def _note(self, name: str, size: int, seconds: float) -> None:
        """Repeated calls are counted as one event; very short ones are left out."""
        if self.events and self.events[-1][:2] == [name, size]:
            self.events[-1][2] += 1
            self.events[-1][4] = round(self.events[-1][4] + seconds, 4)
        elif seconds > 5e-4:
            self.events.append([name, size, 1, round(seconds, 4), round(seconds, 4)])

    def found(self) -> dict[str, Any]:
        phases = {name: [round(seconds, 4), int(calls)] for name, (seconds, calls) in self.phases.items()}
        return {"phases": dict(sorted(phases.items(), key=lambda one: -one[1][0])), "events": self.events}


def wrapped(clock: Clock, owner: Any, name: str, label: str, size: Callable[..., int] | None = None) -> None:
    """Replace a function by one whose time is measured; `size`: the batch size, from its arguments."""
    function = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        with clock.phase(label, size(*args) if size else None):
            return function(*args, **kwargs)

    setattr(owner, name, timed)


def watch(clock: Clock, loads: dict[str, float]) -> None:
    """Wrap the functions that a call consists of."""
    from sparsepgd import kernels
    from sparsepgd.problem import engine, oracle
    from sparsepgd.problem.rows import tensors
    from sparsepgd.search import attack, graphs, stepwise, table

    def rows(stepper: Any, now: Any, *_: Any) -> int:
        clock.size = len(next(tensors(now)))
        return clock.size

    wrapped(clock, oracle.Oracle, "answers", "float32: forward passes", lambda self, x, size: len(x))
    wrapped(clock, oracle.Oracle, "confirmed", "float32: confirmations, besides the model")
    wrapped(clock, attack, "verify", "float32: verification, besides the model")
    wrapped(clock, engine, "lean", "lean copy: made")
    wrapped(clock, engine.Running, "_agrees", "lean copy: compared")
    wrapped(clock, stepwise.Stepwise, "_usable", "trial of fp16")
    wrapped(clock, graphs.Stepper, "_eager", "steps: eager", rows)
    wrapped(clock, graphs, "record", "steps: recording", lambda *_: clock.size)
    wrapped(clock, graphs.Stepper, "__call__", "steps: replayed", rows)
    for name in ("fill", "look", "settle"):
        wrapped(clock, table.Table, name, f"table: {name}")

    load, loading = kernels._load, kernels.loading

    def timed_load(device: Any) -> Any:
        loads.update(triton_loads())
        start = time.perf_counter()
        found = load(device)
        loads["kernels"] = round(time.perf_counter() - start, 4)
        return found

    class Waited:
        def __init__(self, device: Any) -> None:
            self.future = loading(device)

        def done(self) -> bool:
            return self.future.done()

        def result(self) -> Any:
            if self.future.done():
                return self.future.result()
            with clock.phase("waiting for the kernels"):
                return self.future.result()

    kernels._load = timed_load
    kernels.loading = Waited  # type: ignore[assignment]


def triton_loads() -> dict[str, float]:
    """The seconds that Triton needs before it can load kernels; measured in the thread that loads them."""
    start = time.perf_counter()
    try:
        import triton
    except ImportError:
        return {}
    seconds = {"import triton": time.perf_counter() - start}
    places = (getattr(triton.runtime, "cache", None), getattr(triton.compiler, "compiler", None))
    key = next((place.triton_key for place in places if hasattr(place, "triton_key")), None)
    if key is not None:
        start = time.perf_counter()
        key()
        seconds["hash of Triton's compiler"] = time.perf_counter() - start
    return {name: round(value, 4) for name, value in seconds.items()}


class Bench:
    """The model and the images on the device; `start` has the seconds that this took."""

    def __init__(self, args: argparse.Namespace) -> None:
        clock = Clock()
        with clock.phase("import torch"):
            import torch
        with clock.phase("import sparsepgd"):
            from inputs import load_images

            import sparsepgd as sp
        self.args, self.torch, self.sp = args, torch, sp
        self.device = args.device or device()
        with clock.phase("context"):
            torch.zeros(1, device=self.device)
            self.wait()
        with clock.phase("model and images"):
            self.model = sp.zoo.load(args.model).to(self.device).eval()
            self.x, self.y = load_images(args.data, args.n).to(self.device)
            self.wait()
        taken = {name: seconds for name, (seconds, _) in clock.found()["phases"].items()}
        self.start = {"process": round(BEGUN - args.begun, 4), **taken}

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()

    def attack(self, name: str) -> Any:
        budget = self.sp.Budget(k=self.args.k)
        if name == "anneal":
            return self.sp.SparseAnneal(budget, self.args.anneal_steps)
        return self.sp.SparsePGD(budget, self.args.steps, "projected")

    def once(self, name: str, seed: int = 0) -> dict[str, Any]:
        from sparsepgd.problem.engine import metered

        start = time.perf_counter()
        with metered() as meter:
            result = self.attack(name)(self.model, self.x, self.y, seed=seed)
        self.wait()
        seconds = time.perf_counter() - start
        steps = int(result.forwards.sum())
        us = 1e6 * seconds / max(steps, 1)
        known = {"robust": int(result.robust.sum()), "image steps": steps, "us": round(us, 2), "meter": vars(meter)}
        return {"seconds": round(seconds, 4), **known}


def official(bench: Bench) -> dict[str, Any]:
    """The same attack by the authors' code; successes are those that our verifier confirms."""
    from sparsepgd.speed import bench as speed
    from sparsepgd.speed import rivals

    theirs = rivals.official(bench.args.official, bench.args.k, bench.args.steps, 1)["official spgd-projected"]
    job = speed.Bench(bench.model, bench.x, bench.y, bench.sp.Budget(k=bench.args.k), batch_size=500)
    timed = job.theirs("official", theirs)
    seconds = {"first": timed.warm_up, "second": timed.seconds[0]}
    return {call: {"seconds": round(taken, 4), "robust": timed.robust[0]} for call, taken in seconds.items()}


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def plain(bench: Bench, variant: str) -> dict[str, Any]:
    """Two calls without any wrapped function."""
    bench.torch.autograd.set_multithreading_enabled(variant != "one-thread")
    return {"first": bench.once("spgd"), "second": bench.once("spgd")}


def phases(bench: Bench, name: str) -> dict[str, Any]:
    clock, loads = Clock(), dict[str, float]()
    clock.wait = bench.wait
    watch(clock, loads)
    found: dict[str, Any] = {}
    for call, seed in (("first", 0), ("second", 0), ("another seed", 1)):
        clock.clear()
        once = bench.once(name, seed)
        rest = once["seconds"] - sum(seconds for seconds, _ in clock.phases.values())
        found[call] = {**once, **clock.found(), "rest": round(rest, 4)}
    return {**found, "loads beside it": loads}


def measured(args: argparse.Namespace) -> None:
    """One job, in this process."""
    bench = Bench(args)
    kind, _, name = args.job.partition(" ")
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "plain": lambda: plain(bench, name),
        "phases": lambda: phases(bench, name),
        "official": lambda: official(bench),
    }
    found = {"start": bench.start, **jobs[kind]()}
    args.out.write_text(json.dumps(found))


def shown(job: str, found: dict[str, Any]) -> None:
    print(f"\n== {job}: start {found.pop('start')}")
    for name, call in found.items():
        parts = {key: call.pop(key) for key in ("phases", "events") if key in call}
        print(f"  {name}: {call}")
        for key, value in parts.items():
            print(f"    {key}")
            rows = value.items() if isinstance(value, dict) else value
            print(*(f"      {row}" for row in rows), sep="\n")


def main() -> None:
    args = arguments()
    if args.job:
        measured(args)
        return
    jobs = [job for job in JOBS if not args.only or job.split()[0] in args.only]
    jobs = [job for job in jobs if job != "official" or args.official]
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            file = Path(folder) / "found.json"
            words = [sys.executable, __file__, *sys.argv[1:], "--job", job, "--out", str(file)]
            done = subprocess.run([*words, "--begun", str(time.time())], check=False)
            if done.returncode == 0:
                found[job] = json.loads(file.read_text())
                shown(job, json.loads(file.read_text()))
    from inputs import load_images
    from provenance import head, write_record

    args.device, seconds = args.device or device(), round(time.perf_counter() - begun, 1)
    lengths = {"seed": 0, "steps": args.steps, "anneal steps": args.anneal_steps, "seconds": seconds}
    record = {**head(args, *load_images(args.data, args.n)), "model": args.model, **lengths, "jobs": found}
    write_record(args.out, record)


if __name__ == "__main__":
    main()
