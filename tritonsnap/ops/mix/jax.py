"""`mix` in JAX: one scatter with unique indices, so without conflicts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tritonsnap.ops.mix.checks import check_arguments


def mix(a: jax.Array, b: jax.Array, positions: Any) -> jax.Array:
    """See `tritonsnap.ops.mix.mix`."""
    check_arguments(a, b, positions)
    mixed = a.astype(jnp.result_type(a, b))
    return mixed.at[..., jnp.asarray(positions)].add(
        b.astype(mixed.dtype), unique_indices=True, mode="promise_in_bounds"
    )
