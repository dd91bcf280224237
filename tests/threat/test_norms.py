"""Omega_0 and Omega'_0 against brute force, the paper's example and its theorem."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp
from torch import Tensor

from sparsepgd.errors import BudgetError, PatternError, ShapeError
from sparsepgd.threat import norms
from sparsepgd.threat.groups import Groups
from sparsepgd.threat.norms import group_l0, surrogate_group_l0
from sparsepgd.threat.patterns import Columns, Features, Frame, Patches, Pattern, Pixels, Rows, Shape

exact = settings(derandomize=True, deadline=None, max_examples=150)
HOLED = Shape([[0, 1], [1, 0]])  # cannot reach two of the corners


def groups_of(pattern: Pattern, height: int, width: int) -> list[set[tuple[int, int]]]:
    """Every group as a set of pixels, in the order of the grid of groups."""
    kernel = pattern.kernel(height, width)
    kh, kw = kernel.shape
    ones = kernel.nonzero().tolist()
    return [{(i + a, j + b) for a, b in ones} for i in range(height - kh + 1) for j in range(width - kw + 1)]


def fewest(support: set[tuple[int, int]], groups: list[set[tuple[int, int]]]) -> int:
    """Brute force over all choices of groups."""
    for k in range(len(groups) + 1):
        if any(support <= set().union(*chosen) for chosen in combinations(groups, k)):
            return k
    raise AssertionError("not coverable")


def random_case(seed: int, k: int, side: int = 4) -> tuple[Tensor, Tensor, Shape]:
    """delta (1, 2, H, W) inside k random groups, v (1, gh, gw) that chooses them, a random kernel."""
    rng = np.random.default_rng(seed)
    kernel = rng.random(rng.integers(1, 4, 2)) < 0.7
    kernel.flat[rng.integers(kernel.size)] = True
    pattern = Shape(kernel.astype(np.float32))
    height, width = (int(n) for n in rng.integers(3, side + 1, 2))
    groups = groups_of(pattern, height, width)
    v, delta = np.zeros(len(groups)), np.zeros((1, 2, height, width))
    for j in rng.permutation(len(groups))[:k]:
        v[j] = 1
        for pixel in sorted(groups[j]):
            delta[0, :, *pixel] = rng.normal(size=2) * (rng.random() < 0.8)
    grid = (1, height - kernel.shape[0] + 1, width - kernel.shape[1] + 1)
    return torch.from_numpy(delta), torch.from_numpy(v).reshape(grid), pattern


def pixels_of(delta: Tensor) -> set[tuple[int, int]]:
    return {(i, j) for i, j in delta[0].ne(0).any(0).nonzero().tolist()}


def patches(k: int, side: int, r: int, spread: int, seed: int) -> NDArray[np.bool_]:
    """A support of k overlapping patches."""
    changed = np.zeros((side, side), bool)
    for i, j in np.random.default_rng(seed).integers(0, spread, (k, 2)):
        changed[i : i + r, j : j + r] = True
    return changed


@exact
@given(seed=st.integers(0, 2**32), k=st.integers(0, 5))
def test_omega_0_equals_brute_force(seed: int, k: int) -> None:
    delta, _, pattern = random_case(seed, k)
    expected = fewest(pixels_of(delta), groups_of(pattern, *delta.shape[2:]))
    assert group_l0(delta, pattern).tolist() == [expected]


@exact
@given(seed=st.integers(0, 2**32), k=st.integers(0, 12))
def test_theorem_omega_0_below_surrogate_below_l0_of_v(seed: int, k: int) -> None:
    delta, v, pattern = random_case(seed, k, side=9)
    lower, middle = group_l0(delta, pattern), surrogate_group_l0(delta, v, pattern)
    assert lower <= middle <= v.sum()


@exact
@given(seed=st.integers(0, 2**32), k=st.integers(1, 6))
def test_surrogate_counts_the_chosen_groups_that_hold_a_change(seed: int, k: int) -> None:
    delta, v, pattern = random_case(seed, k)
    groups = groups_of(pattern, *delta.shape[2:])
    held = [bool(group & pixels_of(delta)) for group in groups]
    expected = sum(chosen * hold for chosen, hold in zip(v.flatten().tolist(), held, strict=True))
    assert surrogate_group_l0(delta, v, pattern).tolist() == [expected]


@exact
@given(sets=st.lists(st.frozensets(st.integers(0, 9), min_size=1), min_size=1, max_size=9))
def test_index_sets_equal_brute_force(sets: list[frozenset[int]]) -> None:
    support = frozenset().union(*sets)
    expected = next(k for k in range(10) if any(support == frozenset().union(*c) for c in combinations(sets, k)))
    delta = torch.zeros(1, 1, 1, 10)
    delta[..., sorted(support)] = 1
    assert group_l0(delta, Groups([sorted(one) for one in sets])).tolist() == [expected]


def test_a_trap_for_the_greedy_cover_is_solved() -> None:
    trap = Groups([[1, 2, 4, 5], [0, 1, 2], [3, 4, 5]])  # greedy takes the first and needs all three
    assert group_l0(torch.ones(1, 1, 1, 6), trap).tolist() == [2]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("k", "side", "r", "spread"), [(25, 16, 3, 12), (40, 24, 4, 18), (12, 40, 10, 25)])
def test_crowded_patches_agree_with_one_plain_program(
    k: int, side: int, r: int, spread: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`whole`: the program is given all pixels at once, or more and more of them."""
    monkeypatch.setattr(norms, "WHOLE", norms.WHOLE if whole else 0)
    for seed in range(5):
        changed = patches(k, side, r, spread, seed)
        pixels = [tuple(pixel) for pixel in np.argwhere(changed).tolist()]
        groups = groups_of(Patches(r), side, side)
        A = np.array([[pixel in group for group in groups] for pixel in pixels], float)
        plain = milp(np.ones(len(groups)), constraints=LinearConstraint(A, lb=1), integrality=1)
        delta = torch.from_numpy(changed)[None, None].float()
        assert group_l0(delta, Patches(r)).tolist() == [round(plain.fun)]


