"""One training step: from a block of records to the change of every function.

The residuals, slopes and hat vectors of a step come from the same functions, so that a change is
consistent however stale those are (Polar and Poluektov, arXiv 2305.08194, equations 10-13).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from tritonsnap.arrays import device_of, namespace_of
from tritonsnap.kan.functions import Convention, Functions, activate, layer_scales
from tritonsnap.kan.linear_algebra import solve_positive
from tritonsnap.ops.kan_step.faces import face_of

Solver = Literal["kaczmarz", "newton-kaczmarz"]

_MEDIAN_TO_DEVIATION = 1.4826
"""A normal sample's standard deviation over the median of its absolute values."""


@dataclass(frozen=True)
class Rule:
    """How residuals become changes.

    Parameters
    ----------
    solver : {"kaczmarz", "newton-kaczmarz"}
        Whether each record is followed by itself, with weight ``step * residual``, or the block
        as a whole: weights a that solve ``(G + damping mean(diag G) I) a = step * residual`` with
        G the Gram matrix of the block's Jacobian.
    convention : {"mean", "sum"}
        The model's.
    step : float
        The fraction of a residual that is corrected (Newton), or the factor of its hat vectors.
    inner_step, outer_step : float
        Further factors of the inner and of the outer functions' change.
    damping : float
        Of Newton-Kaczmarz, relative to the mean squared norm of a record's Jacobian.
    concurrency : float
        Newton-Kaczmarz counts on so many blocks like its own that are under way on the same
        functions, so that their sum does not overshoot.
    select : float
        The fraction of records kept, those with the largest residuals.
    clip : float, optional
        Bound of a residual, in robust standard deviations of the block's residuals.
    adapt : bool
        Whether domains are extended to the records.
    """

    solver: Solver
    convention: Convention
    step: float
    inner_step: float
    outer_step: float
    damping: float
    concurrency: float
    select: float
    clip: float | None
    adapt: bool


class Change(NamedTuple):
    """What one block of records does to some of the functions.

    Parameters
    ----------
    inner : array, shape [inputs, inner points, addends]
        To add to the inner functions.
    outer : array, shape [targets, outer points, addends]
        To add to the outer functions.
    input_low, input_high : array, shape [inputs]
        The domain in use; the new one is the union with this.
    sum_low, sum_high : array, shape [addends]
        As above, of the outer functions.
    """

    inner: Any
    outer: Any
    input_low: Any
    input_high: Any
    sum_low: Any
    sum_high: Any


def train_step(
    functions: Functions, x: Any, y: Any, rule: Rule, addends: slice = slice(None)
) -> tuple[Change, Any]:
    """Compute how a block of records changes the functions.

    Parameters
    ----------
    functions : Functions
        The numbers of the KAN, which are left as they are.
    x : array, shape [records, inputs]
        Inputs, finite.
    y : array, shape [records, targets]
        Targets, finite.
    rule : Rule
        How residuals become changes.
    addends : slice
        Which addends' functions to change; by default all.

    Returns
    -------
    change : Change
        Of the functions of those addends.
    squared_error : array, shape [targets]
        Mean over the records, before the step, in squared target units.
    """
    xp = namespace_of(x)
    ops = face_of(x)
    inputs, inner_knots, all_addends = functions.inner.shape
    outer_knots = functions.outer.shape[1]
    inner_scale, outer_scale = layer_scales(rule.convention, inputs, all_addends)

    used, activations = activate(functions, x, rule.convention, adapt=rule.adapt)
    errors = (y.T - functions.shift[:, None]) / functions.scale[:, None] - activations.outputs
    scale = functions.scale.astype(np.float64) if xp is np else functions.scale
    squared_error = xp.sum(errors * errors, axis=1) * (scale**2 / x.shape[0])
    if rule.clip is not None:
        errors = clip_residuals(xp, errors, rule.clip)
    positions = activations.input_positions
    sum_positions = activations.sum_positions[:, addends]
    slopes = activations.slopes[:, :, addends]
    if rule.select < 1:
        chosen = largest_residuals(xp, errors, rule.select)
        errors = xp.take(errors, chosen, axis=1)
        positions = xp.take(positions, chosen, axis=0)
        sum_positions = xp.take(sum_positions, chosen, axis=0)
        slopes = xp.take(slopes, chosen, axis=1)
    if rule.solver == "kaczmarz":
        weights = errors * rule.step
    else:
        gram = ops.gram(
            positions,
            sum_positions,
            slopes,
            inner_knots=inner_knots,
            outer_knots=outer_knots,
            inner_gain=rule.inner_step * inner_scale * outer_scale,
            outer_gain=rule.outer_step * outer_scale,
        )
        weights = damped_solution(xp, gram, errors, rule.damping, rule.concurrency) * rule.step
    inner_weights = xp.sum(slopes * weights[:, :, None], axis=0) * rule.inner_step
    change = Change(
        ops.inner_change(positions, inner_weights, inner_knots),
        ops.outer_change(sum_positions, weights * rule.outer_step, outer_knots),
        used.input_low,
        used.input_high,
        used.sum_low[addends],
        used.sum_high[addends],
    )
    return change, squared_error


def apply_change(functions: Functions, change: Change, addends: slice = slice(None)) -> Functions:
    """Make new functions, of NumPy or torch, with a change of some addends in them."""
    xp = namespace_of(functions.inner)
    inner, outer = (xp.asarray(array, copy=True) for array in functions[:2])
    inner[..., addends] += change.inner
    outer[..., addends] += change.outer
    sum_low = xp.asarray(functions.sum_low, copy=True)
    sum_high = xp.asarray(functions.sum_high, copy=True)
    sum_low[addends] = xp.minimum(sum_low[addends], change.sum_low)
    sum_high[addends] = xp.maximum(sum_high[addends], change.sum_high)
    return functions._replace(
        inner=inner,
        outer=outer,
        input_low=xp.minimum(functions.input_low, change.input_low),
        input_high=xp.maximum(functions.input_high, change.input_high),
        sum_low=sum_low,
        sum_high=sum_high,
    )


def damped_solution(xp: Any, gram: Any, errors: Any, damping: float, concurrency: float) -> Any:
    """Solve ``(concurrency G + damping mean(diag G) I) a = e`` for a, shaped like `errors`.

    In NumPy the system takes the place of `gram`.
    """
    size = gram.shape[0]
    ridge = damping / concurrency * xp.mean(xp.linalg.diagonal(gram))
    if xp is np:
        system = gram
        system.reshape(-1)[:: size + 1] += ridge
    else:
        system = gram + ridge * xp.eye(size, dtype=gram.dtype, device=device_of(gram))
    solution = solve_positive(xp, system, xp.reshape(errors, (size, 1)))
    return xp.reshape(solution, errors.shape) / concurrency


def clip_residuals(xp: Any, errors: Any, clip: float) -> Any:
    """Bound residuals [targets, records] to `clip` robust standard deviations of each target."""
    sizes = xp.sort(xp.abs(errors), axis=1)
    bound = clip * _MEDIAN_TO_DEVIATION * sizes[:, errors.shape[1] // 2, None]
    return xp.minimum(xp.maximum(errors, -bound), bound)


def largest_residuals(xp: Any, errors: Any, fraction: float) -> Any:
    """Choose the records with the largest residuals: indices in the records' order."""
    norms = xp.sum(errors * errors, axis=0)
    return xp.sort(xp.argsort(-norms)[: kept_records(errors.shape[1], fraction)])


def kept_records(records: int, fraction: float) -> int:
    """Say how many records of a block are kept."""
    return max(1, round(records * fraction))
