"""How the gradient of D is summed: which products are computed, and where each goes."""

import numpy as np
import pytest

from tritonsnap import DsmmPlan, SparsityPattern
from tritonsnap.plan.outer_pairs import OuterPairs, _kept
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity import snap_pattern


def packing(density: float, order: int | None = 2, hidden: int = 192) -> Packing:
    """That of a network with one parameter for each weight."""
    weights = SparsityPattern.random((hidden, hidden), density, 0)
    weights = weights | SparsityPattern.identity(hidden)
    unit = np.sort(weights.rows)
    columns = SparsityPattern.from_coo(unit, np.arange(len(unit)), (hidden, len(unit)))
    mask = snap_pattern(weights, columns, order)
    return DsmmPlan(mask, mask, weights).packing("triton")


@pytest.mark.parametrize(
    ("density", "order", "build"),
    [
        (0.001, 2, "of_pairs"),
        (0.03, 2, "of_pairs"),
        (0.03, 1, "of_pairs"),
        (0.35, 2, "of_groups"),
        (0.6, 2, "of_dynamics"),  # more partial sums than are worth it
        (0.3, None, "of_groups"),
        (1.0, 2, "of_groups"),
    ],
)
def test_choice(density: float, order: int | None, build: str) -> None:
    own = packing(density, order)
    expected = getattr(OuterPairs, build)(own.groups, own.dynamics)
    for found, array in zip(own.pairs.arrays(), expected.arrays(), strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(("density", "order", "columns"), [(0.1, 1, 8), (0.01, 1, 1), (0.05, 2, 1)])
def test_columns_are_read_at_once_where_few_products_share_them(
    density: float, order: int, columns: int
) -> None:
    assert packing(density, order).pairs.columns == columns


@pytest.mark.parametrize("density", [0.03, 0.35])
def test_every_needed_product_is_a_partial_sum_of_its_entry(density: float) -> None:
    own = packing(density)
    pairs = own.pairs
    assert pairs.num_partial == own.costs.nonzeros.sum()
    np.testing.assert_array_equal(np.sort(pairs.entry_partial), np.arange(pairs.num_partial))
    counts = np.diff(pairs.entry_begin.astype(int))
    supports = np.unique(own.groups.mask.to_dense(), axis=1)  # one column for each group
    inside = supports[own.dynamics.rows] & supports[own.dynamics.cols]
    np.testing.assert_array_equal(counts, inside.sum(axis=1))


@pytest.mark.parametrize(("density", "order"), [(0.1, 1), (0.3, None), (0.6, 2)])
def test_partial_sums_that_are_the_entries_are_not_summed(
    density: float, order: int | None
) -> None:
    own = packing(density, order)
    assert own.pairs.num_partial == own.dynamics.nnz
    assert own.pairs.entry_begin.size == own.pairs.entry_partial.size == 0


def places(pairs: OuterPairs) -> list[int]:
    """Of every product that the tiles keep."""
    found = []
    for _, _, _, _, rows, inners, place, step in pairs.tiles.astype(np.int64):
        if step:
            found += [place + i * step + row for i in range(inners) for row in range(rows)]
        else:
            bits = pairs.kept[place, 1:, :, None] >> np.arange(32) & 1
            for first, count in zip(pairs.kept[place, 0], bits.sum(axis=(0, 2)), strict=True):
                found += range(first, first + count)
    return found


@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("order", [1, 2, None])
@pytest.mark.parametrize("build", ["of_groups", "of_dynamics"])
def test_tiles_keep_each_product_once(build: str, order: int | None, density: float) -> None:
    own = packing(density, order, hidden=80)
    pairs = getattr(OuterPairs, build)(own.groups, own.dynamics)
    np.testing.assert_array_equal(np.sort(places(pairs)), np.arange(pairs.num_partial))


@pytest.mark.parametrize("build", ["of_groups", "of_dynamics"])
def test_no_products_are_listed_where_d_is_full(build: str) -> None:
    own = packing(1.0, hidden=80)
    pairs = getattr(OuterPairs, build)(own.groups, own.dynamics)
    assert pairs.kept.size == 0
    np.testing.assert_array_equal(pairs.tiles[:, 4:6], [[64, 64], [16, 64], [64, 16], [16, 16]])


@pytest.mark.parametrize(
    ("gap", "listed"),
    [(64, [[0, 64]]), (70, [[0, 64], [64, 64], [128, 64]])],  # a gap moves what lies behind it
)
def test_products_are_listed_only_where_a_gap_is_seen(gap: int, listed: list[list[int]]) -> None:
    full = np.ones((130, 130), bool)
    square, full[3, gap] = SparsityPattern.from_dense(full), False
    own = DsmmPlan(square, square, SparsityPattern.from_dense(full)).packing("triton")
    pairs = OuterPairs.of_dynamics(own.groups, own.dynamics)
    np.testing.assert_array_equal(pairs.tiles[pairs.tiles[:, 7] == 0][:, 2:4], listed)
    assert len(pairs.kept) == len(listed)


def test_places_beyond_31_bits_are_kept() -> None:
    place = np.array([3_000_000_000])
    _, (tile,) = _kept(np.array([[64, 64]]), np.array([5]), np.array([63]), place)
    np.testing.assert_array_equal(tile[:, 5], [*place, 0, 1 << 31])


def test_places_beyond_31_bits_of_whole_tiles_are_kept() -> None:
    place = 3_000_000_000 + np.array([0, 1, 900, 901])
    end, kept = _kept(np.array([[2, 2]]), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), place)
    np.testing.assert_array_equal(end, [[2, 2, place[0], 900]])
    assert len(kept) == 0
