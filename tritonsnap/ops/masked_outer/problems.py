"""Problems and references by which the outer product's kernels are tested and tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.canonical import outer_arguments, outer_tile_arguments
from tritonsnap.ops.kernel import Problem
from tritonsnap.ops.masked_dsmm.problems import random_columns, wide
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.sparsity.pattern import SparsityPattern


def outer_problem(entries: int, batch: int) -> Problem:
    """At most so many entries of D, each in some groups of up to 8 rows."""
    random = np.random.default_rng([entries, batch])
    height = int(entries**0.5)
    kinds = [
        random.permutation(height)[: random.integers(1, min(8, height) + 1)]
        for _ in range(2 * height)
    ]
    mask = random_columns(height, kinds, random)
    x = random_columns(height, kinds[::-1], random, mask.shape[1])
    plan = DsmmPlan(x, mask)
    packing = plan.packing("triton")
    block = packing.blocks[0]
    arguments = outer_arguments(
        block,
        OuterPairs.of_entries(packing.groups, packing.dynamics),
        random.standard_normal((batch, block.mask_values)),
        random.standard_normal((batch, block.x_values)),
        plan.dynamics.nnz,
    )
    sizes = {"entries": entries, "batch": batch}
    return Problem(wide(arguments), {"out": (batch, plan.dynamics.nnz)}, sizes)


def outer_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Pair by pair."""
    out = np.zeros((a["batch"], a["num_entries"]))
    entry = np.repeat(np.arange(a["num_entries"]), np.diff(a["pair_begin"]))
    for pair, run in enumerate(a["pair_run"]):
        group = a["run_group"][run]
        columns = a["run_column"][run + 1] - a["run_column"][run]
        shapes = [
            (columns, a[begin][group + 1] - a[begin][group]) for begin in ("row_begin", "x_begin")
        ]
        r, x = (
            a[name][:, a[first][run] :][:, : shape[0] * shape[1]].reshape(-1, *shape)
            for name, first, shape in zip(("r", "x"), ("run_value", "run_x"), shapes, strict=True)
        )
        row, inner = a["pair_row"][pair], a["pair_inner"][pair]
        out[:, entry[pair]] += (r[:, :, row] * x[:, :, inner]).sum(axis=1)
    return {"out": out}


def tile_problem(rows: int, inner: int, batch: int) -> Problem:
    """Four kinds of some 40 columns, each with about half of the rows; the last two have few."""
    random = np.random.default_rng([rows, inner, batch])
    kind = np.sort(random.integers(0, 4, 160))

    def pattern(height: int) -> SparsityPattern:
        drawn = random.random((height, 4)) < [0.5, 0.5, 1 / height, 0]
        return SparsityPattern.from_dense(drawn[:, kind])

    plan = DsmmPlan(pattern(inner), pattern(rows))
    packing = plan.packing("triton")
    block = packing.blocks[0]
    arguments = outer_tile_arguments(
        block,
        OuterPairs.of_tiles(packing.groups, packing.dynamics),
        random.standard_normal((batch, block.mask_values)),
        random.standard_normal((batch, block.x_values)),
        plan.dynamics.shape,
    )
    sizes = {"rows": rows, "inner": inner, "batch": batch}
    return Problem(wide(arguments), {"out": (batch, inner, rows)}, sizes)


def tile_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Run by run."""
    out = np.zeros((a["batch"], a["num_inner"], a["num_rows"]))
    for run, group in enumerate(a["run_group"]):
        rows = a["mask_row"][slice(*a["row_begin"][group : group + 2])]
        inner = a["x_row"][slice(*a["x_begin"][group : group + 2])]
        columns = a["run_column"][run + 1] - a["run_column"][run]
        r = a["r"][:, a["run_value"][run] :][:, : columns * len(rows)]
        x = a["x"][:, a["run_x"][run] :][:, : columns * len(inner)]
        r, x = (
            part.reshape(a["batch"], columns, len(own)) for part, own in ((r, rows), (x, inner))
        )
        out[:, inner[:, None], rows] += np.einsum("bck,bcs->bks", x, r)
    return {"out": out}
