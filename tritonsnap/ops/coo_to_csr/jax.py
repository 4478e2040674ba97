"""`coo_to_csr` in JAX: plain array operations, which XLA compiles for every platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tritonsnap.ops.coo_to_csr.checks import check_arguments, outside, pointer_bits, unsorted


def coo_to_csr(rows: jax.Array, num_rows: int, *, indices_are_sorted: bool = False) -> jax.Array:
    """Compress row indices to row pointers; see `tritonsnap.coo_to_csr`."""
    check_arguments(rows, num_rows)
    if not isinstance(rows, jax.core.Tracer) and rows.size:
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= num_rows:
            raise outside(low, high, num_rows)
        if indices_are_sorted and bool(jnp.any(rows[1:] < rows[:-1])):
            raise unsorted()
    dtype = np.dtype(f"int{pointer_bits(str(rows.dtype), rows.size)}")
    if indices_are_sorted:
        edges = jnp.arange(num_rows + 1, dtype=rows.dtype)
        found = jnp.searchsorted(rows, edges).astype(dtype)
        return found - found[0]
    # a negative index would count from the end
    kept = jnp.where(rows < 0, num_rows, rows)
    counts = jnp.zeros(num_rows, dtype).at[kept].add(1, mode="drop")
    return jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts, dtype=dtype)])
