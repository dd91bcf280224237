"""Table VII: mAP of a detector before and after sparse changes. Neither weights nor scenes ship: give both."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from sparsepgd.detection import (
    Detector,
    Scenes,
    TorchvisionDetector,
    Yolo,
    attack_detector,
    load_yolo,
    mean_average_precision,
    predictions_of,
    read_folder,
)
from sparsepgd.detection.yolo import is_yolo
from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.paper import table
from sparsepgd.reproduce.parts import Number, Outcome, Plan, finished, keep
from sparsepgd.reproduce.recipe import Recipe, reasons
from sparsepgd.reproduce.scales import passes
from sparsepgd.reproduce.subjects import Job
from sparsepgd.runs import identity
from sparsepgd.search import Attack
from sparsepgd.search.loop import Progress
from sparsepgd.sources import load_model
from sparsepgd.threat import Budget, Patches, Pattern

PAPER_SIDE = 640
OVER: dict[str, Literal["boxes", "masks"]] = {"detection": "boxes", "segmentation": "masks"}
BUDGETS = {"l0_1600": (1600, None), "l0_3200": (3200, None), "patch4x4_100": (100, 4), "patch4x4_200": (200, 4)}
COLUMNS = ("RS", "SAIF", "sPGD")
MISSING = (
    "no detector ships; give one, and a folder with images/, boxes/ and (for segmentation) polygons/ in it: "
    "--model detection=yolov8m.pt --data folder:DIR; detection= and segmentation= take a checkpoint of ultralytics "
    "or FILE.py:FACTORY that returns a detector of torchvision"
)


@dataclass(frozen=True, eq=False)
class Scene:
    """A detector with its pictures."""

    role: str
    name: str
    model: Any
    detector: Detector
    scenes: Scenes
    device: torch.device
    data: str
    training: int = 0
    stand_in: bool = False

    @property
    def x(self) -> torch.Tensor:
        return self.scenes.x

    def seconds(self, pattern: Pattern, passes: int) -> float:
        """By one look at one picture; a gradient takes about twice as long as that."""
        begun = time.perf_counter()
        predictions_of(self.detector, self.model, self.x[:1], self.device)
        return passes * 1.5 * (time.perf_counter() - begun)

    def seconds_of_training(self) -> float:
        return 0.0

    @cached_property
    def clean(self) -> float:
        return self.precision(self.x)

    def precision(self, x: torch.Tensor) -> float:
        """mAP50-95 in percent."""
        predictions = predictions_of(self.detector, self.model, x, self.device)
        return 100 * mean_average_precision(predictions, self.scenes.targets, OVER[self.role]).map50_95


@dataclass(frozen=True, eq=False)
class Sight:
    """One attack on one detector."""

    row: str
    column: str
    subject: Scene
    attack: Attack

    @property
    def passes(self) -> int:
        return len(self.subject.scenes) * passes(self.attack)

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.attack.name}, {self.row}"

    def run(self, job: Job, progress: Progress | None) -> dict[str, float]:
        """mAP before and after, kept in a file named after all that decides it."""
        subject = self.subject
        labels = torch.tensor([len(target) for target in subject.scenes.targets])
        names = {"model": subject.name, "data": subject.data, "task": subject.role}
        decided = identity.configuration(self.attack, subject.model, subject.x, labels, names, job.seed)
        digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:10]
        file = finished(job, f"{subject.role}-{self.row}-{self.column}-{digest}")
        if not file.is_file():
            result = attack_detector(
                self.attack, subject.model, subject.x, subject.scenes.targets, subject.detector,
                content=subject.scenes.content, seed=job.seed, progress=progress,
            )  # fmt: skip
            values = {"clean": subject.clean, "attacked": subject.precision(result.x_adv)}
            keep(file, {"configuration": decided, **values})
        content = json.loads(file.read_text())
        return {name: float(content[name]) for name in ("clean", "attacked")}


def detectors(recipe: Recipe, job: Job) -> Plan:
    """Every budget under every attack that takes it."""
    if not job.models or not job.data.startswith("folder:"):
        raise UnsupportedError(MISSING)
    job.chosen(recipe.roles)
    subjects = [_scene(role, name, job) for role, name in job.models.items()]
    parts = [
        Sight(row, column, subject, attack)
        for subject in subjects
        for row, (k, side) in BUDGETS.items()
        for column in COLUMNS
        if (attack := _attack(column, _budget(k, side, subject), job)) is not None
    ]

    def finish(done: Sequence[dict[str, float]]) -> Outcome:
        value, numbers = table("yolo").value, []
        for part, found in zip(parts, done, strict=True):
            section = part.subject.role
            if part.column == COLUMNS[0]:
                numbers.append(Number(section, part.row, "clean", found["clean"], value(section, part.row, "clean")))
            printed = value(section, part.row, part.column)
            numbers.append(Number(section, part.row, part.column, found["attacked"], printed))
        return Outcome("mAP50-95, %", numbers, words)

    side = subjects[0].x.shape[2]
    words = reasons(recipe, job, [], f"pictures: {len(subjects[0].scenes)} of {side}x{side}; the paper: COCO, 640x640",
                    *(f"model: {subject.name}; the paper's is YOLOv8-M" for subject in subjects))  # fmt: skip
    if side != PAPER_SIDE:
        words = (*words, "budgets are scaled with the area, so that the share of pixels is the paper's")
    return Plan(parts, finish)


def _scene(role: str, name: str, job: Job) -> Scene:
    folder, side = Path(job.data.removeprefix("folder:")), job.size or PAPER_SIDE
    model = load_yolo(Path(name))[0] if name.endswith(".pt") else load_model(name).model
    detector: Detector = Yolo.of(model) if is_yolo(model) else TorchvisionDetector()
    scenes = read_folder(folder, side, job.images or min(job.scale.images, 16), masks=role == "segmentation")
    return Scene(role, Path(name).name, model.to(job.device).eval(), detector, scenes, job.device, folder.name)


def _budget(k: int, side: int | None, subject: Scene) -> Budget:
    share = (subject.x.shape[2] / PAPER_SIDE) ** 2
    count = max(1, round(k * share))
    return Budget(k=count) if side is None else Budget(k=count, pattern=Patches(side))


def _attack(column: str, budget: Budget, job: Job) -> Attack | None:
    """SAIF has no patches, and untargeted attempts alone: a detector has no likeliest wrong class."""
    if column == "SAIF":
        from sparsepgd.baselines import SAIF

        steps = 300 if job.scale.passes is None else max(1, job.scale.passes // 3)
        return None if budget.pattern.structured else SAIF(budget, steps, targets=0)
    name = "sPGD_u" if column == "sPGD" and not budget.pattern.structured else "sPGD_p" if column == "sPGD" else column
    chosen = job.scale.attack(name, budget)
    assert isinstance(chosen, Attack)
    return chosen
