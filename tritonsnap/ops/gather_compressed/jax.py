"""`gather_compressed` in JAX: a primitive that is one gather, and on a GPU a Triton kernel."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from tritonsnap.ops.canonical_kernels import floats, full_batch
from tritonsnap.ops.gather_compressed.checks import check_arguments
from tritonsnap.ops.gather_compressed.launches import gather_launch
from tritonsnap.ops.jax_launch import Launch, run
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.jax_target import default_target
from tritonsnap.sparsity.compression import Projection, Runs

Array = jax.Array
Structure = tuple[Array, Runs | None]


def gather_compressed(compressed: Array, projection: Projection) -> Array:
    """See `tritonsnap.ops.gather_compressed.gather_compressed`."""
    check_arguments(compressed, projection)
    compression = projection.compression
    if compression.is_flat:
        return _flat(compressed)
    runs = projection.runs if default_target() == "triton" else None
    structure = (
        jnp.asarray(projection.index),
        None if runs is None else Runs(*map(jnp.asarray, runs)),
    )
    return _gather_compressed(structure, (compressed,), (2,), has_gaps=compression.has_gaps)[0]


def _implementation(structure: Structure, compressed: Array, has_gaps: bool) -> tuple[Array, ...]:
    index, _ = structure
    if has_gaps:  # -1 means zero: put one in front
        flat = _flat(compressed)
        flat = jnp.concatenate([jnp.zeros_like(flat, shape=(*flat.shape[:-1], 1)), flat], axis=-1)
        return (flat.at[..., index + 1].get(mode="promise_in_bounds"),)
    # A flat place would be divided anew where XLA fuses the gather with what it reads.
    length = jnp.full_like(index, compressed.shape[-1])
    places = compressed.at[..., lax.div(index, length), lax.rem(index, length)]
    return (places.get(mode="promise_in_bounds", unique_indices=True),)


def _flat(compressed: Array) -> Array:
    return compressed.reshape(*compressed.shape[:-2], math.prod(compressed.shape[-2:]))


def _kernels(
    launch: Launch, structure: Structure, compressed: Array, has_gaps: bool
) -> tuple[Array, ...] | None:
    if floats(compressed) is None:
        return None
    index, runs = structure
    batch = compressed.shape[:-2]
    flat = full_batch(_flat(compressed), batch)
    one = gather_launch(flat, index, runs, compressed.shape[-1])
    values = run(launch, one, flat.dtype)["values"]
    return (values.reshape(*batch, len(index)),)


_gather_compressed = PlanPrimitive(
    "gather_compressed", _implementation, lambda num_operands, _: [1], kernels=_kernels
)
