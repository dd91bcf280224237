"""Every error and warning of the package. Each message says what was given, what was expected and what to do.

SparsePGDError
├── InputError (ValueError)         the images or labels
│   ├── DTypeError                  images are not floating point, labels are not integers
│   ├── ShapeError                  images are not (B, C, H, W), labels are not (B,)
│   ├── RangeError                  values outside [0, 1], or off the 8-bit grid with quantize=True
│   ├── NonFiniteError              NaN or infinity in the images
│   └── LabelError                  a label that is not a class of the model
├── BudgetError (ValueError)        the budget does not fit: k, eps
│   ├── PatternError                the pattern does not fit the image
│   ├── KernelError                 a kernel that is not 0/1, or is empty
│   └── AllowedError                an `allowed` mask that is empty or of the wrong shape
├── ModelError (RuntimeError)       the model breaks the contract x -> logits
│   ├── LogitsShapeError            the output is not (B, classes)
│   ├── NonFiniteLogitsError        NaN or infinity on clean images
│   ├── DeviceError                 the model and the images are on different devices
│   └── NoGradientError             a gradient attack on a model without gradients
├── UnsupportedError (ValueError)   an attack cannot do this goal or pattern, an option is unknown
│   ├── FolderError                 a folder holds another run, or another process works in it
│   ├── MissingPackageError         (ImportError) it needs an extra that is not installed
│   └── UnusableDeviceError         a device that is not there, or that torch cannot use
└── SourceError (ValueError)        a model, data set or image that cannot be found or read

SparsePGDWarning (UserWarning)
├── EngineWarning                   compiled code or CUDA graphs do not work with this model
├── ProbabilitiesWarning            the outputs look like probabilities, not logits
├── TrainingWarning                 an epoch is repeated after NaN, or training overfits catastrophically
└── VerificationWarning             an attack returned something that the verifier rejects
"""


def first_line(error: BaseException) -> str:
    """What an error says, as far as it fits into another message; its type if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def counted(count: int, things: str) -> str:
    """``1 step``, ``1,000 steps``, ``1 query``."""
    return f"{count:,} {things if count != 1 else singular(things)}"


def singular(things: str) -> str:
    """The singular of steps, patches, queries and so on."""
    if things.endswith("ies"):
        return things.removesuffix("ies") + "y"
    return things.removesuffix("es") if things.endswith(("ches", "sses")) else things.removesuffix("s")


class SparsePGDError(Exception):
    """The base of all errors of this package."""


class InputError(SparsePGDError, ValueError):
    """The images or labels are unusable."""


class DTypeError(InputError):
    """Images must be floating point, labels integers."""


class ShapeError(InputError):
    """Images must be (B, C, H, W), labels (B,)."""


class RangeError(InputError):
    """Images must be in [0, 1] (and on the 8-bit grid with quantize=True)."""


class NonFiniteError(InputError):
    """Images must be finite."""


class LabelError(InputError):
    """Labels must be classes of the model."""


class BudgetError(SparsePGDError, ValueError):
    """The budget does not fit the images."""


class PatternError(BudgetError):
    """The pattern does not fit the image."""


class KernelError(BudgetError):
    """A kernel must consist of zeros and ones, with at least one 1."""


class AllowedError(BudgetError):
    """An `allowed` mask must be boolean, fit the images and leave something to change."""


class ModelError(SparsePGDError, RuntimeError):
    """The model breaks the contract: x (B, C, H, W) in [0, 1] -> logits (B, classes)."""


class LogitsShapeError(ModelError):
    """The model's output is not (B, classes)."""


class NonFiniteLogitsError(ModelError):
    """The model returns NaN or infinity for clean images."""


class DeviceError(ModelError):
    """Model and images are on different devices."""


class NoGradientError(ModelError):
    """A gradient attack needs a differentiable model."""


class UnsupportedError(SparsePGDError, ValueError):
    """An attack does not support what was requested, or an option is unknown."""


class FolderError(UnsupportedError):
    """A folder, or a file of state, belongs to another run."""


class UnusableDeviceError(UnsupportedError):
    """The device does not exist, or torch cannot use it."""


class MissingPackageError(UnsupportedError, ImportError):
    """A package of an extra, or one that a model file imports, is not installed."""


class SourceError(SparsePGDError, ValueError):
    """A model, data set or image cannot be found or read."""


class SparsePGDWarning(UserWarning):
    """The base of all warnings of this package."""


class EngineWarning(SparsePGDWarning):
    """The model cannot be run as fast as requested; the result is the same."""


class ProbabilitiesWarning(SparsePGDWarning):
    """The model's outputs look like probabilities; attacks need logits."""


class TrainingWarning(SparsePGDWarning):
    """A training run was reset to its last good state, or shows catastrophic overfitting."""


class VerificationWarning(SparsePGDWarning):
    """An attack reported a success that the verifier rejects; it was dropped."""
