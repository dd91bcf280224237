"""Budgets: what they accept, how they resolve, and the maps E and its adjoint."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sparsepgd as sp
from sparsepgd.errors import AllowedError, BudgetError, KernelError, PatternError
from sparsepgd.threat import Threat
from support.models import SmallConvNet

PATTERNS = [
    sp.Pixels(),
    sp.Features(),
    sp.Rows(),
    sp.Columns(),
    sp.Patches(3),
    sp.Patches(2, 4),
    sp.Shape.circle(5),
]


def incidence(pattern: sp.Pattern, height: int, width: int) -> Tensor:
    """The explicit 0/1 matrix (groups, pixels) that the convolutions stand for."""
    kernel = pattern.kernel(height, width)
    rows, columns = height - kernel.shape[0] + 1, width - kernel.shape[1] + 1
    matrix = torch.zeros(rows * columns, height, width)
    for i in range(rows):
        for j in range(columns):
            matrix[i * columns + j, i : i + kernel.shape[0], j : j + kernel.shape[1]] = kernel
    return matrix.flatten(1)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if not p.per_channel], ids=repr)
@pytest.mark.parametrize("size", [(7, 9), (8, 8)])
def test_convolution_path_equals_incidence_matrix(pattern: sp.Pattern, size: tuple[int, int]) -> None:
    threat = sp.Budget(k=2, pattern=pattern).resolve((3, *size))
    matrix = incidence(pattern, *size)
    v = (torch.rand(4, *threat.grid, generator=torch.Generator().manual_seed(0)) < 0.2).float()
    values = torch.randn(4, 3, *size, generator=torch.Generator().manual_seed(1))
    expected = (v.flatten(1) @ matrix).clamp(max=1).view(4, 1, *size)
    assert torch.equal(threat.expand(v), expected)
    gathered = values.sum(1).flatten(1) @ matrix.T
    torch.testing.assert_close(threat.gather(values), gathered.view(4, *threat.grid))


@st.composite
def large_kernels(draw: st.DrawFn) -> tuple[sp.Shape, int, int, int]:
    """A drawing that overlaps itself much, the size of an image, and a seed."""
    height, width, seed = draw(st.integers(24, 40)), draw(st.integers(24, 40)), draw(st.integers(0, 10_000))
    kernel = torch.rand(12, draw(st.integers(10, 13)), generator=torch.Generator().manual_seed(seed)) < 0.5
    return sp.Shape(kernel), height, width, seed


@settings(max_examples=30, deadline=None)
@given(large_kernels(), st.sampled_from([0.0, 0.002, 0.1, 1.0]))
def test_spectra_of_large_kernels_give_what_the_convolution_gives(
    case: tuple[sp.Shape, int, int, int], share: float
) -> None:
    pattern, height, width, seed = case
    threat = sp.Budget(k=1, pattern=pattern).resolve((3, height, width))
    assert threat.spectrum is not None
    plain, generator = dataclasses.replace(threat, spectrum=None), torch.Generator().manual_seed(seed)
    v = (torch.rand(2, *threat.grid, generator=generator) < share).float()
    assert torch.equal(threat.expand(v), plain.expand(v))  # masks: exact
    faint = v * torch.rand(v.shape, generator=generator) * 10.0 ** torch.randint(-30, 1, v.shape, generator=generator)
    assert torch.equal(threat.expand(faint) > 0, plain.expand(faint) > 0)  # sPGD takes the sign
    torch.testing.assert_close(threat.expand(faint), plain.expand(faint))
    values = torch.randn(2, 3, height, width, generator=generator)
    torch.testing.assert_close(threat.gather(values), plain.gather(values), rtol=1e-4, atol=1e-4)


def test_a_letter_on_a_photograph_is_spread_exactly_and_lines_and_frames_keep_to_the_convolution() -> None:
    letter = sp.Budget(k=2, pattern=sp.Shape.letter("A", 60)).resolve((3, 224, 224))
    v = torch.zeros(1, *letter.grid)
    v[0, 0, [3, 40], [100, 164]] = 1
    expected = torch.zeros(224, 224)
    for row, column in ((3, 100), (40, 164)):
        expected[row : row + 60, column : column + 60] += letter.kernel[0, 0]
    assert letter.spectrum is not None
    assert torch.equal(letter.expand(v)[0, 0], expected.clamp(max=1))
    for pattern in (sp.Pixels(), sp.Rows(), sp.Columns(), sp.Frame(9), sp.Patches(5)):
        assert sp.Budget(k=1, pattern=pattern).resolve((3, 224, 224)).spectrum is None


def test_a_mask_of_large_shapes_takes_one_product_of_spectra(monkeypatch: pytest.MonkeyPatch) -> None:
    threat = sp.Budget(k=2, pattern=sp.Patches(12)).resolve((3, 40, 40))
    products, spread = [], Threat._spread
    monkeypatch.setattr(Threat, "_spread", lambda self, v: products.append(1) or spread(self, v))
    score = torch.rand(1, *threat.grid, generator=torch.Generator().manual_seed(0))
    threat.expand(threat.top_k(score, None))
    assert len(products) == 1
    threat.expand(score)
    assert len(products) == 3


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_gather_is_the_adjoint_of_expand_where_groups_do_not_overlap(pattern: sp.Pattern) -> None:
    threat = sp.Budget(k=1, pattern=pattern).resolve((3, 8, 9))
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 8, 9, generator=generator)
    v = torch.zeros(2, *threat.grid)
    v.view(2, -1)[:, 0] = 1  # one group, so the clip at 1 does nothing
    left = (threat.expand(v) * values).flatten(1).sum(1)
    right = (v * threat.gather(values)).flatten(1).sum(1)
    torch.testing.assert_close(left, right)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000))
def test_top_k_gives_exactly_k_ones_and_is_idempotent(k: int, seed: int) -> None:
    threat = sp.Budget(k=k).resolve((3, 4, 5))
    score = torch.rand(3, *threat.grid, generator=torch.Generator().manual_seed(seed)).round(decimals=1)  # ties
    v = threat.top_k(score, None)
    assert torch.equal(v.flatten(1).sum(1), torch.full((3,), float(k)))
    assert torch.equal(threat.top_k(v, None), v)
    first = score.flatten(1).sort(dim=1, descending=True, stable=True).indices[:, :k]  # ties: the first in order
    assert torch.equal(v, torch.zeros_like(v).flatten(1).scatter(1, first, 1.0).view_as(v))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
def test_as_many_groups_are_chosen_for_each_image_as_it_is_told(counts: list[int], seed: int, masked: bool) -> None:
    """By enumeration: sorted by usable, score and place, the first so many. Scores tie often."""
    generator = torch.Generator().manual_seed(seed)
    threat = sp.Budget(k=3).resolve((1, 5, 6))
    score = (torch.rand(len(counts), 1, 5, 6, generator=generator) * 4).floor()
    usable = torch.rand(len(counts), 1, 5, 6, generator=generator) < 0.5 if masked else None
    v = threat.top_k(score, usable, torch.tensor(counts), max(*counts, 1))
    for row, count in enumerate(counts):
        fit, of = (torch.ones(30) if usable is None else usable[row].flatten()).tolist(), score[row].flatten().tolist()
        order = sorted(range(30), key=lambda place: (-fit[place], -of[place], place))
        # places that may not be used are chosen when no other is left, and nobody minds which
        sure = [place for place in order[:count] if fit[place]]
        chosen = v[row].flatten()
        assert set(chosen.tolist()) <= {0.0, 1.0}
        assert int(chosen.sum()) == count
        assert [place for place in sorted(sure) if chosen[place]] == sorted(sure)


@pytest.mark.parametrize("most", [None, 4, 100])
def test_told_to_choose_k_groups_of_each_image_it_chooses_those_it_chooses_untold(most: int | None) -> None:
    threat = sp.Budget(k=4).resolve((3, 6, 6))
    score = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    usable = torch.arange(36).view(1, 1, 6, 6).expand(5, -1, -1, -1) % 3 > 0
    for where in (None, usable):
        expected = threat.top_k(score, where)
        assert torch.equal(threat.top_k(score, where, torch.full((5,), 4), most), expected)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (sp.Pixels(), False),
        (sp.Features(), False),
        (sp.Rows(), False),
        (sp.Columns(), False),
        (sp.Frame(2), False),
        (sp.Patches(1), False),
        (sp.Patches(6), False),  # the whole image: there is one
        (sp.Patches(6, 1), False),  # these are columns
        (sp.Patches(6, 2), True),
        (sp.Patches(2), True),
        (sp.Shape.circle(5), True),
        (sp.Groups([[0, 1], [1, 2]]), False),  # they have no neighbours
    ],
    ids=repr,
)
def test_groups_overlap_where_they_can_move_by_less_than_their_size(pattern: sp.Pattern, expected: bool) -> None:
    assert sp.Budget(k=1, pattern=pattern).resolve((3, 6, 6)).overlapping is expected


def test_grids_have_the_shapes_of_the_paper() -> None:
    grids = {repr(p): sp.Budget(k=1, pattern=p).resolve((3, 32, 30)).grid for p in PATTERNS}
    assert grids == {
        "Pixels()": (1, 32, 30),
        "Features()": (3, 32, 30),
        "Rows()": (1, 32, 1),
        "Columns()": (1, 1, 30),
        "Patches(height=3, width=3)": (1, 30, 28),
        "Patches(height=2, width=4)": (1, 31, 27),
        repr(sp.Shape.circle(5)): (1, 28, 26),
    }


def test_a_negative_zero_is_no_better_score_than_zero() -> None:
    threat = sp.Budget(k=2).resolve((1, 2, 2), "cpu")
    score = torch.tensor([[-0.0, -0.0, 0.5, 0.1], [0.0, -0.0, -0.0, 0.1]]).view(2, 1, 2, 2)
    chosen = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]).view(2, 1, 2, 2)
    assert torch.equal(threat.top_k(score, None), chosen)


@pytest.mark.parametrize("eps", [8 / 255, 0.1, 1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_box_is_exact_in_the_dtype_of_the_images(eps: float, dtype: torch.dtype) -> None:
    x = torch.rand(2, 3, 16, 16, dtype=dtype, generator=torch.Generator().manual_seed(0))
    low, high = sp.Budget(k=1, eps=eps).resolve((3, 16, 16)).box(x, None, quantize=False)
    assert bool(((high.double() - x.double()) <= eps).all())
    assert bool(((x.double() - low.double()) <= eps).all())
    assert bool((low >= 0).all())
    assert bool((high <= 1).all())
    assert bool((high - x > 0.99 * eps)[x < 1 - eps].all())  # and not smaller than it need be


def test_quantized_box_holds_whole_levels() -> None:
    x = torch.arange(256).view(1, 1, 16, 16) / 255
    low, high = sp.Budget(k=1, eps=8 / 255).resolve((1, 16, 16)).box(x, None, quantize=True)
    levels = torch.arange(256).view(1, 1, 16, 16)
    assert torch.equal((low * 255).round().long(), (levels - 8).clamp(min=0))
    assert torch.equal((high * 255).round().long(), (levels + 8).clamp(max=255))


def test_box_is_closed_where_nothing_may_change() -> None:
    x = torch.rand(2, 3, 4, 4)
    allowed = torch.zeros(4, 4, dtype=torch.bool)
    allowed[0] = True
    threat = sp.Budget(k=1, allowed=allowed).resolve((3, 4, 4))
    masks = threat.masks(2)
    assert masks is not None
    low, high = threat.box(x, masks[0], quantize=False)
    assert torch.equal(low[:, :, 1:], x[:, :, 1:])
    assert torch.equal(high[:, :, 1:], x[:, :, 1:])
    assert bool((low[:, :, 0] == 0).all())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 0}, BudgetError, "k=0; use k >= 1"),
        ({"k": -3}, BudgetError, "k=-3"),
        ({"k": 1.5}, BudgetError, "k=1.5; k counts pixels and must be an integer"),
        ({"k": True}, BudgetError, "k=True"),
        ({"k": 1, "eps": 0}, BudgetError, "eps=0; use 0 < eps <= 1"),
        ({"k": 1, "eps": 8}, BudgetError, "eps=8"),
        ({"k": 1, "eps": "8/255"}, BudgetError, "eps='8/255'; use 0 < eps <= 1"),
        ({"k": 1, "eps": None}, BudgetError, "eps=None; use 0 < eps <= 1"),
        ({"k": 1, "pattern": sp.Rows}, PatternError, r"pattern=<class .*Rows'>; expected a Pattern, e.g. Rows\(\)"),
        ({"k": 1, "pattern": "rows"}, PatternError, "pattern='rows'; expected a Pattern"),
        ({"k": 1, "allowed": torch.ones(4, 4)}, AllowedError, "torch.float32; expected a boolean tensor"),
        ({"k": 1, "allowed": torch.ones(4, dtype=torch.bool)}, AllowedError, r"shape \(4,\)"),
        ({"k": 1, "allowed": torch.zeros(4, 4, dtype=torch.bool)}, AllowedError, "the allowed mask is empty"),
    ],
)
def test_bad_budgets_are_refused_with_what_came(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sp.Budget(**arguments)  # type: ignore[arg-type]


def test_the_numbers_of_numpy_are_taken_as_those_of_python() -> None:
    budget = sp.Budget(k=np.int64(3), eps=np.float64(0.25))  # type: ignore[arg-type]
    assert (type(budget.k), type(budget.eps)) == (int, float)
    assert repr(budget) == repr(sp.Budget(k=3, eps=0.25))


def test_no_masks_for_no_images_are_accepted() -> None:
    none = torch.ones(0, 4, 4, dtype=torch.bool)
    result = sp.SparsePGD(sp.Budget(k=2, allowed=none), 2)(SmallConvNet(), torch.ones(0, 3, 4, 4), none[:, 0, 0].long())
    assert len(result) == 0


@pytest.mark.parametrize(
    ("budget", "error", "message"),
    [
        (sp.Budget(k=40, pattern=sp.Rows()), BudgetError, "k=40 rows, but a 32x32 image has 32; use k <= 32"),
        (sp.Budget(k=1025), BudgetError, "k=1025 pixels, but a 32x32 image has 1024"),
        (sp.Budget(k=1, pattern=sp.Patches(33)), PatternError, "33x33 does not fit an image of 32x32"),
        (
            sp.Budget(k=1, allowed=torch.ones(8, 8, dtype=torch.bool)),
            AllowedError,
            r"\(8, 8\) for images of 32x32",
        ),
    ],
)
def test_budgets_that_do_not_fit_the_image_say_what_would(
    budget: sp.Budget, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        budget.resolve((3, 32, 32))


def test_k_larger_than_the_groups_that_touch_the_allowed_mask_is_refused() -> None:
    allowed = torch.zeros(8, 8, dtype=torch.bool)
    allowed[3, 4:6] = True
    with pytest.raises(BudgetError, match="only 2 touch the allowed mask; use k <= 2"):
        sp.Budget(k=3, allowed=allowed).resolve((3, 8, 8))
    with pytest.raises(BudgetError, match="only 1 touch"):
        sp.Budget(k=2, pattern=sp.Rows(), allowed=allowed).resolve((3, 8, 8))


def test_one_allowed_mask_for_each_image_must_match_their_number() -> None:
    allowed = torch.ones(3, 8, 8, dtype=torch.bool)
    threat = sp.Budget(k=1, allowed=allowed).resolve((3, 8, 8))
    with pytest.raises(AllowedError, match="3 allowed masks for 2 images"):
        threat.masks(2)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ([[0.0, 0.5]], "kernel contains 0.5; every entry must be 0 or 1"),
        ([[0, 0], [0, 0]], "is all zero"),
        ([1, 0], r"shape \(2,\); expected two dimensions"),
        ("heart", "type str; expected a 2-D array"),
    ],
)
def test_kernels_that_are_no_pattern_are_refused(kernel: object, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        sp.Shape(kernel)


def test_patterns_are_values() -> None:
    assert sp.Patches(3) == sp.Patches(3, 3)
    assert sp.Patches(3) != sp.Patches(3, 4)
    assert sp.Shape([[1, 0], [1, 1]]) == sp.Shape(torch.tensor([[1, 0], [1, 1]]), name="other")
    assert len({sp.Shape.circle(5), sp.Shape.circle(5), sp.Shape.circle(6)}) == 2


@pytest.mark.parametrize(
    ("size", "words"),
    [((0,), "0x0"), ((3, 0), "3x0"), ((0, 3), "0x3"), ((3, -1), "3x-1"), ((2.5,), "2.5x2.5"), (("3",), "3x3")],
)
def test_a_patch_without_whole_pixels_is_refused(size: tuple[int, ...], words: str) -> None:
    with pytest.raises(PatternError, match=f"a patch of {words}; height and width must be integers, at least 1"):
        sp.Patches(*size)


def test_resolved_budgets_are_kept_for_the_next_call_but_few_of_them_stay_alive() -> None:
    budget = sp.Budget(k=1, allowed=torch.ones(4, 4, dtype=torch.bool))
    assert budget.resolve((3, 4, 4)) is budget.resolve((3, 4, 4), "cpu")
    masks = [weakref.ref(budget.allowed)]
    del budget
    for _ in range(20):
        mask = torch.ones(4, 4, dtype=torch.bool)
        sp.Budget(k=1, allowed=mask).resolve((3, 4, 4))
        masks.append(weakref.ref(mask))
    del mask
    gc.collect()
    assert sum(mask() is not None for mask in masks) <= 8


def test_the_groups_to_choose_from_are_those_that_touch_an_allowed_pixel() -> None:
    allowed = torch.zeros(2, 6, 6, dtype=torch.bool)
    allowed[0, 0, 0] = allowed[1, 2:4, 2] = True
    for pattern, few, all_of_them in ((sp.Pixels(), 1, 36), (sp.Rows(), 1, 6), (sp.Patches(2), 1, 25)):
        assert sp.Budget(k=1, pattern=pattern, allowed=allowed).resolve((3, 6, 6)).groups == few
        assert sp.Budget(k=1, pattern=pattern).resolve((3, 6, 6)).groups == all_of_them
    assert sp.Budget(k=1, pattern=sp.Patches(2), allowed=allowed[1]).resolve((3, 6, 6)).groups == 6


def test_frames_are_borders_and_there_is_one() -> None:
    assert int(sp.Frame(2).kernel(12, 10).sum()) == 120 - 8 * 6
    assert bool(sp.Frame(6).kernel(12, 12).all())
    with pytest.raises(PatternError, match="a frame of width 0; use an integer, at least 1"):
        sp.Frame(0)
    with pytest.raises(PatternError, match=r"a frame of width 1.5; use an integer"):
        sp.Frame(1.5)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="k=2 frames, but a 12x12 image has 1"):
        sp.Budget(k=2, pattern=sp.Frame(1)).resolve((3, 12, 12))
