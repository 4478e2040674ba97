"""Problems and references by which the product's kernels are tested and tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.canonical import Addend, group_arguments, walk_arguments
from tritonsnap.ops.kernel import Problem
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.canonical import UNIT, CanonicalBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.sparsity.pattern import SparsityPattern


def walk_problem(values: int, batch: int) -> Problem:
    """About so many values in columns of 1 to 16 rows; what is added varies with the sizes."""
    random = np.random.default_rng([values, batch])
    rows = 40
    sizes = 4 ** random.uniform(0, 2, max(values // 8, 1))
    kinds = [random.permutation(rows)[: int(size)] for size in sizes]
    mask = random_columns(rows, kinds, random)
    square = values % 2 == 1
    x = mask if square else random_columns(rows, kinds[::-1], random, len(mask.column_kind))
    dynamics = SparsityPattern.random((rows, rows), 0.3, values)
    plan = DsmmPlan(x, mask, dynamics)
    packing = plan.packing("triton", Regime.WALK)
    block = packing.blocks[0]
    assert isinstance(block, CanonicalBlock)
    d = random.standard_normal((1 if values % 5 == 0 else batch, plan.dynamics.nnz))
    arguments = walk_arguments(
        block,
        d,
        random.standard_normal((batch, block.x_values)),
        random_addend(values, batch, block, mask, random),
        plan.dynamics.shape,
        mask.nnz,
    )
    sizes_of = {"values": values, "batch": batch}
    return Problem(wide(arguments), {"out": (batch, block.mask_values)}, sizes_of)


def dense_problem(rows: int, columns: int, batch: int, align: int = 1) -> Problem:
    """Three groups of about so many rows and columns."""
    random = np.random.default_rng([rows, columns, batch])
    height = 2 * rows + 8
    kinds = [random.permutation(height)[: max(rows - align * n, align)] for n in range(3)]
    kind = np.repeat(np.arange(3), UNIT * -(-columns // UNIT))
    mask = _pattern(height, kinds, kind)
    x = mask if columns % 2 else _pattern(height, kinds[::-1], kind)
    plan = DsmmPlan(x, mask)
    block = plan.packing("triton", Regime.DENSE).blocks[0]
    assert isinstance(block, CanonicalBlock)
    d = random.standard_normal((batch, *plan.dynamics.shape))
    arguments = group_arguments(
        block,
        d,
        random.standard_normal((batch, block.x_values)),
        random_addend(rows + columns, batch, block, mask, random),
        plan.dynamics.shape,
    )
    sizes = {"rows": rows, "columns": columns, "batch": batch}
    return Problem(wide(arguments), {"out": (batch, block.mask_values)}, sizes)


def walk_reference(**arguments: Any) -> Mapping[str, NDArray[Any]]:
    """Group by group with the D[S, R] that the nonzeros make up."""
    a = arguments
    begin = a["nonzero_begin"]

    def matrix(group: int) -> NDArray[Any]:
        first, last = a["row_begin"][group : group + 2]
        inner = a["x_begin"][group + 1] - a["x_begin"][group]
        dense = np.zeros((len(a["d"]), last - first, inner))
        for row in range(first, last):
            entries = slice(begin[row], begin[row + 1])
            dense[:, row - first, a["x_offset"][entries]] = a["d"][:, a["position"][entries]]
        return dense

    return {"out": _by_run(matrix, **arguments)}


def dense_reference(**arguments: Any) -> Mapping[str, NDArray[Any]]:
    """Group by group with D[S, R]."""
    a = arguments

    def matrix(group: int) -> NDArray[Any]:
        rows = a["mask_row"][slice(*a["row_begin"][group : group + 2])]
        cols = a["x_row"][slice(*a["x_begin"][group : group + 2])]
        return a["d"][:, rows[:, None], cols]

    return {"out": _by_run(matrix, **arguments)}


def _by_run(matrix: Any, **a: Any) -> NDArray[Any]:
    batch = len(a["x"])
    out = np.zeros((batch, a["out_units"] * UNIT))
    for run, group in enumerate(a["run_group"]):
        rows = a["mask_row"][slice(*a["row_begin"][group : group + 2])].astype(np.int64)
        column, stop = a["run_column"][run : run + 2]
        shape = (batch, stop - column, -1)
        if not len(rows) or stop == column:
            continue
        x = a["x"][:, slice(*a["run_x"][run : run + 2])]
        dense = matrix(group)
        x = x.reshape(*shape[:2], dense.shape[-1])
        result = np.einsum("bcr,bsr->bcs", x, np.broadcast_to(dense, (batch, *dense.shape[1:])))
        if a["scaled"]:
            result *= a["row_scale"][:, None, rows]
        if a["mode"] == 1:
            gain = a["column_gain"][column:stop].astype(np.int64)[:, None]
            units, num_rows = a["num_units"], a["num_rows"]
            own = rows % units == gain % num_rows
            index = gain // num_rows * num_rows + rows
            source = a["sources"][:, a["column_source"][column:stop].astype(np.int64), None]
            result += np.where(own, a["gains"][:, index] * source, 0)
        place = slice(*a["run_value"][run : run + 2])
        if a["mode"] == 2:
            result += a["added"][:, place].reshape(result.shape)
        if a["mode"] == 3:
            added = compressed_values(column, stop, place, a)
            result += added.reshape(len(added), *result.shape[1:])
        out[:, place] = result.reshape(batch, -1)
    return out


def compressed_values(column: int, stop: int, place: slice, a: Mapping[str, Any]) -> NDArray[Any]:
    """[batch, values]: what the values of a run of columns get of a compressed Jacobian."""
    colors = a["color"][place].reshape(stop - column, -1)
    none = colors == a["num_colors"]
    index = np.where(none, 0, colors * a["num_columns"] + np.arange(column, stop)[:, None])
    values: NDArray[Any] = np.where(none, 0, a["added"][:, index])
    return values.reshape(len(values), -1)


def random_addend(
    number: int,
    batch: int,
    block: CanonicalBlock,
    mask: SparsityPattern,
    random: np.random.Generator,
) -> Addend:
    """Nothing, factors, values or a compressed Jacobian; two parts of the state, three targets."""
    rows, columns = mask.shape
    units, colors, mode = rows // 2, 4, number % 4
    gain = random.integers(0, 3, columns) * rows + random.integers(0, units, columns)
    compressed = (1 if number % 3 == 0 else batch, colors * columns)
    return Addend(
        mode=mode,
        added=random.standard_normal(compressed if mode == 3 else (batch, block.mask_values)),
        color=random.integers(0, colors + 1, mask.nnz),
        num_colors=colors,
        num_columns=columns,
        gains=random.standard_normal((batch, 3 * rows)),
        sources=random.standard_normal((batch, 50)),
        column_gain=gain,
        column_source=random.integers(0, 50, columns),
        num_units=units,
        row_scale=random.standard_normal((batch, rows)) if number // 4 % 2 else None,
    )


def random_columns(
    rows: int, kinds: list[Any], random: np.random.Generator, columns: int | None = None
) -> SparsityPattern:
    """A few columns of each kind, one kind behind the other; now and then none has rows."""
    counts = random.integers(1, 4, len(kinds))
    kind = np.repeat(np.arange(len(kinds)), counts)
    kind = kind if columns is None else np.resize(kind, columns)
    return _pattern(rows, [*kinds[:-1], kinds[-1][:0]] if len(kinds) > 3 else kinds, kind)


def _pattern(rows: int, kinds: list[Any], kind: NDArray[np.integer]) -> SparsityPattern:
    row = np.concatenate([kinds[k] for k in kind])
    column = np.repeat(np.arange(len(kind)), [len(kinds[k]) for k in kind])
    return SparsityPattern.from_coo(row, column, (rows, len(kind)))


def wide(arguments: dict[str, Any]) -> dict[str, Any]:
    """Index arrays in the types that declarations name."""
    return {
        name: value.astype(np.int32)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        else value
        for name, value in arguments.items()
    }
