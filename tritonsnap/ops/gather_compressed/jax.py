"""`gather_compressed` in JAX: one gather, which has all of JAX's transformations."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tritonsnap.ops.gather_compressed.checks import check_arguments
from tritonsnap.sparsity.compression import Projection


def gather_compressed(compressed: jax.Array, projection: Projection) -> jax.Array:
    """See `tritonsnap.ops.gather_compressed.gather_compressed`."""
    check_arguments(compressed, projection)
    compression = projection.compression
    flat = compressed.reshape(*compressed.shape[:-2], math.prod(compressed.shape[-2:]))
    if compression.is_flat:
        return flat
    index = jnp.asarray(projection.index)
    if compression.has_gaps:  # -1 means zero: put one in front
        flat = jnp.concatenate([jnp.zeros_like(flat, shape=(*flat.shape[:-1], 1)), flat], axis=-1)
        return flat.at[..., index + 1].get(mode="promise_in_bounds")
    return flat.at[..., index].get(mode="promise_in_bounds", unique_indices=True)
