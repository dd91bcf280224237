"""The effect of each point in which the paper and the authors' code differ; docs/deviations.md quotes these records.

    python benchmarks/deviations.py --model preact_resnet18 --weights NAME.safetensors --data npz:cifar10.npz \
        --official path/to/sPGD --out benchmarks/results/deviations-NAME.json

Model and data are named as for `spgd evaluate`.

Every variant changes one thing of `SparsePGD`; the authors' code, if a checkout is given, runs in the same
process on the same images. The numbers count images that are still classified correctly (fewer: stronger).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from inputs import correct
from provenance import command, named, origin, write_record
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import options
from sparsepgd.problem.engine import Engine
from sparsepgd.runs.identity import hardware
from sparsepgd.search.noise import Stream
from sparsepgd.search.spgd import State
from sparsepgd.sources import load_pairs
from sparsepgd.speed import bench, rivals


@dataclass(frozen=True, eq=False)
class Variant(sp.SparsePGD):
    """SparsePGD with one rule of table 1.3 changed (the letters are those of docs/deviations.md)."""

    rank: str = "sigmoid"  # h: what TopK ranks, "sigmoid" or "raw"
    detect: str = "mask"  # h: what must change to count as a change: the "mask", or the ranking of the "raw" w
    ties: str = "first"  # h: which of equal entries is chosen: the "first", or a "random" one at each step
    counter: str = "cumulative"  # f: only a redraw resets it to 0; "consecutive": every change of the mask does
    after: str = "stale"  # g: a new mask moves at once by the gradient of the old one; "fresh": by its own gradient;
    # "idle": after one step without a gradient

    def top(self, threat: Any, w: Tensor, index: Tensor, step: Tensor, noise: Any) -> Tensor:
        s = w.sigmoid()
        if self.rank == "raw":
            return plain_top_k(w, self.budget.k)
        if self.ties == "first":
            return threat.top_k(s, None)
        lots = (noise.uniform(Stream.COIN, index, step, threat.grid) * 2**20).long()
        return plain_top_k((s.view(torch.int32).long() << 20) + lots, self.budget.k)

    def update(self, threat: Any, images: Any, state: State, seen: Any, step: Tensor, noise: Any) -> State:
        plain = self.rank == "sigmoid" and self.detect == "mask" and self.ties == "first"
        if plain and self.counter == "cumulative" and self.after == "stale":
            return super().update(threat, images, state, seen, step, noise)
        p, w, v = state.p, state.w, state.v
        g, s = seen.gradient.to(p.dtype), w.sigmoid()
        if self.after == "idle":  # n = -1 marks the evaluation after a redraw
            g = torch.where((state.n < 0).view(-1, 1, 1, 1), 0, g)
        g_p = g * (threat.expand(s) if self.gradient == "unprojected" else threat.expand(v))
        g_w = threat.gather(g * p) * s * (1 - s)
        p = images.clip(p + self.alpha * self.budget.eps * g_p.sign())
        norm = g_w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        move = self._beta(threat) * torch.where(norm >= self.gamma, g_w / norm, 0)
        stuck = (state.n >= self.tolerance).view(-1, 1, 1, 1)
        again = noise.normal(Stream.MASK, images.index, step + 1, threat.grid)
        moved = torch.where(stuck, again + move if self.after == "stale" else again, w + move)
        v_new = self.top(threat, moved, images.index, step, noise)
        if self.detect == "raw":
            same = (plain_top_k(moved, self.budget.k) == plain_top_k(w, self.budget.k)).flatten(1).all(1)
        else:
            same = (v_new == v).flatten(1).all(1)
        n = state.n.clamp(min=0)
        count = torch.where(same, n + 1, n if self.counter == "cumulative" else 0)
        return State(p, moved, v_new, torch.where(stuck.flatten(), -1 if self.after == "idle" else 0, count))


def plain_top_k(score: Tensor, k: int) -> Tensor:
    flat = score.flatten(1)
    best = flat.topk(k, sorted=False).indices
    return torch.zeros(flat.shape, device=flat.device).scatter_(1, best, 1.0).view_as(score)


VARIANTS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "h: rank raw w": {"rank": "raw"},
    "h: detect change in raw w": {"detect": "raw"},
    "h: ties at random": {"ties": "random"},
    "f: consecutive counter": {"counter": "consecutive"},
    "g: fresh gradient after redraw": {"after": "fresh"},
    "g: idle step after redraw": {"after": "idle"},
    "f+g: consecutive and fresh": {"counter": "consecutive", "after": "fresh"},
    "c: gamma 2e-10": {"gamma": 2e-10},
    "m: redraw one evaluation earlier": {"tolerance": 2},
    "m: redraw one evaluation later": {"tolerance": 4},
    "m: never redraw": {"tolerance": 10**9},
    "k: margin loss": {"loss": "margin"},
    "d: beta by the image": {"beta_scale": "image"},
    "d: beta by the group grid": {"beta_scale": "grid"},
    "groups stay where they were drawn": {"beta": 1e-12, "tolerance": 10**9},
}


def measure(args: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, write: Any) -> None:
    budget = sp.Budget(k=args.k, pattern=options.pattern(args.pattern))
    job = bench.Bench(model, x, y, budget, seeds=range(args.seeds), batch_size=500)
    official = rivals.official(args.official, args.k, args.steps, args.steps) if args.official else {}
    names = [name for name in VARIANTS if args.only is None or any(part in name for part in args.only)]
    for gradient in args.gradients:
        if official:
            timed = job.theirs("official code", official[f"official spgd-{gradient}"])
            write(gradient, "official code", timed.robust, timed.seconds)
        for name in names:
            attack = Variant(budget, args.steps, gradient, **VARIANTS[name])
            results, seconds = zip(*(job.once(attack, Engine(), seed) for seed in job.seeds), strict=True)
            write(gradient, name, [int(result.robust.sum()) for result in results], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--official", type=Path)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--pattern", default="pixel")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gradients", nargs="+", default=["unprojected", "projected"])
    parser.add_argument("--only", nargs="+", help="parts of the variants' names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    ((source, (x, y)),) = load_pairs(
        [args.model], args.data, args.n, choose="first", device=args.device, weights=args.weights
    )
    model = source.model.to(args.device).eval()
    clean = int(correct(model, x, y).sum())
    print(f"clean {clean} of {len(x)}")
    record = {
        "command": command(),
        **origin(args.data),
        "data": named(args.data),
        "model": args.weights.stem if args.weights else source.name,
        "images": len(x),
        "clean": clean,
        "k": args.k,
        "pattern": args.pattern,
        "steps": args.steps,
        "seeds": list(range(args.seeds)),
        "hardware": hardware(torch.device(args.device)),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rows": [],
    }

    def write(gradient: str, variant: str, robust: Sequence[int], seconds: Sequence[float]) -> None:
        times = [round(one, 2) for one in seconds]
        print(f"{gradient:12} {variant:34} {list(robust)}  mean {fmean(robust):.1f}  {times} s", flush=True)
        record["rows"].append({"gradient": gradient, "variant": variant, "robust": list(robust), "seconds": times})
        write_record(args.out, record)

    measure(args, model, x, y, write)


if __name__ == "__main__":
    main()
