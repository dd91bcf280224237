"""All recipes: one for each table and figure of the paper, or for several that share their runs."""

from __future__ import annotations

from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.experiments import accuracy, curves
from sparsepgd.reproduce.experiments.ablation import SCANS, ablation
from sparsepgd.reproduce.experiments.accuracy import grid
from sparsepgd.reproduce.experiments.detectors import detectors
from sparsepgd.reproduce.experiments.panels import panels
from sparsepgd.reproduce.experiments.ratio import ratio
from sparsepgd.reproduce.experiments.training import POLICIES, training
from sparsepgd.reproduce.experiments.transfer import transfer
from sparsepgd.reproduce.recipe import OWN_ROWS, OWN_STRUCTURED_ROWS, STRADES, VANILLA, Recipe, table

LARGE = 224


def _every(label: str, *sections: str) -> dict[str, str | None]:
    """The models of a table, without substitutes."""
    cells = table(label).cells
    return {role: None for section in sections for role in cells[section]}


L1 = "zoo:subject-l1"
CURVES = {
    **_every("20", "k=15", "k=20"),
    "Vanilla": VANILLA,
    "GD": "zoo:subject-linf",
    "HAT": "zoo:subject-l2",
    "l1-APGD": L1,
    "sTRADES": STRADES,
    "SparseAnneal": OWN_ROWS["SparseAnneal"],
}
UNSTRUCTURED: dict[str, str | None] = {
    **CURVES,
    "PGD0-A": "zoo:subject-pgd0-a",
    "PGD0-T": "zoo:subject-pgd0-t",
    "sAT": "zoo:subject-sat",
    **OWN_ROWS,
}
STRUCTURED: dict[str, str | None] = {
    "Vanilla": VANILLA,
    "LOAP+TRADES": "zoo:subject-loap-t",
    "LOAP+AT": "zoo:subject-loap-a",  # on CIFAR-10 not in the paper
    "sTRADES-l0": STRADES,
    "sTRADES-row": "zoo:subject-row",
    "sTRADES-p3x3": "zoo:subject-patch3",
    "sTRADES-p5x5": "zoo:subject-patch5",
    "SparseAnneal": OWN_ROWS["SparseAnneal"],
    **OWN_STRUCTURED_ROWS,
    "SparseAnneal-all": OWN_ROWS["SparseAnneal-all"],
}


def _ablations() -> list[Recipe]:
    short = "the paper's step sizes for structures are meant for 10,000 iterations; short runs need larger ones"
    recipes = []
    for name, scan in SCANS.items():
        structured = name.endswith("structured")
        role = "sTRADES-l0" if structured else "Fast-EG-l1"
        recipes.append(
            Recipe(
                name,
                f"sPGD projected: {table(scan.label).title}",
                ablation(scan, *([short] if structured else [])),
                (scan.label,),
                roles={role: STRADES if structured else L1},
            )
        )
    return recipes


def _trainings() -> list[Recipe]:
    return [
        Recipe(
            name,
            f"sTRADES: {table(policies.label).title}",
            training(name),
            (policies.label,),
            roles=dict.fromkeys(policies.settings),
        )
        for name, policies in POLICIES.items()
    ]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "unstructured",
            "robust accuracy at k = 10, 15 and 20 pixels",
            grid(
                accuracy.PIXELS,
                "the paper trains l0-trained models for each k; here one model is shown for all three",
            ),
            ("10_15", "20"),
            roles=UNSTRUCTURED,
        ),
        Recipe(
            "cifar100",
            "robust accuracy on CIFAR-100 at k = 10 pixels",
            grid(accuracy.CIFAR100),
            ("10_15",),
            roles=_every("10_15", "cifar100, k=10"),
        ),
        Recipe(
            "imagenet",
            "robust accuracy at 224x224 and k = 200 pixels",
            grid(accuracy.IMAGENET),
            ("more",),
            roles={**_every("more", "imagenet100, k=200"), "Vanilla": VANILLA},
            size=LARGE,
            images=500,
        ),
        Recipe(
            "gtsrb",
            "robust accuracy on GTSRB at k = 600 pixels",
            grid(accuracy.GTSRB),
            ("more",),
            roles=_every("more", "gtsrb, k=600"),
            size=LARGE,
            images=500,
        ),
        Recipe(
            "structured",
            "robust accuracy: a row, two 3x3 patches, a 5x5 patch",
            grid(accuracy.STRUCTURED),
            ("struct",),
            roles=STRUCTURED,
        ),
        Recipe(
            "structured-imagenet",
            "robust accuracy at 224x224: a row, two 10x10 patches, a 14x14 patch",
            grid(accuracy.STRUCTURED_LARGE),
            ("struct",),
            roles={**_every("struct", *(block.section for block in accuracy.STRUCTURED_LARGE)), "Vanilla": VANILLA},
            size=LARGE,
            images=500,
        ),
        Recipe(
            "watermarks",
            "robust accuracy over eps: a circle and a letter",
            grid(accuracy.WATERMARKS, "the authors' bitmaps are not published; ours have equally many pixels"),
            ("wm",),
            roles={"Vanilla": VANILLA},
            size=LARGE,
            images=500,
            smoke={"images": 1, "steps": 4},  # kernels of 60x60 are slow on a CPU
        ),
        Recipe(
            "ratio",
            "Omega_0 / Omega'_0 over k",
            ratio,
            figures=("Figure 1",),
            roles={"Vanilla": VANILLA},
            images=100,
        ),
        Recipe(
            "iterations",
            "robust accuracy over iterations, k = 20",
            curves.iterations,
            ("20",),
            figures=("Figure 3a",),
            roles=CURVES,
        ),
        Recipe(
            "iterations-imagenet",
            "the same at 224x224, k = 200",
            curves.iterations,
            ("more",),
            figures=("Figure 3b",),
            roles={"Vanilla": VANILLA, "sAT": None},
            size=LARGE,
            images=500,
        ),
        Recipe(
            "sparsity",
            "robust accuracy over k, 0 to 50",
            curves.sparsity,
            ("10_15", "20"),
            figures=("Figure 3c",),
            roles=CURVES,
        ),
        Recipe(
            "histogram",
            "iterations until success",
            curves.histogram,
            ("20",),
            figures=("Figure 4",),
            roles=CURVES,
        ),
        Recipe(
            "runtime",
            "run time of all attacks, k = 20",
            curves.runtime,
            ("runtime",),
            roles={"sTRADES": STRADES},
            images=1000,
        ),
        Recipe(
            "transfer",
            "transfer from one architecture to another",
            transfer,
            ("trans",),
            roles={"V": None, "R": None, "V2": None, "R2": None},
        ),
        Recipe(
            "detection",
            "mAP of detectors and segmentation",
            detectors,
            ("yolo",),
            roles={"detection": None, "segmentation": None},
        ),
        *_ablations(),
        *_trainings(),
        Recipe(
            "pictures",
            "adversarial images of every kind",
            panels,
            figures=("Figures 5 to 7",),
            roles={"Vanilla": VANILLA, "sAT": None},
        ),
    )
}


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UnsupportedError(f"no recipe {name!r}; use one of {', '.join(RECIPES)} or all")
    return RECIPES[name]
