"""Detectors and segmentation: attacks on a loss of the outputs, mAP before and after (paper, section on YOLOv8)."""

from sparsepgd.detection.attack import DetectionResult, attack_detector
from sparsepgd.detection.data import Placement, Scenes, letterbox, read_folder
from sparsepgd.detection.objectives import Detector, Objective, OutputLoss, Prediction, SemanticSegmentation, Target
from sparsepgd.detection.study import Precision, mean_average_precision, mean_iou, predictions_of
from sparsepgd.detection.torchvision_models import COCO_CATEGORIES, TorchvisionDetector
from sparsepgd.detection.yolo import Yolo, load_yolo

__all__ = [
    "COCO_CATEGORIES",
    "DetectionResult",
    "Detector",
    "Objective",
    "OutputLoss",
    "Placement",
    "Precision",
    "Prediction",
    "Scenes",
    "SemanticSegmentation",
    "Target",
    "TorchvisionDetector",
    "Yolo",
    "attack_detector",
    "letterbox",
    "load_yolo",
    "mean_average_precision",
    "mean_iou",
    "predictions_of",
    "read_folder",
]
