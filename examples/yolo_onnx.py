"""A YOLO network with gradients from its ONNX export, which keeps the weights under the names of the fused network.

    pip install onnx 'sparsepgd[yolo]'
    YOLO_ONNX=yolo11n-seg.onnx spgd detect COCO --model examples/yolo_onnx.py:yolo11n_seg -n 20

COCO is a folder with images/ and, for segmentation, polygons/.
"""

import os
from pathlib import Path
from typing import Any

import torch


def yolo11n_seg() -> Any:
    return read(Path(os.environ["YOLO_ONNX"]), "yolo11n-seg.yaml")


def read(file: Path, architecture: str) -> Any:
    """The network of an export; `architecture`: one of ultralytics."""
    import onnx
    from onnx.numpy_helper import to_array
    from ultralytics.nn.tasks import DetectionModel, SegmentationModel

    kind = SegmentationModel if "-seg" in architecture else DetectionModel
    network = kind(architecture, verbose=False).fuse(verbose=False)
    tensors = {one.name: torch.from_numpy(to_array(one).copy()) for one in onnx.load(file).graph.initializer}
    own = network.state_dict()
    fixed = {name for name in own if name.endswith("dfl.conv.weight")}  # 0, 1, ..., 15: no weight, and not exported
    network.load_state_dict({name: own[name] if name in fixed else tensors[name] for name in own})
    return network.eval()


if __name__ == "__main__":
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise SystemExit("this example needs another package: pip install onnx 'sparsepgd[yolo]'") from None
    if "YOLO_ONNX" in os.environ:
        print(f"{sum(parameter.numel() for parameter in yolo11n_seg().parameters()):,} weights")
    else:
        print("YOLO_ONNX names no export; use YOLO_ONNX=yolo11n-seg.onnx")
