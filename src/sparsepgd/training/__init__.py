"""Making models robust: adversarial training against sparse perturbations."""

from sparsepgd.training.api import Trained, train
from sparsepgd.training.methods import METHODS, Method
from sparsepgd.training.settings import Settings

__all__ = ["METHODS", "Method", "Settings", "Trained", "train"]
