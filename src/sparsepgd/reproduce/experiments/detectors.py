"""Table VII: mAP of a detector before and after sparse attacks. Weights and scenes are not shipped: both are needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sparsepgd.baselines import SAIF
from sparsepgd.detection import Detector, Scenes, attack_detector, predictions_of, read_folder
from sparsepgd.detection.sources import load_detector
from sparsepgd.detection.study import score
from sparsepgd.errors import UnsupportedError
from sparsepgd.problem.rows import tensors
from sparsepgd.reproduce.jobs import ANNEAL, Job, Subject
from sparsepgd.reproduce.parts import Number, Outcome, Part, Plan, kept
from sparsepgd.reproduce.recipe import Recipe, reasons, table
from sparsepgd.runs.identity import digest
from sparsepgd.search import Attack
from sparsepgd.search.loop import Progress
from sparsepgd.threat import Budget, Patches, Pattern

PAPER_SIDE = 640
BUDGETS = {"l0_1600": (1600, None), "l0_3200": (3200, None), "patch4x4_100": (100, 4), "patch4x4_200": (200, 4)}
COLUMNS = ("RS", "SAIF", "sPGD", ANNEAL)
MISSING = (
    "the package has no detector; give one, and a folder with images/, boxes/ and (for segmentation) polygons/ in it: "
    "--model detection=yolov8m.pt --data folder:DIR; detection= and segmentation= take a checkpoint of ultralytics "
    "or FILE.py:FACTORY that returns a detector of torchvision"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class DetectorSubject(Subject):
    """A detector with its pictures; y has the number of objects in each picture, not labels."""

    detector: Detector
    scenes: Scenes
    device: torch.device

    @cached_property
    def model(self) -> Any:
        return self.make()  # already on its device

    def seconds(self, pattern: Pattern, passes: int) -> float:
        """Estimated from a forward pass for one picture; a gradient takes about twice as long."""
        begun = time.perf_counter()
        predictions_of(self.detector, self.model, self.x[:1], self.device)
        return passes * 1.5 * (time.perf_counter() - begun)

    @cached_property
    def clean(self) -> float:
        return self.precision(self.x)

    def precision(self, x: torch.Tensor) -> float:
        """mAP50-95 in percent, over boxes or, for segmentation, over masks."""
        scored = score(self.model, self.detector, self.scenes, x, self.device)
        over = scored.masks if self.role == "segmentation" else scored.boxes
        if over is None:
            raise UnsupportedError(f"{self.name} finds no masks; give a model for segmentation")
        return 100 * over.map50_95


@dataclass(frozen=True, eq=False)
class DetectorCase(Part):
    """One attack on one detector."""

    row: str
    column: str
    subject: DetectorSubject
    attack: Attack

    @property
    def decided(self) -> dict[str, str]:
        truth = (tensor for target in self.subject.scenes.targets for tensor in tensors(target))
        return {"task": self.subject.role, "targets": digest(*truth)}

    @property
    def title(self) -> str:
        return f"{self.subject.name}, {self.attack.name}, {self.row}"

    def run(self, job: Job, progress: Progress | None) -> dict[str, float]:
        """mAP before and after."""
        subject, scenes = self.subject, self.subject.scenes

        def compute() -> dict[str, Any]:
            result = attack_detector(
                self.attack, subject.model, scenes.x, scenes.targets, subject.detector, content=scenes.content,
                seed=job.seed, progress=progress,
            )  # fmt: skip
            return {"clean": subject.clean, "attacked": subject.precision(result.x_adv)}

        numbers = kept(self, job, f"{subject.role}-{self.row}-{self.column}", compute)
        return {name: float(numbers[name]) for name in ("clean", "attacked")}


def detectors(recipe: Recipe, job: Job) -> Plan:
    """Every budget under every attack that supports it."""
    if not job.models or not job.data.startswith("folder:"):
        raise UnsupportedError(MISSING)
    if unknown := [role for role in job.models if role not in recipe.roles]:
        raise UnsupportedError(f"no model {unknown[0]!r} in this table; it has {', '.join(recipe.roles)}")
    subjects = [_subject(role, name, job) for role, name in job.models.items()]
    parts = [
        DetectorCase(row, column, subject, attack)
        for subject in subjects
        for row, (k, side) in BUDGETS.items()
        for column in COLUMNS
        if (attack := _attack(column, _budget(k, side, subject), job)) is not None
    ]

    def finish(done: Sequence[dict[str, float] | None]) -> Outcome:
        value, numbers = table("yolo").value, []
        results = list(zip(parts, done, strict=True))
        clean = {part.subject.role: scores["clean"] for part, scores in results if scores is not None}
        for part, scores in results:
            section = part.subject.role
            if part.column == COLUMNS[0]:
                printed = value(section, part.row, "clean")
                numbers.append(Number(section, part.row, "clean", clean.get(section), printed))
            here = None if scores is None else scores["attacked"]
            printed = value(section, part.row, part.column)
            numbers.append(Number(section, part.row, part.column, here, printed))
        return Outcome("mAP50-95, %", numbers, why)

    side = subjects[0].x.shape[2]
    why = reasons(recipe, job, [], f"pictures: {len(subjects[0].scenes)} of {side}x{side}; the paper: COCO, 640x640",
                  *(f"model: {subject.name}; the paper's is YOLOv8-M" for subject in subjects),
                  f"{ANNEAL} (SparseAnneal), as long as sPGD, is not in the paper")  # fmt: skip
    if job.scale.passes is not None:
        why = (*why, f"SAIF has about {job.scale.passes} passes per image; the paper 300 steps")
    if side != PAPER_SIDE:
        why = (*why, "budgets are scaled with the area, so that the share of pixels is the paper's")
    return Plan(parts, finish, gaps=True)


def _subject(role: str, name: str, job: Job) -> DetectorSubject:
    folder, side = Path(job.data.removeprefix("folder:")), job.size or PAPER_SIDE
    loaded = load_detector(name, job.device)
    scenes = read_folder(folder, side, job.images or min(job.scale.images, 16), masks=role == "segmentation")
    counts = torch.tensor([len(target) for target in scenes.targets])
    return DetectorSubject(
        role, loaded.name, lambda: loaded.model, scenes.x, counts, folder.name, detector=loaded.detector,
        scenes=scenes, device=job.device,
    )  # fmt: skip


def _budget(k: int, side: int | None, subject: DetectorSubject) -> Budget:
    share = (subject.x.shape[2] / PAPER_SIDE) ** 2
    count = max(1, round(k * share))
    return Budget(k=count) if side is None else Budget(k=count, pattern=Patches(side))


def _attack(column: str, budget: Budget, job: Job) -> Attack | None:
    """SAIF does not support patches, and makes only untargeted attempts: a detector has no most likely wrong class."""
    if column == "SAIF":
        steps = 300 if job.scale.passes is None else max(1, job.scale.passes // 3)
        return None if budget.pattern.structured else SAIF(budget, steps, targets=0)
    if column == "sPGD":
        column = "sPGD_p" if budget.pattern.structured else "sPGD_u"
    chosen = job.scale.attack(column, budget)
    assert isinstance(chosen, Attack)
    return chosen
