from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonsnap.sparsity import (
    Coloring,
    SparsityPattern,
    color_bidirectional,
    color_columns,
    color_rows,
)
from tritonsnap.sparsity.coloring import ORDERS, is_valid
from tritonsnap.sparsity.orders import Bipartite


def banded(size: int, width: int) -> SparsityPattern:
    return SparsityPattern.from_dense(
        np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= width
    )


def arrow(size: int) -> SparsityPattern:
    matrix = np.eye(size)
    matrix[0] = matrix[:, 0] = 1
    return SparsityPattern.from_dense(matrix)


def snap1_mask(units: int) -> SparsityPattern:
    return SparsityPattern.from_coo(
        np.repeat(np.arange(units), units), np.arange(units**2), (units, units**2)
    )


@pytest.mark.parametrize("order", ["largest_first", "natural", "smallest_last", "dsatur"])
@pytest.mark.parametrize(
    ("pattern", "rows", "columns"),
    [
        (banded(20, 1), 3, 3),
        (banded(1000, 2), 5, 5),
        (snap1_mask(16), 1, 16),
        (SparsityPattern.from_dense([[1, 0, 1], [0, 1, 0], [1, 1, 0]]), 2, 2),
        (arrow(10), 10, 10),
        (SparsityPattern.identity(7), 1, 1),
        (SparsityPattern.full((4, 6)), 4, 6),
    ],
    ids=["tridiagonal", "banded", "snap1", "three", "arrow", "diagonal", "full"],
)
def test_known_numbers_of_colors(
    pattern: SparsityPattern, rows: int, columns: int, order: str
) -> None:
    assert color_rows(pattern, order).num_colors == rows
    assert color_columns(pattern, order).num_colors == columns


def test_random_2000() -> None:
    pattern = SparsityPattern.random((2000, 2000), 0.005)
    assert color_rows(pattern).num_colors in (30, 31)
    assert color_rows(pattern).lower_bound == 23
    assert color_rows(pattern, "dsatur").num_colors == 28


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 12),
    cols=st.integers(0, 12),
    density=st.floats(0.05, 1),
    seed=st.integers(0, 99),
    order=st.sampled_from([*ORDERS, "networkx:saturation_largest_first", "networkx:largest_first"]),
)
def test_colorings_are_valid(rows: int, cols: int, density: float, seed: int, order: str) -> None:
    pattern = SparsityPattern.random((rows, cols), density, seed)
    for axis, color in enumerate((color_rows, color_columns)):
        coloring = color(pattern, order)
        assert is_valid(coloring, pattern, axis)
        assert coloring.lower_bound <= coloring.num_colors <= pattern.shape[axis]
        assert coloring.colors.max(initial=-1) < max(coloring.num_colors, 1)
        np.testing.assert_array_equal(coloring.colors, color(pattern, order).colors)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 12), density=st.floats(0.05, 1), seed=st.integers(0, 99))
def test_equal_columns_are_colored_as_if_distinct(size: int, density: float, seed: int) -> None:
    half = SparsityPattern.random((size, size), density, seed)
    double = half.take_columns(np.repeat(np.arange(size), 3))
    assert color_rows(double).num_colors == color_rows(half).num_colors
    assert is_valid(color_columns(double, "dsatur"), double, axis=1)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, 40), density=st.floats(0.01, 0.5), seed=st.integers(0, 99))
def test_conflicts_are_counted(size: int, density: float, seed: int) -> None:
    half = SparsityPattern.random((size, size), density, seed)
    pattern = half.take_columns(np.repeat(np.arange(size), 2))
    matrix = pattern.to_dense().astype(int)
    for graph, shared in (
        (Bipartite.of_rows(half), half.distinct_columns().to_dense().astype(int)),
        (Bipartite.of_columns(pattern), matrix.T),
    ):
        met = shared @ shared.T
        np.testing.assert_array_equal(graph.degrees(), np.maximum((met > 0).sum(axis=1) - 1, 0))
        np.testing.assert_array_equal(graph.paths(), met.sum(axis=1))


@pytest.mark.parametrize("order", ORDERS)
def test_bands_and_blocks_are_numbered_modulo_the_bound(order: str) -> None:
    blocks = SparsityPattern.from_dense(np.kron(np.eye(5), np.ones((3, 4))))
    for pattern, num_colors in ((banded(50, 2), 5), (blocks, 3), (snap1_mask(4), 1)):
        coloring = color_rows(pattern, order)
        assert coloring.num_colors == coloring.lower_bound == num_colors
        np.testing.assert_array_equal(coloring.colors, np.arange(pattern.shape[0]) % num_colors)


def test_largest_first_takes_the_most_conflicts_first() -> None:
    # Row 2 conflicts with rows 0, 1 and 3; all others only with it.
    pattern = SparsityPattern.from_dense([[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]])
    np.testing.assert_array_equal(color_rows(pattern).colors, [1, 1, 0, 1])


def test_a_full_row_and_column_take_three_passes() -> None:
    split = color_bidirectional(arrow(10))
    assert split.num_colors == 3
    both = arrow(50) | SparsityPattern.from_coo(np.full(50, 7), np.arange(50), (50, 50))
    assert color_bidirectional(both).num_colors <= 5


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 10),
    cols=st.integers(1, 10),
    density=st.floats(0.05, 1),
    seed=st.integers(0, 99),
)
def test_bidirectional_never_needs_more_than_one_side(
    rows: int, cols: int, density: float, seed: int
) -> None:
    pattern = SparsityPattern.random((rows, cols), density, seed)
    fewest = min(color_rows(pattern).num_colors, color_columns(pattern).num_colors)
    assert color_bidirectional(pattern).num_colors <= fewest


@pytest.mark.parametrize("order", ["best", "networkx:none", ""])
def test_unknown_orders_are_named(order: str) -> None:
    with pytest.raises(ValueError, match="`order`"):
        color_rows(banded(4, 1), order)


def test_save_and_load(tmp_path: object) -> None:
    path = f"{tmp_path}/coloring.npz"
    coloring = color_rows(banded(9, 1), "dsatur")
    coloring.save(path)
    loaded = Coloring.load(path)
    np.testing.assert_array_equal(loaded.colors, coloring.colors)
    assert (loaded.num_colors, loaded.lower_bound, loaded.order) == (3, 3, "dsatur")
    banded(9, 1).save(path)
    with pytest.raises(ValueError, match="Coloring"):
        Coloring.load(path)
    with pytest.raises(FileNotFoundError):
        Coloring.load(f"{tmp_path}/none.npz")


def test_plot() -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra").use("Agg")
    pattern = banded(9, 1)
    assert "3 row colors" in color_rows(pattern).plot(pattern).get_title()
    wide = snap1_mask(3)
    assert "3 column colors" in color_columns(wide).plot(wide).get_title()
    with pytest.raises(ValueError, match="`pattern`"):
        color_rows(pattern).plot(SparsityPattern.full((9, 9)))
