"""`kan_step` in NumPy: matrix products for functions of few points, gathers for many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def inner_sums(positions: Array, inner: Array) -> Array:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    inputs, knots, addends = inner.shape
    sums: Array = _all_hats(positions, knots).T @ inner.reshape(inputs * knots, addends)
    return sums


def inner_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    change = _all_hats(positions, knots) @ weights
    return change.reshape(positions.shape[1], knots, weights.shape[1])


def outer_values(positions: Array, outer: Array) -> tuple[Array, Array]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    targets, knots, addends = outer.shape
    knot, offset = _intervals(positions, knots)
    place = _places(knot, addends)
    values = outer.reshape(targets, -1).take(place, axis=1)
    rises = (outer[:, 1:] - outer[:, :-1]).reshape(targets, -1).take(place, axis=1)
    values += offset * rises
    return values @ np.ones(addends, values.dtype), rises


def outer_change(positions: Array, weights: Array, knots: int) -> Array:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    addends = positions.shape[1]
    knot, offset = _intervals(positions, knots)
    place, size = _places(knot, addends).ravel(), knots * addends
    change = np.empty((len(weights), knots, addends), positions.dtype)
    for target, weight in enumerate(weights[:, :, None]):
        second = offset * weight
        counts = np.bincount(place, (weight - second).ravel(), size)
        # the second knot of an interval lies `addends` further
        counts[addends:] += np.bincount(place, second.ravel(), size)[:-addends]
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
    hats = _used_hats(outer_positions, outer_knots)
    outer_part = hats.T @ hats
    outer_part *= real(outer_gain)
    hats = _all_hats(inner_positions, inner_knots)
    inner_part = hats.T @ hats
    inner_part *= real(inner_gain)
    flat = slopes.reshape(targets * records, addends)
    product = (flat @ flat.T).reshape(targets, records, targets, records)
    product *= inner_part[:, None, :]
    for target in range(targets):
        product[target, :, target] += outer_part
    return product.reshape(targets * records, targets * records)


def _intervals(positions: Array, knots: int) -> tuple[Array, Array]:
    """Find the knot before each position, never the last one, and the offset from it."""
    knot = positions.astype(np.int32)
    np.minimum(knot, knots - 2, out=knot)
    return knot, positions - knot.astype(positions.dtype)


def _places(knot: Array, columns: int) -> Array:
    """Where knots [records, columns] lie in values [knots, columns]."""
    place = knot.astype(np.intp)
    place *= columns
    place += np.arange(columns)
    return place


def _all_hats(positions: Array, knots: int) -> Array:
    """Hat vectors [columns * knots, records], for functions of few points."""
    columns = np.ascontiguousarray(positions.T)
    hats: Array = columns[:, None] - np.arange(knots, dtype=positions.dtype)[:, None]
    np.abs(hats, out=hats)
    np.subtract(1, hats, out=hats)
    np.maximum(hats, 0, out=hats)
    return hats.reshape(-1, len(positions))


def _used_hats(positions: Array, knots: int) -> Array:
    """Hat vectors [columns * knots, records] without the knots at both ends that nothing is near.

    The arguments of a function of many points lie between about half of them.
    """
    records = len(positions)
    knot, offset = _intervals(positions, knots)
    least = knot.min(axis=0)
    widths = knot.max(axis=0) - least + 2
    ends = widths.cumsum()
    place = (ends - widths - least) + knot
    place *= records
    place += np.arange(records)[:, None]
    hats = np.zeros((int(ends[-1]), records), positions.dtype)
    flat = hats.reshape(-1)
    flat[place] = 1 - offset
    place += records
    flat[place] = offset
    return hats
