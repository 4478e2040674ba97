"""What every face of `kan_step` says of wrong arguments."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import dtype_name


def check_inner(positions: Any, inner: Any) -> None:
    """Check the arguments of `inner_sums`."""
    _check_dtypes(positions=positions, inner=inner)
    _check_ranks(positions=(positions, 2), inner=(inner, 3))
    _check_knots("inner", inner.shape[1])
    if positions.shape[1] != inner.shape[0]:
        raise ValueError(
            f"`positions` must have {inner.shape[0]} columns, one for each input of `inner`, "
            f"got {positions.shape[1]}"
        )


def check_outer(positions: Any, outer: Any) -> None:
    """Check the arguments of `outer_values`."""
    _check_dtypes(positions=positions, outer=outer)
    _check_ranks(positions=(positions, 2), outer=(outer, 3))
    _check_knots("outer", outer.shape[1])
    if positions.shape[1] != outer.shape[2]:
        raise ValueError(
            f"`positions` must have {outer.shape[2]} columns, one for each addend of `outer`, "
            f"got {positions.shape[1]}"
        )


def check_weights(positions: Any, weights: Any, knots: int, records: int) -> None:
    """Check the arguments of a change; axis `records` of `weights` is that of the records."""
    _check_dtypes(positions=positions, weights=weights)
    _check_ranks(positions=(positions, 2), weights=(weights, 2))
    _check_knots("knots", knots)
    if weights.shape[records] != positions.shape[0]:
        raise ValueError(
            f"`weights` must have {positions.shape[0]} records, as `positions` has, "
            f"got {weights.shape[records]}"
        )


def check_gram(inner_positions: Any, outer_positions: Any, slopes: Any) -> None:
    """Check the arrays of `gram`."""
    _check_dtypes(inner_positions=inner_positions, outer_positions=outer_positions, slopes=slopes)
    _check_ranks(
        inner_positions=(inner_positions, 2),
        outer_positions=(outer_positions, 2),
        slopes=(slopes, 3),
    )
    records, addends = outer_positions.shape
    if inner_positions.shape[0] != records or tuple(slopes.shape[1:]) != (records, addends):
        raise ValueError(
            "`inner_positions`, `outer_positions` and `slopes` must agree in records and "
            f"addends, got {list(inner_positions.shape)}, {list(outer_positions.shape)} and "
            f"{list(slopes.shape)}"
        )


def _check_dtypes(**arrays: Any) -> None:
    dtypes = {dtype_name(array) for array in arrays.values()}
    if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
        names = ", ".join(f"`{name}`" for name in arrays)
        raise TypeError(f"{names} must all be float32 or all float64, got {sorted(dtypes)}")


def _check_ranks(**arrays: tuple[Any, int]) -> None:
    for name, (array, rank) in arrays.items():
        if array.ndim != rank:
            raise ValueError(f"`{name}` must have {rank} axes, got the shape {list(array.shape)}")


def _check_knots(name: str, knots: int) -> None:
    if knots < 2:
        raise ValueError(f"`{name}` must have at least 2 points in a function, got {knots}")
