"""Optional packages: each is installed by an extra of this package and imported only where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsepgd.errors import MissingPackageError

EXTRAS = {  # module -> package, extra
    "adv_lib": ("adv-lib", "peers"),
    "art": ("adversarial-robustness-toolbox", "art"),
    "datasets": ("datasets", "hf"),
    "eagerpy": ("eagerpy", "foolbox"),
    "foolbox": ("foolbox", "foolbox"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "pycocotools": ("pycocotools", "detection"),
    "robustbench": ("robustbench", "robustbench"),
    "sklearn": ("scikit-learn", "digits"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "timm": ("timm", "timm"),
    "torchattacks": ("torchattacks", "torchattacks"),
    "torchmetrics": ("torchmetrics", "detection"),
    "ultralytics": ("ultralytics (AGPL-3.0)", "yolo"),
}
PACKAGES = {  # modules that those packages may lack -> what to install, if its name differs
    "autoattack": "git+https://github.com/fra31/auto-attack",  # not on PyPI
    "pkg_resources": "setuptools<81",
}


@contextmanager
def needs(what: str) -> Iterator[None]:
    """Wrap the imports for `what`. If one fails, the error says which package, extra and pip command it needs."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and module in EXTRAS:
            package, extra = EXTRAS[module]
            raise MissingPackageError(
                f"{what} needs {package}, which is not installed; pip install 'sparsepgd[{extra}]'"
            ) from None
        if isinstance(error, ModuleNotFoundError) and module:
            command = f"pip install '{PACKAGES.get(module, module)}'"
        else:
            command = "install another version"
        raise MissingPackageError(f"{what} cannot be used because an import failed: {error}; {command}") from error