def test_large_shapes_on_a_photograph_are_counted_without_a_table_of_all_groups_and_pixels() -> None:
    places = {
        Shape.letter("A", 60): [(0, 0), (20, 30), (164, 100)],
        Patches(60): [(10, 10), (40, 50), (90, 75)],
        Frame(5): [(0, 0)],
    }
    for pattern, corners in places.items():
        kernel = pattern.kernel(224, 224)
        delta = torch.zeros(1, 1, 224, 224)
        for i, j in corners:
            delta[0, 0, i : i + len(kernel), j : j + kernel.shape[1]] += kernel
        tracemalloc.start()
        counted = group_l0(delta, pattern).tolist()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert counted == [len(corners)]
        assert peak < 64 * delta.numel() * 4  # the table would have thousands of entries for each pixel


def test_paper_example_1x5_image_with_1x3_groups() -> None:
    delta, pattern = torch.ones(1, 1, 1, 5), Patches(1, 3)
    assert group_l0(delta, pattern).tolist() == [2]
    assert surrogate_group_l0(delta, torch.tensor([[[1, 0, 1]]]), pattern).tolist() == [2]
    assert surrogate_group_l0(delta, torch.tensor([[[1, 1, 1]]]), pattern).tolist() == [3]


def test_a_full_image_takes_as_many_patches_as_tiles() -> None:
    delta = torch.ones(1, 3, 32, 32)
    assert group_l0(delta, Patches(3)).tolist() == [11 * 11]
    assert group_l0(delta, Patches(8, 16)).tolist() == [4 * 2]


def test_pixels_rows_columns_and_features_count_what_their_names_say() -> None:
    delta = torch.zeros(1, 3, 4, 5)
    delta[0, 0, 1, 2] = 0.5
    delta[0, 2, 1, 2] = -0.5  # the channels cancel in a sum
    delta[0, 1, 1, 4] = 1e-40
    delta[0, 0, 3, 4] = 1
    counts = {Pixels(): 3, Rows(): 2, Columns(): 2, Features(): 4, Patches(1, 2): 3, Patches(2, 1): 3}
    assert {pattern: group_l0(delta, pattern).item() for pattern in counts} == counts


@pytest.mark.parametrize("pattern", [Pixels(), Rows(), Patches(2), Features(), Shape.star(5)], ids=repr)
def test_nothing_changed_costs_nothing(pattern: Pattern) -> None:
    delta = torch.zeros(2, 3, 8, 8)
    assert group_l0(delta, pattern).tolist() == [0, 0]


