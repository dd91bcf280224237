"""Attack a detector with 64 pixels and with 4 patches of 4x4, and print how much its training loss grows.

python examples/detector.py                      a small torchvision detector, trained for some seconds on drawn boxes
python examples/detector.py DIR yolov8n.pt       YOLOv8 (pip install 'sparsepgd[yolo]') on a folder with images/ and
                                                 boxes/ in YOLO's text format; for mAP: spgd detect DIR --model ...
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

import sparsepgd as sp
from sparsepgd import detection

SIZE = 96


def drawn_boxes(count: int) -> detection.Scenes:
    """Grey images with a red or a green box each; the upper and lower rows count as padding."""
    x = torch.full((count, 3, SIZE, SIZE), 0.4)
    content = torch.zeros(count, SIZE, SIZE, dtype=torch.bool)
    content[:, 12:-12] = True
    targets = []
    for i, (left, top) in enumerate(torch.randint(14, 50, (count, 2)).tolist()):
        x[i, i % 2, top : top + 30, left : left + 30] = 0.9
        targets.append(detection.Target(torch.tensor([[left, top, left + 30.0, top + 30.0]]), torch.tensor([i % 2])))
    return detection.Scenes(x, content, tuple(targets), tuple(f"drawn-{i}" for i in range(count)))


def trained_detector(scenes: detection.Scenes, steps: int = 120) -> nn.Module:
    layers = [nn.Conv2d(3, 16, 5, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1)]
    backbone = nn.Sequential(*layers, nn.ReLU())
    backbone.out_channels = [32]
    model = SSD(backbone, DefaultBoxGenerator([[2]], scales=[0.3, 0.4]), (SIZE, SIZE), num_classes=3).train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    truth = [{"boxes": target.boxes, "labels": target.labels + 1} for target in scenes.targets]
    for _ in range(steps):
        loss = sum(model(list(scenes.x), truth).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    if len(sys.argv) > 2:
        scenes = detection.read_folder(Path(sys.argv[1]), size=640, n=2)
        model, _ = detection.load_yolo(Path(sys.argv[2]))
        objective = detection.Yolo.of(model)
    else:
        print("no folder given: a small detector on drawn boxes; the top of this file says how to use real ones")
        torch.manual_seed(0)
        scenes = drawn_boxes(8)
        model, objective = trained_detector(scenes), detection.TorchvisionDetector()
    for budget in (sp.Budget(k=64), sp.Budget(k=4, pattern=sp.Patches(4))):
        attack = sp.SparsePGD(budget, steps=30)
        result = detection.attack_detector(attack, model, scenes.x, scenes.targets, objective, content=scenes.content)
        before, after = result.clean_loss.mean(), result.loss.mean()
        print(f"{budget}: loss {before:.3f} -> {after:.3f}, at most {int(result.l0.max())} pixels changed")


if __name__ == "__main__":
    main()
