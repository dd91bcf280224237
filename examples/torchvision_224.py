"""A 224x224 network of torchvision, with the input size and the normalisation that torchvision specifies.

With an internet connection, one line downloads the weights:

    source = sp.load_model("torchvision:resnet34")
    spgd evaluate --model torchvision:resnet34 --data folder:DIR -n 100 --choose balanced --k 200 --steps 300

`folder:DIR` has one sub-folder of pictures per class. So that the example runs anywhere, the weights here are random,
for 10 classes, and are read from a file, like those of your own training.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

import sparsepgd as sp

torch.manual_seed(0)
with TemporaryDirectory() as folder:
    weights = Path(folder) / "mine.safetensors"
    save_file(resnet18(weights=None, num_classes=10).state_dict(), weights)
    source = sp.load_model("torchvision:resnet18", weights=weights)
print(source.about)

x, _ = sp.load_data("bundled", 4)
x = torch.nn.functional.interpolate(x, (224, 224))  # stands for pictures
with torch.no_grad():
    y = source.model(x).argmax(1)
result = sp.SparsePGD(sp.Budget(k=200), steps=10)(source.model, x, y)
print(result)
print("pixels changed:", result.l0.tolist())
