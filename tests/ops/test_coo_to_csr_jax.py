"""`coo_to_csr` under JAX's transformations."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tritonsnap.ops.coo_to_csr import coo_to_csr


@pytest.mark.parametrize("is_sorted", [False, True])
def test_jit_vmap_and_scan(is_sorted: bool) -> None:
    rows = np.random.default_rng(0).integers(0, 6, (3, 20)).astype(np.int32)
    rows = np.sort(rows, axis=1) if is_sorted else rows
    compress = functools.partial(coo_to_csr, num_rows=6, indices_are_sorted=is_sorted)
    expected = np.stack([compress(row) for row in rows])
    np.testing.assert_array_equal(jax.jit(jax.vmap(compress))(rows), expected)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, compress(row)), 0, rows)
    np.testing.assert_array_equal(scanned, expected)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_traced_rows_out_of_range_are_left_out(is_sorted: bool) -> None:
    rows = np.array([-1, 0, 0, 2, 3], np.int32)
    compress = jax.jit(functools.partial(coo_to_csr, num_rows=3, indices_are_sorted=is_sorted))
    assert compress(rows).tolist() == [0, 2, 2, 3]
