"""An evaluation in a folder, chunk by chunk. An interrupted run resumes and gives the same result.

The random numbers of an image depend on its index, not on its chunk. Chunks influence the result only by round-off:
the logits of an image may differ in the last bits between batches of different sizes. Several workers take turns at
the chunks, so their result is that of a single process; it is the same to the bit if `chunk` and `batch_size` are
given and the same, because then every image is in the same batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from sparsepgd.analysis import sanity
from sparsepgd.analysis.summary import wilson
from sparsepgd.distributed import Workers
from sparsepgd.errors import FolderError, SourceError, SparsePGDError, UnsupportedError
from sparsepgd.problem.checks import check_counts, check_images, check_labels, check_tensor
from sparsepgd.problem.engine import Engine, check_engine
from sparsepgd.problem.oracle import Model, working_device
from sparsepgd.problem.shapes import seen_as_images
from sparsepgd.runs import identity
from sparsepgd.runs.chunks import FINE, Task, all_images, attack_chunk
from sparsepgd.runs.folders import Folder, load_adversarial, sha256
from sparsepgd.runs.records import About, Chunk, Head, Record
from sparsepgd.search.contract import Attacker, adopted
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget

CHUNK, CHUNK_ON_DEVICE = 100, 1000  # most images per chunk, which a killed worker may lose: on a CPU, elsewhere
ALONE = Workers()


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
    engine: Engine | None = None,
    progress: Progress | None = None,
    workers: Workers = ALONE,
    about: About | None = None,
    keep: Callable[[Tensor], None] | None = None,
) -> Record:
    """Attack all images of `data` (x, y), or resume the run in the folder, or read it if it is finished.

    `folder`: None writes nothing and attacks all images at once. `config`: names for the record, {"model": ...,
    "data": ...} and others. They identify a run, with the hyper-parameters (of foreign attacks, if they are
    dataclasses), the seed and the sha256 of weights and images. A run of a plain function can be resumed only if the
    model has a name.
    `chunk`: images between two writes.
    `workers`: each calls this with the same arguments, for one folder, and gets the same record; only the first reports
    progress, for its own images. `about`: for readers of the record; default: the class names of `data`.
    `keep`: called with the adversarial images, as they are stored, if the run has no folder.
    """
    about = about or About(class_names=getattr(data, "class_names", ()))
    check_tensor(data[0])
    attacker = adopted(attack, budget=Budget(k=max(data[0][:1, :1].numel(), 1)))  # foreign attacks: all pixels
    check_images(seen_as_images(data[0], attacker.budget), attacker.quantize)
    check_counts(batch_size=batch_size)
    check_engine(engine)
    x, y = data[0].detach(), check_labels(data[1], data[0])
    device = working_device(model, x)
    size = chunk_size(len(x), chunk, workers.world, device)
    engine = None if engine is None else engine.on(device)
    task = Task(attacker, model, x, y, seed, batch_size, engine, progress if workers.first else None)
    configuration = identity.configuration(attack, model, x, y, config or {}, seed)
    if folder is None:
        if workers.world > 1:
            raise UnsupportedError(
                f"{workers.world} workers need a common folder; use --out with one that all of them can access"
            )
        head = _head(task, configuration, about)
        made, images = attack_chunk(task, "", 0, len(x), 0)
        if keep is not None:
            keep(images)
        return _record(task, head, [made], "")
    run_folder = Folder(folder)
    with run_folder.locked() if workers.first else nullcontext():
        head = workers.share(lambda: _opened(run_folder, task, configuration, about, named="model" in (config or {})))
        other = identity.differences(head.configuration, configuration)
        if other := other or identity.other_answers(head.answers, model, x):
            raise FolderError(f"worker {workers.rank} has different settings than the first: {'; '.join(other)}")
        if isinstance(head, Record):
            return _note_engine(head, _environment(task))
        return _resume(run_folder, task, head, size, workers)


def folders(out: Path | None, models: Sequence[str], attacks: Sequence[str]) -> list[list[Path | None]]:
    """For each attack, a folder for each model: `out` itself, or sub-folders of it if there are several."""
    if out is None:
        return [[None] * len(models) for _ in attacks]
    levels = [_folder_names(names) if len(names) > 1 else [""] for names in (models, attacks)]
    return [[out / model / attack for model in levels[0]] for attack in levels[1]]


def _folder_names(names: Sequence[str]) -> list[str]:
    """The names in plain characters, with a number appended where two would be the same."""
    plain = [re.sub(r"[^\w.+-]+", "-", name) for name in names]
    return [name if plain.index(name) == i else f"{name}-{i + 1}" for i, name in enumerate(plain)]


def chunk_size(count: int, chunk: int | None, world: int, device: torch.device) -> int:
    """Images per chunk. By default, chunks are short enough that every worker has one."""
    if not count:
        raise SourceError("no images to attack; use at least one")
    if chunk is not None and not (isinstance(chunk, Integral) and chunk >= 1):
        raise UnsupportedError(f"chunk={chunk!r}; use at least 1 image")
    return chunk or min(CHUNK if device.type == "cpu" else CHUNK_ON_DEVICE, -(-count // world))


def _head(task: Task, configuration: identity.Plain, about: About) -> Head:
    classes, notices = sanity.examine(task.model, task.x, task.y, task.batch_size)
    random = any(notice.code == "randomised" for notice in notices)
    return Head(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        configuration=configuration,
        environment=_environment(task),
        classes=classes,
        answers=() if random else identity.answers(task.model, task.x),
        about=about,
        warnings=(*notices, *sanity.trial(task.attack, task.model, task.x, task.y)),
    )


def _environment(task: Task) -> dict[str, str]:
    return identity.environment(working_device(task.model, task.x), task.engine)


def _opened(folder: Folder, task: Task, configuration: identity.Plain, about: About, named: bool) -> Head:
    """The run in the folder, a Record if it is finished, or a new one. A different run is an error, but is replaced if
    none of its images are finished."""
    head = folder.head()
    if head is not None:
        other = identity.differences(head.configuration, configuration)
        recognisable = named or configuration["model"]["sha256"] is not None
        if recognisable and not other:
            other = identity.other_answers(head.answers, task.model, task.x)
        if recognisable and not other:
            if isinstance(head, Record):
                load_adversarial(folder.path, head)  # raises if the images are missing or damaged
            return head
        if isinstance(head, Record) or folder.images_done():
            raise FolderError(_refusal(folder.path, head, other))
    head = _head(task, configuration, about)
    folder.begin(head)
    return head


def _refusal(folder: Path, head: Head, other: list[str]) -> str:
    """Why the run in the folder is not resumed, and what to do. `other`: in what it differs; [] for a plain function
    without a name."""
    if not other:
        return (
            f"{folder} holds a run of a plain function, which cannot be recognised; "
            'name the model, names={"model": ...} in sp.evaluate, or choose another folder'
        )
    advice = "choose another --out or delete the folder"
    began = head.environment.get("torch", torch.__version__)
    if began != torch.__version__ and any(one.startswith("model.sha256") for one in other):
        advice = f"if it is the same model, resume with torch {began}, which describes models differently, or {advice}"
    return f"{folder} holds another run: {'; '.join(other)}; {advice}"


def _resume(folder: Folder, task: Task, head: Head, size: int, workers: Workers) -> Record:
    """Attack the missing images, and merge all chunks."""
    mixed = _mixed(head, workers.gather(_environment(task)))
    run_id = sha256(json.dumps(head.configuration, sort_keys=True).encode())
    fooled, missing = workers.share(lambda: _plan(folder.chunks(run_id), len(task.x), size))
    for start, end in missing[workers.rank :: workers.world]:
        made, images = attack_chunk(task, run_id, start, end, fooled)
        made = made.model_copy(update={"warnings": (*made.warnings, *mixed)})
        fooled += _fooled(folder.add(made, images))
    workers.gather(None)  # waits for all
    return workers.share(lambda: _merged(folder, task, head, run_id))


def _plan(done: Sequence[Chunk], n: int, size: int) -> tuple[int, list[tuple[int, int]]]:
    """The number of images fooled so far, and the chunks still to be attacked."""
    return sum(map(_fooled, done)), list(_missing(done, n, size))


def _merged(folder: Folder, task: Task, head: Head, run_id: str) -> Record:
    """All chunks in the folder as one record; the chunks are deleted."""
    folder.wait_for(len(task.x))
    done = sorted(folder.chunks(run_id), key=lambda chunk: chunk.part.start)
    missing = next(_missing(done, len(task.x), len(task.x)), None)
    if missing is not None:
        raise SparsePGDError(
            f"images {missing[0]} to {missing[1] - 1} were attacked but are not in {folder.path}; "
            "use an --out that all workers can access, and run the same command again"
        )
    images = all_images(task, [chunk.part for chunk in done], map(folder.images, done))
    record = _record(task, head, done, folder.write_images(images))
    folder.finish(record)
    if task.progress is not None:
        task.progress(len(task.x) * FINE, len(task.x) * FINE, sum(map(_fooled, done)))
    return record


def _mixed(head: Head, now: Sequence[dict[str, str]]) -> tuple[sanity.Notice, ...]:
    """Warn of other versions or devices, which change round-off. The device numbers of workers do not count. The notice
    is stored with the chunks, so it is not lost if the run is resumed once more where it began."""
    every = (identity.differences(head.environment, {**one, "device": now[0]["device"]}) for one in now)
    other = list(dict.fromkeys(chain.from_iterable(every)))
    if not other:
        return ()
    message = f"the run was started in another environment: {'; '.join(other)}; round-off may differ between chunks"
    return (sanity.Notice("mixed", message),)


def _note_engine(record: Record, now: dict[str, str]) -> Record:
    """A finished run is not repeated. If it used another engine than the one requested, a notice says so."""
    before, requested = (one.get("engine", "no engine given") for one in (record.environment, now))
    if before == requested:
        return record
    message = f"this run was finished with {before} and only read; to run it with {requested}, choose another --out"
    return record.model_copy(update={"warnings": (*record.warnings, sanity.Notice("only-read", message))})


def _missing(done: Sequence[Chunk], n: int, size: int) -> Iterator[tuple[int, int]]:
    """The images that are in no chunk yet, at most `size` at a time."""
    have = {i for chunk in done for i in range(chunk.part.start, chunk.part.stop)}
    start = 0
    while start < n:
        end = start
        while end < n and end not in have and end - start < size:
            end += 1
        if end > start:
            yield start, end
        start = max(end, start + 1)


def _record(task: Task, head: Head, chunks: Sequence[Chunk], images: str) -> Record:
    rows = tuple(row for chunk in chunks for row in chunk.rows)
    clean = sum(row.clean_correct for row in rows)
    robust = sum(row.robust for row in rows)
    notices = [*head.warnings, *(notice for chunk in chunks for notice in chunk.warnings)]
    notices += sanity.review(rows, head.classes, task.attack)
    return Record(
        **head.model_dump(exclude={"warnings"}),
        warnings=tuple(dict.fromkeys(notices)),
        images=len(rows),
        clean_accuracy=clean / len(rows),
        clean_interval=wilson(clean, len(rows)),
        robust_accuracy=robust / len(rows),
        robust_interval=wilson(robust, len(rows)),
        seconds=sum(chunk.part.seconds for chunk in chunks),
        adversarial=images,
        chunks=tuple(chunk.part for chunk in chunks),
        rows=rows,
    )


def _fooled(chunk: Chunk) -> int:
    return sum(row.fooled for row in chunk.rows)
