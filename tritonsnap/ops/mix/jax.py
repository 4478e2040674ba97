"""`mix` in JAX: one scatter with unique indices, so without conflicts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tritonsnap.ops.mix.checks import check_arguments, check_range


def mix(a: jax.Array, b: jax.Array, positions: Any) -> jax.Array:
    """See `tritonsnap.ops.mix.mix`."""
    check_arguments(a, b, positions)
    if not isinstance(positions, jax.core.Tracer):
        check_range(positions, a.shape[-1])
    positions = jnp.asarray(positions)
    inside = jnp.where(positions < 0, a.shape[-1], positions)  # negative ones count from the end
    mixed = a.astype(jnp.result_type(a, b))
    return mixed.at[..., inside].add(b.astype(mixed.dtype), unique_indices=True, mode="drop")