def test_images_are_measured_one_by_one_whatever_their_order() -> None:
    rng = torch.Generator().manual_seed(0)
    delta = torch.randn(6, 3, 12, 12, generator=rng)
    delta *= torch.rand(6, 1, 12, 12, generator=rng) < torch.linspace(0, 0.5, 6).view(-1, 1, 1, 1)
    v = torch.ones(6, 10, 10)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    norm = group_l0(delta, Patches(3))
    assert len(set(norm.tolist())) == 6
    assert torch.equal(group_l0(delta[order], Patches(3)), norm[order])
    assert torch.equal(torch.cat([group_l0(d[None], Patches(3)) for d in delta]), norm)
    norm = surrogate_group_l0(delta, v, Patches(3))
    assert torch.equal(surrogate_group_l0(delta[order], v, Patches(3)), norm[order])


def test_results_are_int64_with_one_entry_per_image() -> None:
    delta, v = torch.ones(2, 3, 4, 4, dtype=torch.float16), torch.ones(2, 1, 3, 3)
    assert (group_l0(delta, Patches(2)).dtype, group_l0(delta, Patches(2)).shape) == (torch.int64, (2,))
    assert surrogate_group_l0(delta, v, Patches(2)).dtype == torch.int64
    assert torch.equal(group_l0(delta != 0, Patches(2)), group_l0(delta, Patches(2)))


def test_features_are_chosen_channel_by_channel() -> None:
    delta = torch.zeros(1, 3, 2, 2)
    delta[0, 1, 0, 0] = delta[0, 2, 0, 0] = 1
    v = torch.ones(1, 3, 2, 2)
    assert surrogate_group_l0(delta, v, Features()).tolist() == [2]
    v[0, 2] = 0
    with pytest.raises(BudgetError, match="does not cover"):
        surrogate_group_l0(delta, v, Features())


def test_a_pixel_that_no_group_reaches_is_named() -> None:
    delta = torch.zeros(2, 1, 4, 6)
    delta[1, 0, 3, 5] = 1
    with pytest.raises(BudgetError, match=r"image 1: no group covers the changed pixel \[3, 5\]"):
        group_l0(delta, HOLED)
    assert group_l0(delta[:1], HOLED).tolist() == [0]
    with pytest.raises(BudgetError, match="the changed index 2 is in no group"):
        group_l0(torch.ones(1, 1, 1, 3), Groups([[0, 1]]))


def test_a_mask_that_leaves_a_changed_pixel_bare_is_rejected() -> None:
    delta = torch.ones(1, 1, 1, 5)
    with pytest.raises(BudgetError, match=r"image 0: v does not cover the non-zero pixel \[0, 4\]"):
        surrogate_group_l0(delta, torch.tensor([[[1, 1, 0]]]), Patches(1, 3))


def test_empty_borders_of_a_kernel_keep_it_from_the_edge() -> None:
    inner = torch.zeros(1, 1, 5, 5)
    inner[0, 0, 1:4, 1:4] = 1
    dot = Shape([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert group_l0(inner, dot).tolist() == [9]
    assert surrogate_group_l0(inner, torch.ones(1, 3, 3), dot).tolist() == [9]
    with pytest.raises(BudgetError, match=r"pixel \[0, 0\]"):
        group_l0(torch.ones(1, 1, 5, 5), dot)


def test_wrong_shapes_and_values_are_rejected() -> None:
    delta = torch.zeros(1, 3, 4, 4)
    with pytest.raises(ShapeError, match=r"delta of shape \(3, 4, 4\); expected \(B, C, H, W\)"):
        group_l0(delta[0], Pixels())
    with pytest.raises(PatternError, match=r"is 5x5, the image 4x4; use a smaller pattern"):
        group_l0(delta, Patches(5))
    with pytest.raises(ShapeError, match=r"v of shape \(1, 4, 4\); expected \(1, 1, 3, 3\)"):
        surrogate_group_l0(delta, torch.ones(1, 4, 4), Patches(2))
    with pytest.raises(BudgetError, match=r"v holds 0\.5; every entry must be 0 or 1"):
        surrogate_group_l0(delta, torch.full((1, 3, 3), 0.5), Patches(2))
