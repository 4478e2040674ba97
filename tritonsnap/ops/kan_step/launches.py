"""What `kan_step` launches, and with what: for torch and JAX."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.kernel import KernelLaunch


def inner_sums_launch(positions: Any, inner: Any) -> KernelLaunch:
    """The kernel of `inner_sums`."""
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_SUMS

    records = int(positions.shape[0])
    inputs, knots, addends = (int(size) for size in inner.shape)
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "inner": inner, **sizes}
    return KernelLaunch(KAN_INNER_SUMS, arguments, {"sums": (records, addends)}, sizes)


def inner_change_launch(positions: Any, weights: Any, knots: int) -> KernelLaunch:
    """The kernel of `inner_change`."""
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_CHANGE

    records, inputs = (int(size) for size in positions.shape)
    addends = int(weights.shape[1])
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "weights": weights, **sizes}
    return KernelLaunch(KAN_INNER_CHANGE, arguments, {"change": (inputs, knots, addends)}, sizes)


def outer_values_launch(positions: Any, outer: Any) -> KernelLaunch:
    """The kernel of `outer_values`."""
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_VALUES

    records = int(positions.shape[0])
    targets, knots, addends = (int(size) for size in outer.shape)
    numbers = {"records": records, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "outer": outer, **numbers}
    outputs = {"sums": (targets, records), "rises": (targets, records, addends)}
    return KernelLaunch(KAN_OUTER_VALUES, arguments, outputs, {**numbers, "targets": targets})


def outer_change_launch(positions: Any, weights: Any, knots: int) -> KernelLaunch:
    """The kernel of `outer_change`."""
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_CHANGE

    records, addends = (int(size) for size in positions.shape)
    targets = int(weights.shape[0])
    numbers = {"records": records, "knots": knots, "addends": addends}
    arguments = {"positions": positions, "weights": weights, **numbers}
    outputs = {"change": (targets, knots, addends)}
    return KernelLaunch(KAN_OUTER_CHANGE, arguments, outputs, {**numbers, "targets": targets})


def gram_launch(
    inner_positions: Any,
    outer_positions: Any,
    slopes: Any,
    gains: Any,
    inner_knots: int,
    outer_knots: int,
) -> KernelLaunch:
    """The kernel of `gram`; `gains` holds the inner and the outer one."""
    from tritonsnap.ops.kan_step.kernels import KAN_GRAM

    targets, records, addends = (int(size) for size in slopes.shape)
    sizes = {
        "records": records,
        "targets": targets,
        "inputs": int(inner_positions.shape[1]),
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
    return KernelLaunch(KAN_GRAM, arguments, {"gram": (rows, rows)}, sizes)
