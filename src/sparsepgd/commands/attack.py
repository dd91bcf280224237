"""`spgd attack`: attack one image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from sparsepgd import atomic, options
from sparsepgd.analysis.summary import describe_budget
from sparsepgd.commands import arguments as arg
from sparsepgd.commands.common import command_line, device_named, out, progress, suggest
from sparsepgd.errors import UnsupportedError, counted
from sparsepgd.problem import Goal, Targeted, Untargeted
from sparsepgd.problem.oracle import logits_of
from sparsepgd.runs.identity import plain
from sparsepgd.sources import Source, load_image, load_model, save_image
from sparsepgd.threat import Budget


def attack(
    image: Annotated[str, typer.Argument(help="An image file, or bundled:NUMBER.")],
    model: arg.Model = "zoo:small-plain",
    weights: arg.Weights = None,
    trust: arg.Trust = False,
    normalise: arg.Normalise = None,
    label: Annotated[int | None, arg.of_input(help="The true class. Default: the prediction of the model.")] = None,
    target: Annotated[int | None, arg.of_attack(help="The target class. Default: any wrong class.")] = None,
    k: arg.K = 20,
    pattern: arg.PatternName = "pixel",
    eps: arg.Eps = "1",
    attack: arg.AttackName = "anneal",
    steps: arg.Steps = 1000,
    queries: arg.Queries = 10_000,
    seed: arg.Seed = 0,
    out_file: Annotated[Path, arg.of_output("--out", help="The adversarial PNG file.")] = Path("adversarial.png"),
    device: arg.Device = None,
    quiet: arg.Quiet = False,
) -> None:
    """Attack one image with 8-bit values, write it as PNG, read it back and print what the model predicts."""
    atomic.check(out_file)
    if out_file.is_file() and Path(image).is_file() and out_file.samefile(image):
        raise UnsupportedError(f"--out {out_file} is the image itself, which would be lost; choose another --out")
    source = load_model(model, weights=weights, trust=trust, normalise=normalise)
    where = device_named(device)
    net = source.model.to(where).eval()
    x, (width, height) = load_image(image, source.size, source.grey)
    if (width, height) != (x.shape[3], x.shape[2]):
        out.print(f"{image}: {width}x{height}, cropped and resized to {x.shape[3]}x{x.shape[2]} for {source.name}")
    budget = Budget(k=k, pattern=options.pattern(pattern), eps=options.eps(eps))
    search = options.attack(attack, budget, steps, quantize=True, queries=queries)
    goal: Goal = Untargeted() if target is None else Targeted(target)
    x = x.to(where)
    before = logits_of(net, x, 1).softmax(1)[0]  # probabilities (classes,)
    y = torch.tensor([int(before.argmax()) if label is None else label], device=where)
    with progress(f"{source.name}, {search.name}", quiet) as report:
        result = search(net, x, y, seed=seed, goal=goal, progress=report)
    save_image(result.x_adv[0], out_file)
    read = load_image(str(out_file), None, source.grey)[0].to(where)
    after = logits_of(net, read, 1).softmax(1)[0]
    out.print(f"before  {_answer(source, before)}")
    out.print(f"after   {_answer(source, after)}   read back from {out_file}", soft_wrap=True)
    changed = int((read != x).any(1).sum())
    if not bool(result.forwards):
        out.print(f"the model does not predict {source.class_name(int(y))} for the clean image; nothing was changed")
    elif bool(result.fooled) and torch.equal(read, result.x_adv) and int(after.argmax()) == int(result.prediction):
        out.print(
            f"fooled  {counted(changed, 'pixels')} changed, {counted(int(result.steps), 'steps')}, verified on the file"
        )
        if not quiet:
            of_model = {"model": model, "weights": weights, "trust": trust, "normalise": normalise}
            evaluate = command_line("evaluate", **of_model, attack=attack, k=k, pattern=pattern, eps=eps)
            suggest(f"measure how often this works, on many images: {evaluate}")
        return
    else:
        out.print(
            f"not fooled with {describe_budget(plain(budget))}; the best attempt changes {counted(changed, 'pixels')}; "
            f"try a larger --k or more --{'steps' if search.needs_gradient else 'queries'}"
        )
    raise typer.Exit(1)


def _answer(source: Source, probabilities: torch.Tensor) -> str:
    best = int(probabilities.argmax())
    return f"{source.class_name(best)} ({float(probabilities[best]):.1%})"
