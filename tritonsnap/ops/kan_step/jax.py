"""`kan_step` in JAX: dense hat vectors, which XLA fuses into the products; Triton on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tritonsnap.ops.jax_launch import Launch, run
from tritonsnap.ops.kan_step import hats
from tritonsnap.ops.kan_step.launches import (
    gram_launch,
    inner_change_launch,
    inner_sums_launch,
    outer_change_launch,
    outer_values_launch,
)
from tritonsnap.ops.kernel import KernelLaunch
from tritonsnap.ops.primitive import PlanPrimitive

Array = jax.Array


def inner_sums(positions: Array, inner: Array) -> Array:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    return _inner_sums(positions, inner)[0]


def inner_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    return _inner_change(positions, weights, knots=knots)[0]


def outer_values(positions: Array, outer: Array) -> tuple[Array, Array]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    sums, rises = _outer_values(positions, outer)
    return sums, rises


def outer_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    return _outer_change(positions, weights, knots=knots)[0]


def gram(
    inner_positions: Array,
    outer_positions: Array,
    slopes: Array,
    *,
    inner_knots: int,
    outer_knots: int,
    inner_gain: float,
    outer_gain: float,
) -> Array:
    """Multiply the Jacobian with its transpose; see `tritonsnap.ops.kan_step.gram`."""
    gains = jnp.asarray([inner_gain, outer_gain], slopes.dtype)
    knots = {"inner_knots": inner_knots, "outer_knots": outer_knots}
    return _gram(inner_positions, outer_positions, slopes, gains, **knots)[0]


def _gram_of(
    inner_positions: Array, outer_positions: Array, slopes: Array, gains: Array, **knots: int
) -> Array:
    product: Array = hats.gram(
        inner_positions,
        outer_positions,
        slopes,
        inner_gain=gains[0],
        outer_gain=gains[1],
        **knots,
    )
    return product


def _declare(
    name: str,
    function: Callable[..., Any],
    signature: str,
    prepare: Callable[..., KernelLaunch],
) -> Callable[..., tuple[Array, ...]]:
    """Make a primitive of a function of arrays, which maps it over their leading axes.

    On a GPU it is the kernel that `prepare` describes, unless there are leading axes.
    """
    axes = [len(one.split(",")) for one in re.findall(r"\(([^)]*)\)", signature.split("->")[0])]

    def implementation(_: Any, *operands: Array, **params: int) -> tuple[Array, ...]:
        found = jnp.vectorize(lambda *one: function(*one, **params), signature=signature)(*operands)
        return found if isinstance(found, tuple) else (found,)

    def kernels(
        launch: Launch, _: Any, *operands: Array, **params: int
    ) -> tuple[Array, ...] | None:
        if any(one.ndim > own for one, own in zip(operands, axes, strict=True)):
            return None
        return tuple(run(launch, prepare(*operands, **params), operands[0].dtype).values())

    primitive = PlanPrimitive(f"kan_{name}", implementation, kernels=kernels)
    return lambda *operands, **params: primitive((), operands, axes, **params)


_inner_sums = _declare("inner_sums", hats.inner_sums, "(t,j),(j,n,k)->(t,k)", inner_sums_launch)
_inner_change = _declare(
    "inner_change", hats.inner_change, "(t,j),(t,k)->(j,n,k)", inner_change_launch
)
_outer_values = _declare(
    "outer_values", hats.outer_values, "(t,k),(a,n,k)->(a,t),(a,t,k)", outer_values_launch
)
_outer_change = _declare(
    "outer_change", hats.outer_change, "(t,k),(a,t)->(a,n,k)", outer_change_launch
)
_gram = _declare("gram", _gram_of, "(t,j),(t,k),(a,t,k),(g)->(m,m)", gram_launch)
