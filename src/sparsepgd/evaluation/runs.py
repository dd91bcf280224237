"""An evaluation in a folder, chunk by chunk. Run again, it goes on where it stopped, and ends with the same result.

Each chunk is attacked under the numbers of its images, so that the random numbers of an image are its own. What is
left of the chunks' influence is round-off: a model may answer differently in the last bit in a batch of another size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from sparsepgd.errors import SourceError, UnsupportedError
from sparsepgd.evaluation import identity, sanity
from sparsepgd.evaluation.chunks import Attacker, Task, attack_chunk, decoded, image_file
from sparsepgd.evaluation.folders import Folder, load, load_adversarial, sha256
from sparsepgd.evaluation.records import Chunk, Head, Notice, Record
from sparsepgd.evaluation.summary import wilson
from sparsepgd.problem import Untargeted
from sparsepgd.problem.checks import check_images, check_labels
from sparsepgd.problem.oracle import Model, Oracle, borrowed
from sparsepgd.problem.verify import verify
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget

CHUNK, CHUNK_ON_DEVICE = 100, 1000  # images that a kill may cost, on a CPU and elsewhere


def run(
    folder: str | Path | None,
    attack: Attacker,
    model: Model,
    data: tuple[Tensor, Tensor],
    config: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    chunk: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Record:
    """Attack all images of `data` (x, y), or go on with what is in the folder, or read what is finished there.

    `folder`: None writes nothing and attacks all images at once. `config`: names for the record, {"model": ...,
    "data": ...} and others; together with the hyper-parameters, the seed and the sha256 of weights and images
    they tell runs apart, and a folder with another run is refused. `chunk`: images between two writes.
    `stop`: asked before each chunk; if it says so the run ends early, and the record is marked unfinished.
    """
    check_images(data[0], bool(getattr(attack, "quantize", False)))
    x, y = data[0].detach(), check_labels(data[1], data[0])
    size = _chunk_size(x, chunk)
    task = Task(attack, model, x, y, seed, batch_size, progress)
    configuration = identity.configuration(attack, model, x, y, config or {}, seed)
    if folder is None:
        head = _head(task, configuration)
        return _record(head, [attack_chunk(task, "", 0, len(x), 0)[0]], attack.name, "")
    place = Folder(folder)
    with place.held():
        found = _found(place, configuration)
        if isinstance(found, Record):
            return found
        if found is None:
            found = _head(task, configuration)
            place.begin(found)
        return _go_on(place, task, found, size, stop)


def recheck(
    folder: str | Path, model: Model, data: tuple[Tensor, Tensor], *, budget: Budget | None = None, batch_size: int = 64
) -> int:
    """How many of the successes that the record reports hold: read from the files, and verified afresh.

    All of them should. `budget`: only for patterns of your own, which a record cannot build again.
    """
    record, tensors = load(folder), load_adversarial(folder)
    x, y = data[0], check_labels(data[1], data[0])
    _same("model.sha256", record.configuration["model"]["sha256"], identity.model_digest(model))
    _same("data.sha256", record.configuration["data"]["sha256"], identity.digest(x, y))
    fooled = torch.tensor([row.fooled for row in record.rows], device=x.device)
    quantize = tensors["x_adv"].dtype == torch.uint8
    x_adv = decoded(tensors["x_adv"].to(x.device), x)
    allowed = tensors.get("allowed")
    if allowed is not None and allowed.dim() == 3:
        allowed = allowed[fooled.cpu()]
    if not bool(fooled.any()):
        return 0
    rules = budget or identity.budget_of(record.configuration["attack"], allowed)
    with borrowed(model, x.device):
        oracle, true = Oracle(model, Untargeted()), y[fooled]
        verdict = verify(oracle, rules, x[fooled], x_adv[fooled], true, true, quantize=quantize, batch_size=batch_size)
    return int(verdict.reached.sum())


def folders(out: Path | None, models: Sequence[str], attacks: Sequence[str]) -> list[list[Path | None]]:
    """For each attack, a folder for each model: `out` itself, or sub-folders of it if there are several."""
    if out is None:
        return [[None] * len(models) for _ in attacks]
    levels = [[Path(name) for name in _unique(words)] if len(words) > 1 else [Path()] for words in (models, attacks)]
    return [[out / model / attack for model in levels[0]] for attack in levels[1]]


def _unique(words: Sequence[str]) -> list[str]:
    """Words as names of folders: plain characters, and a number where two would be the same."""
    plain = [re.sub(r"[^\w.-]+", "-", word) for word in words]
    return [word if plain.index(word) == i else f"{word}-{i + 1}" for i, word in enumerate(plain)]


def _chunk_size(x: Tensor, chunk: int | None) -> int:
    if not len(x):
        raise SourceError("no images to attack; use at least one")
    if chunk is not None and chunk < 1:
        raise UnsupportedError(f"chunk={chunk}; use at least 1 image")
    return chunk or (CHUNK if x.device.type == "cpu" else CHUNK_ON_DEVICE)


def _head(task: Task, configuration: identity.Plain) -> Head:
    found = sanity.examine(task.model, task.x, task.y, task.batch_size)
    return Head(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        configuration=configuration,
        environment=identity.environment(task.x.device),
        classes=found.classes,
        warnings=found.notices,
    )


def _found(place: Folder, configuration: identity.Plain) -> Head | None:
    """The run in the folder; another one is refused, unless nothing is lost with it."""
    found = place.head()
    other = identity.differences(found.configuration, configuration) if found else []
    if not other:
        return found
    if not isinstance(found, Record) and not place.images_done():
        return None
    raise UnsupportedError(
        f"{place.path} holds another run: {'; '.join(other)}; choose another --out or delete the folder"
    )


def _go_on(place: Folder, task: Task, head: Head, size: int, stop: Callable[[], bool] | None) -> Record:
    head = _mixed(head, identity.environment(task.x.device))
    run_id = sha256(json.dumps(head.configuration, sort_keys=True).encode())
    done = place.chunks(run_id)
    for start, end in _missing(done, len(task.x), size):
        if stop is not None and stop():
            done.sort(key=lambda chunk: chunk.part.start)
            return _record(head, done, task.attack.name, "", finished=False)
        made, images = attack_chunk(task, run_id, start, end, sum(_fooled(chunk) for chunk in done))
        done.append(place.add(made, {"x_adv": images}))
    done.sort(key=lambda chunk: chunk.part.start)
    data = image_file(task, [place.images(chunk)["x_adv"] for chunk in done])
    record = _record(head, done, task.attack.name, sha256(data))
    place.finish(record, data)
    return record


def _mixed(head: Head, now: dict[str, str]) -> Head:
    """Another version or device gives other round-off: allowed, but said."""
    other = identity.differences(head.environment, now)
    if not other:
        return head
    notice = Notice("mixed", f"the run was begun elsewhere: {'; '.join(other)}; round-off may differ between chunks")
    return head.model_copy(update={"warnings": (*head.warnings, notice)})


def _missing(done: Sequence[Chunk], n: int, size: int) -> Iterator[tuple[int, int]]:
    """The images that no chunk holds yet, at most `size` at a time."""
    have = {i for chunk in done for i in range(chunk.part.start, chunk.part.stop)}
    start = 0
    while start < n:
        end = start
        while end < n and end not in have and end - start < size:
            end += 1
        if end > start:
            yield start, end
        start = max(end, start + 1)


def _record(head: Head, chunks: Sequence[Chunk], attack: str, images: str, finished: bool = True) -> Record:
    rows = tuple(row for chunk in chunks for row in chunk.rows)
    clean = sum(row.clean_correct for row in rows)
    robust = sum(row.clean_correct and not row.fooled for row in rows)
    said = [*head.warnings, *(notice for chunk in chunks for notice in chunk.warnings)]
    said += sanity.review(rows, head.classes, attack)
    return Record(
        **head.model_dump(exclude={"warnings"}),
        warnings=tuple(dict.fromkeys(said)),
        finished=finished,
        images=len(rows),
        clean_accuracy=clean / max(len(rows), 1),
        clean_interval=wilson(clean, len(rows)),
        robust_accuracy=robust / max(len(rows), 1),
        robust_interval=wilson(robust, len(rows)),
        seconds=sum(chunk.part.seconds for chunk in chunks),
        adversarial=images,
        chunks=tuple(chunk.part for chunk in chunks),
        rows=rows,
    )


def _fooled(chunk: Chunk) -> int:
    return sum(row.fooled for row in chunk.rows)


def _same(what: str, recorded: object, now: object) -> None:
    if recorded != now:
        raise UnsupportedError(
            f"{what} was {str(recorded)[:12]}..., is {str(now)[:12]}...; hand over the model and images of the run"
        )
