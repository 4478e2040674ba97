"""The chain of kernels behind `coo_to_csr`, as the GPU runs it."""

import numpy as np
import pytest
import torch

from tritonsnap.ops.coo_to_csr.numpy import coo_to_csr
from tritonsnap.ops.coo_to_csr.torch import row_pointers


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(
    ("nnz", "num_rows"), [(0, 5), (0, 0), (1, 1), (300, 7), (17_000, 2050), (40, 5000)]
)
def test_equals_numpy(nnz: int, num_rows: int, is_sorted: bool, dtype: type) -> None:
    rows = np.random.default_rng(nnz).integers(0, max(num_rows, 1), nnz).astype(dtype)
    rows = np.sort(rows) if is_sorted else rows
    found = row_pointers(torch.from_numpy(rows), num_rows, is_sorted).numpy()
    expected = coo_to_csr(rows, num_rows)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("stride", [0, 3])
def test_rows_of_any_stride(stride: int, is_sorted: bool) -> None:
    whole = np.random.default_rng(0).integers(0, 7, 900)
    rows = torch.from_numpy(np.sort(whole) if is_sorted else whole)
    rows = rows[::stride] if stride else rows[:1].expand(300)
    expected = coo_to_csr(rows.numpy(), 7)
    np.testing.assert_array_equal(row_pointers(rows, 7, is_sorted).numpy(), expected)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("wrong", [-1, 40, 2**31 - 1, -(2**31)])
def test_rows_out_of_range_are_missing_from_the_pointers(wrong: int, is_sorted: bool) -> None:
    rows = np.append(np.random.default_rng(0).integers(0, 40, 100), wrong).astype(np.int32)
    rows = np.sort(rows) if is_sorted else rows
    pointers = row_pointers(torch.from_numpy(rows), 40, is_sorted)
    assert pointers[-1] - pointers[0] == 100


def test_rows_beyond_int32_are_missing_too() -> None:
    rows = torch.tensor([0, 2**32, 2**32 + 1, 1, -(2**32)])
    assert row_pointers(rows, 2, False).tolist() == [0, 1, 2]
