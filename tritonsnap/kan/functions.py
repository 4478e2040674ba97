"""The numbers of a KAN, and what it predicts: one source for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.ops.kan_step.faces import face_of

Convention = Literal["mean", "sum"]


class Functions(NamedTuple):
    """Knot values and domains of all functions; arrays of one library, a pytree in JAX.

    Knots divide a domain [low, high] uniformly. Addends come last, so that one record touches
    contiguous rows of `inner`.

    Parameters
    ----------
    inner : array, shape [inputs, inner points, addends]
        Knot values of the inner functions f_kj.
    outer : array, shape [targets, outer points, addends]
        Knot values of the outer functions g_k, in units of `scale`.
    input_low, input_high : array, shape [inputs]
        Domain of the inner functions of each input, in the input's own units.
    sum_low, sum_high : array, shape [addends]
        Domain of the outer functions of each addend.
    shift, scale : array, shape [targets]
        A prediction is ``shift + scale * y`` with y the sum over the addends, in target units.
    """

    inner: Any
    outer: Any
    input_low: Any
    input_high: Any
    sum_low: Any
    sum_high: Any
    shift: Any
    scale: Any


class Activations(NamedTuple):
    """What a forward pass over a block of records leaves behind.

    Parameters
    ----------
    input_positions : array, shape [records, inputs]
        Where each input lies on the grid of its inner functions, in knots.
    sums : array, shape [records, addends]
        Arguments u_k of the outer functions.
    sum_positions : array, shape [records, addends]
        Where they lie on the grid of the outer functions, in knots.
    slopes : array, shape [targets, records, addends]
        Derivative of each outer function at its argument; zero outside of its domain.
    outputs : array, shape [targets, records]
        The sums over the addends, in units of `Functions.scale`.
    """

    input_positions: Any
    sums: Any
    sum_positions: Any
    slopes: Any
    outputs: Any


def layer_scales(convention: Convention, inputs: int, addends: int) -> tuple[float, float]:
    """Return the factors s_1 of the sum over inputs and s_2 of the sum over addends."""
    return (1 / inputs, 1 / addends) if convention == "mean" else (1.0, 1.0)


def grid_positions(xp: Any, values: Any, low: Any, high: Any, knots: int) -> Any:
    """Find where values lie on a uniform grid over [low, high], in knots, held to its ends."""
    return xp.clip((values - low) * ((knots - 1) / (high - low)), 0, knots - 1)


def extend_domain(xp: Any, low: Any, high: Any, values: Any) -> tuple[Any, Any]:
    """Move the ends of domains that values [records, ...] pass, and widen there by 1 %."""
    if xp is np and (values >= low).all() and (values <= high).all():
        return low, high  # seen in a quarter of the time that extremes take
    least, most = xp.min(values, axis=0), xp.max(values, axis=0)
    lower = xp.where(least < low, least - 0.01 * (high - least), low)
    higher = xp.where(most > high, most + 0.01 * (most - low), high)
    return lower, higher


def activate(
    functions: Functions, x: Any, convention: Convention, *, adapt: bool = False
) -> tuple[Functions, Activations]:
    """Evaluate all functions on a block of records.

    Parameters
    ----------
    functions : Functions
        The numbers of the KAN.
    x : array, shape [records, inputs]
        Inputs, of the dtype of `functions`.
    convention : {"mean", "sum"}
        Whether sums over inputs and addends are divided by their numbers.
    adapt : bool
        Extend domains to what lies outside. Otherwise a function keeps its end value there.

    Returns
    -------
    functions : Functions
        With the domains that were used.
    activations : Activations
        What the pass computed.
    """
    xp = namespace_of(x)
    ops = face_of(x)
    inputs, inner_knots, addends = functions.inner.shape
    outer_knots = functions.outer.shape[1]
    inner_scale, outer_scale = layer_scales(convention, inputs, addends)
    if adapt:
        low, high = extend_domain(xp, functions.input_low, functions.input_high, x)
        functions = functions._replace(input_low=low, input_high=high)
    positions = grid_positions(xp, x, functions.input_low, functions.input_high, inner_knots)
    sums = ops.inner_sums(positions, functions.inner) * inner_scale
    if adapt:
        low, high = extend_domain(xp, functions.sum_low, functions.sum_high, sums)
        functions = functions._replace(sum_low=low, sum_high=high)
    low, high = functions.sum_low, functions.sum_high
    sum_positions = grid_positions(xp, sums, low, high, outer_knots)
    totals, rises = ops.outer_values(sum_positions, functions.outer)
    slopes = rises * ((outer_knots - 1) / (high - low))
    if not adapt:
        inside = (sums >= low) & (sums <= high)
        slopes = xp.where(inside, slopes, xp.zeros_like(slopes))
    return functions, Activations(positions, sums, sum_positions, slopes, totals * outer_scale)


def predict(functions: Functions, x: Any, convention: Convention = "mean") -> Any:
    """Predict the targets of a block of records.

    Parameters
    ----------
    functions : Functions
        The numbers of the KAN.
    x : array, shape [records, inputs]
        Inputs, of the library and dtype of `functions`.
    convention : {"mean", "sum"}
        Whether sums over inputs and addends are divided by their numbers.

    Returns
    -------
    array, shape [records, targets]
        In target units, NaN for a record with a NaN. Differentiable in torch and JAX, almost
        everywhere.
    """
    xp = namespace_of(x)
    missing = xp.isnan(x)
    _, activations = activate(functions, xp.where(missing, functions.input_low, x), convention)
    predictions = functions.shift + functions.scale * activations.outputs.T
    return xp.where(xp.any(missing, axis=1)[:, None], xp.nan, predictions)
