"""`kan_step` in JAX: dense hat vectors, which XLA fuses into the products; Triton on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.kan_step import hats
from tritonsnap.ops.primitive import PlanPrimitive

Array = jax.Array


def inner_sums(positions: Array, inner: Array) -> Array:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    return _inner_sums((), (positions, inner), (2, 3))[0]


def inner_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    return _inner_change((), (positions, weights), (2, 2), knots=knots)[0]


def outer_values(positions: Array, outer: Array) -> tuple[Array, Array]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    sums, rises = _outer_values((), (positions, outer), (2, 3))
    return sums, rises


def outer_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    return _outer_change((), (positions, weights), (2, 2), knots=knots)[0]


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
    operands = inner_positions, outer_positions, slopes, gains
    knots = {"inner_knots": inner_knots, "outer_knots": outer_knots}
    return _gram((), operands, (2, 2, 3, 1), **knots)[0]


def _batched(function: Callable[..., Any], signature: str) -> Callable[..., tuple[Array, ...]]:
    """Map a function of arrays over their leading axes, as `PlanPrimitive` asks for."""

    def implementation(_: Any, *operands: Array, **params: int) -> tuple[Array, ...]:
        found = jnp.vectorize(lambda *one: function(*one, **params), signature=signature)(*operands)
        return found if isinstance(found, tuple) else (found,)

    return implementation


def _inner_sums_kernel(
    launch: Launch, _: Any, positions: Array, inner: Array
) -> tuple[Array, ...] | None:
    if positions.ndim > 2 or inner.ndim > 3:
        return None
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_SUMS

    inputs, knots, addends = inner.shape
    records = len(positions)
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "inner": inner, **sizes}
    return launch(KAN_INNER_SUMS, arguments, {"sums": (records, addends)}, sizes, inner.dtype)


def _inner_change_kernel(
    launch: Launch, _: Any, positions: Array, weights: Array, knots: int
) -> tuple[Array, ...] | None:
    if positions.ndim > 2 or weights.ndim > 2:
        return None
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_CHANGE

    (records, inputs), addends = positions.shape, weights.shape[1]
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "weights": weights, **sizes}
    outputs = {"change": (inputs, knots, addends)}
    return launch(KAN_INNER_CHANGE, arguments, outputs, sizes, weights.dtype)


def _outer_values_kernel(
    launch: Launch, _: Any, positions: Array, outer: Array
) -> tuple[Array, ...] | None:
    if positions.ndim > 2 or outer.ndim > 3:
        return None
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_VALUES

    targets, knots, addends = outer.shape
    records = len(positions)
    numbers = {"records": records, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "outer": outer, **numbers}
    outputs = {"sums": (targets, records), "rises": (targets, records, addends)}
    sizes = {**numbers, "targets": targets}
    return launch(KAN_OUTER_VALUES, arguments, outputs, sizes, outer.dtype)


def _outer_change_kernel(
    launch: Launch, _: Any, positions: Array, weights: Array, knots: int
) -> tuple[Array, ...] | None:
    if positions.ndim > 2 or weights.ndim > 2:
        return None
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_CHANGE

    (records, addends), targets = positions.shape, len(weights)
    numbers = {"records": records, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "weights": weights, **numbers}
    outputs = {"change": (targets, knots, addends)}
    sizes = {**numbers, "targets": targets}
    return launch(KAN_OUTER_CHANGE, arguments, outputs, sizes, weights.dtype)


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


def _gram_kernel(
    launch: Launch, _: Any, *operands: Array, inner_knots: int, outer_knots: int
) -> tuple[Array, ...] | None:
    inner_positions, outer_positions, slopes, gains = operands
    if inner_positions.ndim > 2 or outer_positions.ndim > 2 or slopes.ndim > 3 or gains.ndim > 1:
        return None
    from tritonsnap.ops.kan_step.kernels import KAN_GRAM

    targets, records, addends = slopes.shape
    sizes = {
        "records": records,
        "targets": targets,
        "inputs": inner_positions.shape[1],
        "addends": addends,
        "inner_knots": inner_knots,
        "outer_knots": outer_knots,
    }
    arguments = {
        "inner_positions": inner_positions,
        "outer_positions": outer_positions,
        "slopes": slopes,
        "gains": gains,
        **sizes,
    }
    rows = targets * records
    return launch(KAN_GRAM, arguments, {"gram": (rows, rows)}, sizes, slopes.dtype)


_inner_sums = PlanPrimitive(
    "kan_inner_sums",
    _batched(hats.inner_sums, "(t,j),(j,n,k)->(t,k)"),
    kernels=_inner_sums_kernel,
)
_inner_change = PlanPrimitive(
    "kan_inner_change",
    _batched(hats.inner_change, "(t,j),(t,k)->(j,n,k)"),
    kernels=_inner_change_kernel,
)
_outer_values = PlanPrimitive(
    "kan_outer_values",
    _batched(hats.outer_values, "(t,k),(a,n,k)->(a,t),(a,t,k)"),
    kernels=_outer_values_kernel,
)
_outer_change = PlanPrimitive(
    "kan_outer_change",
    _batched(hats.outer_change, "(t,k),(a,t)->(a,n,k)"),
    kernels=_outer_change_kernel,
)
_gram = PlanPrimitive(
    "kan_gram",
    _batched(_gram_of, "(t,j),(t,k),(a,t,k),(g)->(m,m)"),
    kernels=_gram_kernel,
)
