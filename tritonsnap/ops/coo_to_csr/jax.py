"""`coo_to_csr` in JAX: a primitive of array operations, and on a GPU of Triton kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tritonsnap.ops.coo_to_csr.checks import check_arguments, outside, pointer_bits, unsorted
from tritonsnap.ops.coo_to_csr.launches import (
    count_launch,
    finish_launch,
    scan_launch,
    search_launch,
)
from tritonsnap.ops.jax_launch import Launch, run
from tritonsnap.ops.primitive import PlanPrimitive

Array = jax.Array


def coo_to_csr(rows: Array, num_rows: int, *, indices_are_sorted: bool = False) -> Array:
    """Compress row indices to row pointers; see `tritonsnap.coo_to_csr`."""
    check_arguments(rows, num_rows)
    if not isinstance(rows, jax.core.Tracer) and rows.size:
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= num_rows:
            raise outside(low, high, num_rows)
        if indices_are_sorted and bool(jnp.any(rows[1:] < rows[:-1])):
            raise unsorted()
    return _coo_to_csr((), (rows,), (1,), num_rows=int(num_rows), is_sorted=indices_are_sorted)[0]


def _implementation(_: Any, rows: Array, num_rows: int, is_sorted: bool) -> tuple[Array, ...]:
    compress = partial(_row_pointers, num_rows=num_rows, is_sorted=is_sorted)
    for _ in rows.shape[:-1]:
        compress = jax.vmap(compress)
    return (compress(rows),)


def _row_pointers(rows: Array, num_rows: int, is_sorted: bool) -> Array:
    dtype = _pointer_dtype(rows)
    if is_sorted:
        edges = jnp.arange(num_rows + 1, dtype=rows.dtype)
        found = jnp.searchsorted(rows, edges).astype(dtype)
        return found - found[0]
    # a negative index would count from the end
    kept = jnp.where(rows < 0, num_rows, rows)
    counts = jnp.zeros(num_rows, dtype).at[kept].add(1, mode="drop")
    return jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts, dtype=dtype)])


def _pointer_dtype(rows: Array) -> np.dtype[Any]:
    return np.dtype(f"int{pointer_bits(str(rows.dtype), rows.shape[-1])}")


def _kernels(
    launch: Launch, _: Any, rows: Array, num_rows: int, is_sorted: bool
) -> tuple[Array, ...] | None:
    nnz, dtype = rows.shape[-1], rows.dtype
    if rows.ndim > 1 or dtype != _pointer_dtype(rows) or not nnz or not num_rows:
        return None
    if is_sorted:
        pointers = run(launch, search_launch(rows, num_rows), dtype)["pointers"]
        return (pointers - pointers[0],)
    counts = run(launch, count_launch(rows, num_rows), dtype)["counts"]
    scanned = run(launch, scan_launch(counts), dtype)
    finished = run(launch, finish_launch(scanned["sums"], scanned["totals"]), dtype)
    return (finished["pointers"],)


_coo_to_csr = PlanPrimitive("coo_to_csr", _implementation, kernels=_kernels)
