"""The five sums over knots that one training step of a piecewise-linear KAN consists of.

A value lies at a position r in [0, knots - 1] on the uniform grid of a piecewise-linear function.
Its *hat vector* holds max(0, 1 - |r - n|) for each knot n: two nonzeros, 1 - o at floor(r) and o
behind it, o = r - floor(r). The function's value there is the product of its knot values with the
hat vector, and the hat vector is its gradient (Polar and Poluektov, arXiv 2305.08194, section 2).

Each function works on NumPy arrays, torch tensors and JAX arrays. In each, equal input gives equal
bits: every sum has one owner and a fixed order.
"""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.kan_step.checks import check_gram, check_inner, check_outer, check_weights
from tritonsnap.ops.kan_step.faces import face_of

__all__ = ["gram", "inner_change", "inner_sums", "outer_change", "outer_values"]


def inner_sums(positions: Any, inner: Any) -> Any:
    """Sum each addend's inner functions over the inputs.

    Parameters
    ----------
    positions : array, shape [records, inputs]
        Where each input lies on the grid of the inner functions.
    inner : array, shape [inputs, knots, addends]
        Knot values.

    Returns
    -------
    array, shape [records, addends]
        ``sum_j f_kj(x_j)`` for each addend k.

    Raises
    ------
    TypeError
        If the arrays belong to different libraries, or differ in dtype.
    ValueError
        If shapes do not fit.
    """
    check_inner(positions, inner)
    return face_of(positions, inner).inner_sums(positions, inner)


def inner_change(positions: Any, weights: Any, knots: int) -> Any:
    """Sum the hat vectors of the inputs over the records, weighted for each addend.

    Parameters
    ----------
    positions : array, shape [records, inputs]
        Where each input lies on the grid of the inner functions.
    weights : array, shape [records, addends]
        Weight of each record in the functions of each addend.
    knots : int
        Points of an inner function.

    Returns
    -------
    array, shape [inputs, knots, addends]
        ``sum_t hat_n(positions[t, j]) weights[t, k]``, the adjoint of `inner_sums`.

    Raises
    ------
    TypeError, ValueError
        As `inner_sums`.
    """
    check_weights(positions, weights, knots, records=0)
    return face_of(positions, weights).inner_change(positions, weights, knots)


def outer_values(positions: Any, outer: Any) -> tuple[Any, Any]:
    """Evaluate the outer functions.

    Parameters
    ----------
    positions : array, shape [records, addends]
        Where each addend's argument lies on the grid of its outer functions.
    outer : array, shape [targets, knots, addends]
        Knot values.

    Returns
    -------
    sums : array, shape [targets, records]
        ``sum_k g_k(u_k)``.
    rises : array, shape [targets, records, addends]
        The rise of each function over the interval between two knots that holds its argument.

    Raises
    ------
    TypeError, ValueError
        As `inner_sums`.
    """
    check_outer(positions, outer)
    sums, rises = face_of(positions, outer).outer_values(positions, outer)
    return sums, rises


def outer_change(positions: Any, weights: Any, knots: int) -> Any:
    """Sum the hat vectors of the outer functions' arguments over the records.

    Parameters
    ----------
    positions : array, shape [records, addends]
        Where each addend's argument lies on the grid of its outer functions.
    weights : array, shape [targets, records]
        Weight of each record in the functions of each target.
    knots : int
        Points of an outer function.

    Returns
    -------
    array, shape [targets, knots, addends]
        ``sum_t hat_n(positions[t, k]) weights[target, t]``, the adjoint of the sums of
        `outer_values`.

    Raises
    ------
    TypeError, ValueError
        As `inner_sums`.
    """
    check_weights(positions, weights, knots, records=1)
    return face_of(positions, weights).outer_change(positions, weights, knots)


def gram(
    inner_positions: Any,
    outer_positions: Any,
    slopes: Any,
    *,
    inner_knots: int,
    outer_knots: int,
    inner_gain: float,
    outer_gain: float,
) -> Any:
    """Multiply a block's sparse Jacobian with its transpose, from their factors.

    With h the hat vectors of the outer functions' arguments, phi those of the inputs, and d the
    outer slopes, a pair of records s, t of one target has the entry

        outer_gain sum_k <h_tk, h_sk> + inner_gain (sum_j <phi_tj, phi_sj>) (sum_k d_tk d_sk)

    and a pair of different targets the second term alone. The Jacobian is never formed.

    Parameters
    ----------
    inner_positions : array, shape [records, inputs]
        Where each input lies on the grid of the inner functions.
    outer_positions : array, shape [records, addends]
        Where each addend's argument lies on the grid of its outer functions.
    slopes : array, shape [targets, records, addends]
        Derivative of each outer function at its argument.
    inner_knots, outer_knots : int
        Points of an inner and of an outer function.
    inner_gain, outer_gain : float
        Factors of the two terms.

    Returns
    -------
    array, shape [targets * records, targets * records]
        Target-major.

    Raises
    ------
    TypeError, ValueError
        As `inner_sums`.
    """
    check_gram(inner_positions, outer_positions, slopes)
    return face_of(inner_positions, outer_positions, slopes).gram(
        inner_positions,
        outer_positions,
        slopes,
        inner_knots=inner_knots,
        outer_knots=outer_knots,
        inner_gain=inner_gain,
        outer_gain=outer_gain,
    )
