"""Random problems for the kernels of `kan_step`, and their solutions by the NumPy face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.kan_step import numpy as definition
from tritonsnap.ops.kernel import Problem


def _positions(random: np.random.Generator, records: int, columns: int, knots: int) -> Any:
    """Positions on a grid, some of them its ends and knots."""
    positions = random.uniform(0, knots - 1, (records, columns))
    return np.where(random.random(positions.shape) < 0.1, np.round(positions), positions)


def inner_sums_problem(records: int, inputs: int, knots: int, addends: int) -> Problem:
    """Make operands of `kan_inner_sums`."""
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    random = np.random.default_rng(list(sizes.values()))
    return Problem(
        arguments={
            "positions": _positions(random, records, inputs, knots),
            "inner": random.normal(size=(inputs, knots, addends)),
            **sizes,
        },
        outputs={"sums": (records, addends)},
        sizes=sizes,
    )


def inner_sums_reference(
    positions: NDArray[Any], inner: NDArray[Any], **_: Any
) -> Mapping[str, NDArray[Any]]:
    """Compute the outputs of `kan_inner_sums`."""
    return {"sums": definition.inner_sums(positions, inner)}


def inner_change_problem(records: int, inputs: int, knots: int, addends: int) -> Problem:
    """Make operands of `kan_inner_change`."""
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    random = np.random.default_rng(list(sizes.values()))
    return Problem(
        arguments={
            "positions": _positions(random, records, inputs, knots),
            "weights": random.normal(size=(records, addends)),
            **sizes,
        },
        outputs={"change": (inputs, knots, addends)},
        sizes=sizes,
    )


def inner_change_reference(
    positions: NDArray[Any], weights: NDArray[Any], knots: int, **_: Any
) -> Mapping[str, NDArray[Any]]:
    """Compute the outputs of `kan_inner_change`."""
    return {"change": definition.inner_change(positions, weights, knots)}


def outer_values_problem(records: int, targets: int, knots: int, addends: int) -> Problem:
    """Make operands of `kan_outer_values`."""
    sizes = {"records": records, "targets": targets, "knots": knots, "addends": addends}
    random = np.random.default_rng(list(sizes.values()))
    return Problem(
        arguments={
            "positions": _positions(random, records, addends, knots),
            "outer": random.normal(size=(targets, knots, addends)),
            "records": records,
            "knots": knots,
            "addends": addends,
        },
        outputs={"sums": (targets, records), "rises": (targets, records, addends)},
        sizes=sizes,
    )


def outer_values_reference(
    positions: NDArray[Any], outer: NDArray[Any], **_: Any
) -> Mapping[str, NDArray[Any]]:
    """Compute the outputs of `kan_outer_values`."""
    sums, rises = definition.outer_values(positions, outer)
    return {"sums": sums, "rises": rises}


def outer_change_problem(records: int, targets: int, knots: int, addends: int) -> Problem:
    """Make operands of `kan_outer_change`."""
    sizes = {"records": records, "targets": targets, "knots": knots, "addends": addends}
    random = np.random.default_rng(list(sizes.values()))
    return Problem(
        arguments={
            "positions": _positions(random, records, addends, knots),
            "weights": random.normal(size=(targets, records)),
            "records": records,
            "knots": knots,
            "addends": addends,
        },
        outputs={"change": (targets, knots, addends)},
        sizes=sizes,
    )


def outer_change_reference(
    positions: NDArray[Any], weights: NDArray[Any], knots: int, **_: Any
) -> Mapping[str, NDArray[Any]]:
    """Compute the outputs of `kan_outer_change`."""
    return {"change": definition.outer_change(positions, weights, knots)}


def gram_problem(
    records: int, targets: int, inputs: int, addends: int, inner_knots: int, outer_knots: int
) -> Problem:
    """Make operands of `kan_gram`."""
    sizes = {
        "records": records,
        "targets": targets,
        "inputs": inputs,
        "addends": addends,
        "inner_knots": inner_knots,
        "outer_knots": outer_knots,
    }
    random = np.random.default_rng(list(sizes.values()))
    return Problem(
        arguments={
            "inner_positions": _positions(random, records, inputs, inner_knots),
            "outer_positions": _positions(random, records, addends, outer_knots),
            "slopes": random.normal(size=(targets, records, addends)),
            "gains": np.array([0.25 / (inputs * addends), 0.5 / addends]),
            **sizes,
        },
        outputs={"gram": (targets * records, targets * records)},
        sizes=sizes,
    )


def gram_reference(
    inner_positions: NDArray[Any],
    outer_positions: NDArray[Any],
    slopes: NDArray[Any],
    gains: NDArray[Any],
    inner_knots: int,
    outer_knots: int,
    **_: Any,
) -> Mapping[str, NDArray[Any]]:
    """Compute the outputs of `kan_gram`."""
    return {
        "gram": definition.gram(
            inner_positions,
            outer_positions,
            slopes,
            inner_knots=inner_knots,
            outer_knots=outer_knots,
            inner_gain=gains[0],
            outer_gain=gains[1],
        )
    }
