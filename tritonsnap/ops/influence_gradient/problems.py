"""Problems and references by which the gradient's kernels are tested and tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.canonical import gradient_arguments
from tritonsnap.ops.kernel import Problem
from tritonsnap.ops.masked_dsmm.problems import random_columns, wide
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan


def gradient_problem(columns: int, batch: int, rows: int, is_sum: bool) -> Problem:
    """Columns of up to twice so many `rows`, some of them empty."""
    random = np.random.default_rng([columns, batch, rows])
    height = 3 * rows + 5
    kinds = [
        random.permutation(height)[: random.integers(0, 2 * rows + 1)]
        for _ in range(columns // 3 + 1)
    ]
    mask = random_columns(height, kinds, random, columns)
    block = DsmmPlan(mask, mask).packing("triton").blocks[0]
    assert isinstance(block, CanonicalBlock)
    arguments = gradient_arguments(
        block,
        random.standard_normal((batch, height)),
        random.standard_normal((batch, block.mask_values)),
        columns,
    )
    return Problem(
        wide(arguments),
        {"gradient": (1 if is_sum else batch, columns)},
        {"columns": columns, "batch": batch},
    )


def gradient_reference(is_sum: bool, **a: Any) -> Mapping[str, NDArray[Any]]:
    """Run by run."""
    found = np.zeros((a["batch"], a["num_columns"]))
    for run, group in enumerate(a["run_group"]):
        rows = a["mask_row"][slice(*a["row_begin"][group : group + 2])]
        first, last = a["run_column"][run : run + 2]
        if len(rows) and last > first:
            j = a["j"][:, slice(*a["run_value"][run : run + 2])]
            j = j.reshape(a["batch"], last - first, len(rows))
            found[:, first:last] = np.einsum("bcs,bs->bc", j, a["delta"][:, rows])
    return {"gradient": found.sum(axis=0, keepdims=True) if is_sum else found}
