"""The model and the images of a benchmark, as its options name them."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from sparsepgd import zoo
from sparsepgd.problem.oracle import logits_of
from sparsepgd.sources import Data, load_data
from sparsepgd.zoo.registry import ARCHITECTURES

MODEL = "zoo:NAME, or ARCHITECTURE=FILE[,FILE...] of safetensors"
DATA = "npz with x_test or x (N, H, W, C) uint8, and y_test or y; default: bundled images"


def load_network(given: str) -> nn.Module:
    """A model of the zoo, or an architecture with weights in one or several files, converted to float32."""
    architecture, equals, files = given.partition("=")
    if not equals:
        return zoo.load(given.removeprefix("zoo:"))
    network = ARCHITECTURES[architecture]()
    state = {name: value for file in files.split(",") for name, value in load_file(file).items()}
    network.load_state_dict({name: one.float() if one.is_floating_point() else one for name, one in state.items()})
    return network.eval()


def load_images(file: Path | None, n: int) -> Data:
    """The first n images and labels of a file, or of the bundled ones."""
    return load_data("bundled" if file is None else f"npz:{file}", n)


def correct(model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 500) -> Tensor:
    """(B,) bool: which images the model classifies correctly, in full precision."""
    return logits_of(model, x, batch_size).argmax(1) == y
