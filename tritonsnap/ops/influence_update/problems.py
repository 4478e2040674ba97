"""Problems and references by which the SnAp-1 kernels are tested and tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.canonical import snap1_arguments
from tritonsnap.ops.kernel import Problem
from tritonsnap.ops.masked_dsmm.problems import compressed_values, random_addend, wide
from tritonsnap.plan.canonical import UNIT, CanonicalBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.sparsity.pattern import SparsityPattern


def snap1_problem(values: int, batch: int, gradient: bool = True) -> Problem:
    """So many columns of one row; what is added varies with the sizes."""
    random = np.random.default_rng([values, batch])
    rows = min(2 * (values // 8 + 1), 600)
    row = np.sort(random.integers(0, rows, values))
    mask = SparsityPattern.from_coo(row, np.arange(values), (rows, values))
    plan = DsmmPlan(mask, mask, SparsityPattern.random((rows, rows), 0.7, values))
    block = plan.packing("triton").blocks[0]
    assert isinstance(block, CanonicalBlock)
    addend = random_addend(values, batch, block, mask, random)
    addend = replace(addend, column_gain=random.integers(0, 4, values))  # a fourth has no gain
    arguments = snap1_arguments(
        block,
        random.standard_normal((1 if values % 5 == 0 else batch, max(plan.dynamics.nnz, 1))),
        random.standard_normal((batch, block.x_values)),
        addend,
        random.standard_normal((batch, rows)) if gradient else None,
        (rows, plan.dynamics.nnz, values),
    )
    outputs: dict[str, tuple[int, ...]] = {}
    if gradient:
        outputs["gradient"] = (block.mask_values,)
    else:
        arguments["gradient"] = np.zeros(1)
    outputs["out"] = (batch, block.mask_values)
    return Problem(wide(arguments), outputs, {"values": values, "batch": batch})


def snap1_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Column by column."""
    values, num_rows = a["num_values"], a["num_rows"]
    group = np.repeat(a["run_group"], np.diff(a["run_value"]))
    row, entry = a["mask_row"][group].astype(np.int64), a["position"][group]
    inside = entry < a["num_entries"]
    d = np.where(inside, a["d"][:, np.where(inside, entry, 0)], 0)
    if a["scaled"]:
        d = d * a["row_scale"][:, row]
    result = d * a["x"][:, :values]
    if a["mode"] == 1:
        own = a["column_gain"] < a["num_targets"]
        gain = a["gains"][:, np.where(own, a["column_gain"] * num_rows + row, 0)]
        result = result + np.where(own, gain * a["sources"][:, a["column_source"]], 0)
    elif a["mode"] == 2:
        result = result + a["added"][:, :values]
    elif a["mode"] == 3:
        columns = {**a, "num_columns": values}
        result = result + compressed_values(0, values, slice(values), columns)
    padding = a["units"] * UNIT - values
    found = {"out": np.pad(result, ((0, 0), (0, padding)))}
    if "gradient" not in a:  # else it is no output
        found["gradient"] = np.pad((a["delta"][:, row] * result).sum(axis=0), (0, padding))
    return found
