"""`kan_step` by dense hat vectors, in any array library that follows the array API."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import device_of, namespace_of


def hats(positions: Any, knots: int) -> Any:
    """Hat vectors [..., columns, knots] of positions [..., columns]."""
    xp = namespace_of(positions)
    grid = xp.arange(knots, dtype=positions.dtype, device=device_of(positions))
    hat = 1 - xp.abs(positions[..., None] - grid)
    return xp.where(hat > 0, hat, xp.zeros_like(hat))


def inner_sums(positions: Any, inner: Any) -> Any:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    xp = namespace_of(positions)
    inputs, knots, addends = inner.shape
    hat = xp.reshape(hats(positions, knots), (positions.shape[0], inputs * knots))
    return hat @ xp.reshape(inner, (inputs * knots, addends))


def inner_change(positions: Any, weights: Any, knots: int) -> Any:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    xp = namespace_of(positions)
    records, inputs = positions.shape
    hat = xp.reshape(hats(positions, knots), (records, inputs * knots))
    return xp.reshape(hat.T @ weights, (inputs, knots, weights.shape[1]))


def outer_values(positions: Any, outer: Any) -> tuple[Any, Any]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    xp = namespace_of(positions)
    targets, knots, addends = outer.shape
    knot = xp.clip(xp.floor(positions), 0, knots - 2)
    offset = positions - knot
    columns = xp.arange(addends, device=device_of(positions))
    first = xp.reshape(xp.astype(knot, xp.int32) * addends + columns, (-1,))
    flat = xp.reshape(outer, (targets, knots * addends))
    start = xp.reshape(xp.take(flat, first, axis=1), (targets, *positions.shape))
    end = xp.reshape(xp.take(flat, first + addends, axis=1), (targets, *positions.shape))
    rises = end - start
    return xp.sum(start + offset * rises, axis=-1), rises


def outer_change(positions: Any, weights: Any, knots: int) -> Any:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    xp = namespace_of(positions)
    records, addends = positions.shape
    hat = xp.reshape(hats(positions, knots), (records, addends * knots))
    change = xp.reshape(weights @ hat, (weights.shape[0], addends, knots))
    return xp.permute_dims(change, (0, 2, 1))


def gram(
    inner_positions: Any,
    outer_positions: Any,
    slopes: Any,
    *,
    inner_knots: int,
    outer_knots: int,
    inner_gain: Any,
    outer_gain: Any,
) -> Any:
    """Multiply the Jacobian with its transpose; see `tritonsnap.ops.kan_step.gram`."""
    xp = namespace_of(slopes)
    targets, records, addends = slopes.shape
    hat = xp.reshape(hats(outer_positions, outer_knots), (records, addends * outer_knots))
    outer_part = outer_gain * (hat @ hat.T)
    hat = xp.reshape(hats(inner_positions, inner_knots), (records, -1))
    inner_part = inner_gain * (hat @ hat.T)
    flat = xp.reshape(slopes, (targets * records, addends))
    product = xp.reshape(flat @ flat.T, (targets, records, targets, records))
    same_target = xp.eye(targets, dtype=slopes.dtype, device=device_of(slopes))
    product = product * inner_part[:, None, :] + same_target[:, None, :, None] * outer_part[:, None]
    return xp.reshape(product, (targets * records, targets * records))
