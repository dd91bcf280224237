"""Adversarial training against sparse perturbations."""

from sparsepgd.training.api import Trained, train
from sparsepgd.training.settings import METHODS, Method, Settings

__all__ = ["METHODS", "Method", "Settings", "Trained", "train"]
