"""`coo_to_csr` in NumPy, torch and JAX."""

import importlib

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap.ops.coo_to_csr import coo_to_csr

LIBRARIES = ["numpy", "torch", "jax"]


def to_library(library: str, rows: np.ndarray):
    pytest.importorskip(library)
    if library == "torch":
        return importlib.import_module("torch").from_numpy(rows)
    return importlib.import_module("jax.numpy").asarray(rows) if library == "jax" else rows


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_worked_example(library: str, is_sorted: bool) -> None:
    rows = np.array([0, 0, 2, 3, 3, 3], np.int32)
    rows = rows if is_sorted else rows[[3, 0, 2, 5, 1, 4]]
    pointers = coo_to_csr(to_library(library, rows), 5, indices_are_sorted=is_sorted)
    assert pointers.tolist() == [0, 2, 2, 3, 6, 6]
    assert str(pointers.dtype).endswith("int32")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("rows", "num_rows"), [([], 0), ([], 3), ([0], 1), ([2, 2, 2], 3)])
def test_edges(library: str, rows: list[int], num_rows: int) -> None:
    expected = [sum(row < edge for row in rows) for edge in range(num_rows + 1)]
    for is_sorted in (False, True):
        array = to_library(library, np.array(rows, np.int32))
        found = coo_to_csr(array, num_rows, indices_are_sorted=is_sorted)
        assert found.tolist() == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_equals_scipy(library: str) -> None:
    random = np.random.default_rng(0)
    rows, columns = random.integers(0, 500, (2, 4000)).astype(np.int32)
    expected = scipy.sparse.coo_matrix((np.ones(4000), (rows, columns)), (500, 500)).tocsr()
    rows = np.repeat(np.arange(500, dtype=np.int32), np.diff(expected.indptr))
    found = coo_to_csr(to_library(library, random.permutation(rows)), 500)
    np.testing.assert_array_equal(np.asarray(found), expected.indptr)


@given(st.lists(st.integers(0, 9), max_size=40))
def test_counts_the_rows_before_each(rows: list[int]) -> None:
    found = coo_to_csr(np.array(rows, np.int64), 10)
    assert found.dtype == np.int64
    assert found.tolist() == [sum(row < edge for row in rows) for edge in range(11)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("wrong", [-1, 3])
def test_rows_out_of_range_raise(library: str, wrong: int) -> None:
    rows = to_library(library, np.array([0, wrong, 2], np.int32))
    with pytest.raises(ValueError, match=rf"`rows` must be in \[0, 3\), got {wrong}"):
        coo_to_csr(rows, 3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_broken_promise_raises(library: str) -> None:
    rows = to_library(library, np.array([1, 0], np.int32))
    with pytest.raises(ValueError, match="`rows` must not decrease"):
        coo_to_csr(rows, 3, indices_are_sorted=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_arguments(library: str) -> None:
    with pytest.raises(TypeError, match="`rows` must be int32 or int64, got float32"):
        coo_to_csr(to_library(library, np.zeros(2, np.float32)), 3)
    rows = to_library(library, np.zeros((2, 1), np.int32))
    with pytest.raises(ValueError, match=r"`rows` must have the shape \[nnz\], got \[2, 1\]"):
        coo_to_csr(rows, 3)
    rows = to_library(library, np.zeros(0, np.int32))
    with pytest.raises(ValueError, match="`num_rows` must be at least 0, got -1"):
        coo_to_csr(rows, -1)
    with pytest.raises(TypeError, match=r"`num_rows` must be an integer, got 2\.0"):
        coo_to_csr(rows, 2.0)
    with pytest.raises(TypeError, match="got list"):
        coo_to_csr([0, 1], 2)
