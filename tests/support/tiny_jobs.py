"""A job that takes seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsepgd.reproduce.jobs import Job, scale


def tiny_job(out: Path, images: int = 2, **changes: Any) -> Job:
    lengths = {"images": images, "steps": 3, "queries": 6, "passes": 12, "epochs": 1, "training_images": 100}
    return Job(replace(scale("smoke"), name="tiny", **lengths), out, changes.pop("models", {}), **changes)
