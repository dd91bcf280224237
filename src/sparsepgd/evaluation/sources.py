"""Where models and images come from, by name. (Here all names are found; the code is in the modules below.)"""

from sparsepgd.evaluation.data import Data, load_data
from sparsepgd.evaluation.listings import Choice, Part
from sparsepgd.evaluation.models import TRAINED, Source, load_model
from sparsepgd.evaluation.pictures import Framing, Size, load_image, save_image
from sparsepgd.evaluation.tensors import as_tensors

__all__ = [
    "TRAINED",
    "Choice",
    "Data",
    "Framing",
    "Part",
    "Size",
    "Source",
    "as_tensors",
    "load_data",
    "load_image",
    "load_model",
    "save_image",
]
