"""The paper's numbers: where they stand, and that the recipes cover all of them."""

from __future__ import annotations

import pytest

from sparsepgd.errors import SourceError
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import RECIPES


@pytest.mark.parametrize(
    ("label", "section", "row", "column", "value"),
    [
        ("20", "k=20", "sTRADES", "RS", 61.8),
        ("20", "k=15", "PORT-linf", "sPGD_p", 17.4),
        ("10_15", "cifar100, k=10", "sAT", "sAA", 41.6),
        ("more", "gtsrb, k=600", "sAT", "sAA", 85.4),
        ("struct", "imagenet100, 2 patches 10x10", "LOAP+AT", "LOAP", 72.4),
        ("wm", "letter A 60x60, 1747 pixels", "eps=64/255", "sPGD_u", 2.0),
        ("runtime", "minutes", "sTRADES", "PGD0", 750),
        ("trans", "success rate", "sPGD_u", "R->V", 56.7),
        ("yolo", "segmentation", "patch4x4_200", "sPGD", 33.1),
        ("ab_pgd", "robust accuracy", "Fast-EG-l1", "+ continuous mask", 33.9),
        ("ab_tol_struct", "robust accuracy", "sTRADES-l0", "150", 33.7),
    ],
)
def test_a_number_is_that_of_its_table(label: str, section: str, row: str, column: str, value: float) -> None:
    assert table(label).value(section, row, column) == value


def test_where_the_paper_has_no_number_there_is_none() -> None:
    assert table("struct").value("cifar10, 1 row", "Vanilla", "LOAP") is None
    with pytest.raises(SourceError, match="no table 'XX'; known are 20"):
        table("XX")


def test_saa_is_nowhere_above_its_members() -> None:
    """What the cascade leaves, each of its members leaves too, in every table that has both."""
    checked = 0
    for label in facts()["tables"]:
        for rows in table(label).cells.values() if label != "runtime" else ():
            for cells in rows.values():
                for member in ("sPGD_p", "sPGD_u", "RS"):
                    if "sAA" in cells and member in cells:
                        checked += 1
                        assert cells["sAA"] <= cells[member], (label, cells)
    assert checked > 150


def test_every_table_and_figure_has_a_recipe() -> None:
    assert {label for one in RECIPES.values() for label in one.labels} == set(facts()["tables"])
    figures = " ".join(figure for one in RECIPES.values() for figure in one.figures)
    assert all(number in figures for number in ("1", "3a", "3b", "3c", "4", "5 to 7"))
