"""`kan_step` in NumPy: gathers and counts where hat vectors have two nonzeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def inner_sums(positions: Array, inner: Array) -> Array:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    inputs, knots, addends = inner.shape
    return _few_hats(positions, knots) @ inner.reshape(inputs * knots, addends)


def inner_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    change = _few_hats(positions, knots).T @ weights
    return change.reshape(positions.shape[1], knots, weights.shape[1])


def outer_values(positions: Array, outer: Array) -> tuple[Array, Array]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    targets, knots, addends = outer.shape
    knot, offset = _interval(positions, knots)
    first = knot * addends + np.arange(addends, dtype=knot.dtype)  # [records, addends]
    flat = outer.reshape(targets, knots * addends)
    start = flat.take(first, axis=1)
    rises = flat.take(first + knot.dtype.type(addends), axis=1) - start
    return (start + offset * rises).sum(axis=-1), rises


def outer_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    addends = positions.shape[1]
    knot, offset = _interval(positions, knots)
    first = (knot * addends + np.arange(addends, dtype=knot.dtype)).ravel()
    change = np.empty((len(weights), knots, addends), positions.dtype)
    for target, weight in enumerate(weights):
        second_part = offset * weight[:, None]
        first_part = weight[:, None] - second_part
        size = knots * addends
        counts = np.bincount(first, first_part.ravel(), size)
        # the second knot of an interval lies `addends` further
        counts[addends:] += np.bincount(first, second_part.ravel(), size)[:-addends]
        change[target] = counts.reshape(knots, addends)
    return change


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
    targets, records, addends = slopes.shape
    real = outer_positions.dtype.type
    hats = _many_hats(outer_positions, outer_knots)
    outer_part = hats @ hats.T
    outer_part *= real(outer_gain)
    hats = _few_hats(inner_positions, inner_knots)
    inner_part = hats @ hats.T
    inner_part *= real(inner_gain)
    flat = slopes.reshape(targets * records, addends)
    product = (flat @ flat.T).reshape(targets, records, targets, records)
    product *= inner_part[:, None, :]
    for target in range(targets):
        product[target, :, target] += outer_part
    return product.reshape(targets * records, targets * records)


def _interval(positions: Array, knots: int) -> tuple[Array, Array]:
    """Find the knot before each position, never the last one, and the offset from it."""
    knot = positions.astype(np.int32)
    np.minimum(knot, knots - 2, out=knot)
    return knot, positions - knot.astype(positions.dtype)


def _few_hats(positions: Array, knots: int) -> Array:
    """Hat vectors side by side [records, columns * knots], for functions of few points."""
    hats: Array = positions[:, :, None] - np.arange(knots, dtype=positions.dtype)
    np.abs(hats, out=hats)
    np.subtract(1, hats, out=hats)
    np.maximum(hats, 0, out=hats)
    return hats.reshape(len(positions), -1)


def _many_hats(positions: Array, knots: int) -> Array:
    """Hat vectors [records, knots * columns], for functions of many points: mostly zeros."""
    records, columns = positions.shape
    knot, offset = _interval(positions, knots)
    first = knot.astype(np.intp) * columns + np.arange(columns)
    first += (np.arange(records) * (knots * columns))[:, None]
    hats = np.zeros(records * knots * columns, positions.dtype)
    hats[first] = 1 - offset
    hats[first + columns] = offset
    return hats.reshape(records, -1)
