"""`CanonicalBlock`: an influence in canonical order, and who computes which part of it on a GPU.

Canonical order (by column, then row) serves every regime: the columns of a run are one piece of
memory, so a walk takes any number of consecutive values, and a dense product takes a run as a
matrix ``[C, S]``. Nothing is converted, and nothing but the end is padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.blocks import Regime, _concatenated, _nonzeros, _positions
from tritonsnap.plan.compact import shared, signed
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import ranges
from tritonsnap.sparsity.pattern import SparsityPattern

UNIT = 16
"""Values of each batch row are padded to a multiple of it, so that every row is aligned."""
TILE = 256
"""Consecutive values that one program of a walk owns; columns of an elementwise one."""
COLUMN_TILE = 64
"""Consecutive columns whose gradient one program owns."""


class DenseShape(NamedTuple):
    """What one program of a dense product owns: columns of one run, and rows of its group."""

    columns: int
    rows: int


DENSE_SHAPES = (
    *(DenseShape(64, rows) for rows in (16, 32)),
    DenseShape(128, 64),  # many groups of long columns have many columns too: D is read less
    *(DenseShape(64, rows) for rows in (128, 256)),
)


@dataclass(frozen=True, eq=False)
class CanonicalBlock:
    """All values of an influence, ``[..., padded nnz]``, as runs of columns with equal supports.

    Runs lie one behind the other in the order of their columns and hold every column; those that M
    leaves empty belong to a last, empty group. The index arrays are as narrow as can be and signed
    (but for bytes), as Triton's types are.

    Attributes
    ----------
    regime : object [groups]
        How each group is computed.
    elementwise
        Whether every column of X and of M has one row: then value and column have one number.
    square
        Whether X and M have the same supports: then `run_x` and `x_begin` are not read.
    dense_shape, aligned
        What one program of a dense product owns, and whether the columns of all dense groups are
        aligned to 8 values, for shapes that are large enough to gain by it.
    in_place
        Whether M's values may be written over X's: every program then reads only what it writes
        itself, and all of it first. So where every column has one row, or where dense products
        are all there is and each owns whole columns. A walk reads what its neighbours write.
    run_column, run_value, run_x : [K + 1]
        First column of each run, and where its values begin in M and in X.
    run_group : [K]
        The group of each run.
    row_begin, x_begin : [G + 2]
        Where the supports of each group begin in `mask_row` and `x_row`; their differences are the
        sizes of the supports.
    mask_row, x_row
        Supports, one group behind the other.
    nonzero_begin, x_offset, position
        For each row of walked groups the nonzeros of D: where the row's begin, the place in X's
        column, and the place among the values on `plan.dynamics`. For an elementwise block
        `position` is [G], one past the last where D has no entry.
    is_dense : [G + 1]
        Whether each group is computed by dense products.
    tiles : [T, 3]
        Tiles of `TILE` values: number, first and last run. The first `num_whole` hold nothing of
        dense groups.
    column_tiles : [T, 2]
        First and last run of each tile of `COLUMN_TILE` columns.
    dense_tiles : [T, 3]
        Run, first column in it and first row, of `dense_shape` each; those with most work first.
    """

    groups: NDArray[np.int64]
    regime: NDArray[np.object_]
    x_values: int
    mask_values: int
    elementwise: bool
    square: bool
    num_whole: int
    dense_shape: DenseShape
    aligned: bool
    in_place: bool
    run_column: Any
    run_value: Any
    run_x: Any
    run_group: Any
    row_begin: Any
    x_begin: Any
    mask_row: Any
    x_row: Any
    nonzero_begin: Any
    x_offset: Any
    position: Any
    is_dense: Any
    tiles: Any
    column_tiles: Any
    dense_tiles: Any

    ARRAYS: ClassVar = (
        *("run_column", "run_value", "run_x", "run_group", "row_begin", "x_begin", "mask_row"),
        *("x_row", "nonzero_begin", "x_offset", "position", "is_dense", "tiles"),
        *("column_tiles", "dense_tiles"),
    )

    @classmethod
    def build(
        cls, groups: ColumnGroups, regimes: NDArray[np.object_], dynamics: SparsityPattern
    ) -> CanonicalBlock:
        """Lay out all groups, each computed in the given regime."""
        x, mask = groups.x, groups.mask
        run_column, run_group = _runs(groups)
        run_value, run_x = mask.column_starts(), x.column_starts()
        run_value = np.append(run_value, mask.nnz)[run_column]
        run_x = np.append(run_x, x.nnz)[run_column]
        mask_row, row_begin = _concatenated(mask, groups.mask_kind)
        x_row, x_begin = _concatenated(x, groups.x_kind)
        rows, inner = np.diff(row_begin), np.diff(x_begin)
        square = np.array_equal(row_begin, x_begin) and np.array_equal(mask_row, x_row)
        square = square and np.array_equal(run_value, run_x)
        elementwise = bool(
            np.all(regimes == Regime.ELEMENTWISE)
            and mask.nnz == x.nnz == mask.shape[1]
            and np.all(run_group < len(groups))
        )
        if elementwise:
            position = _positions(dynamics, mask_row, x_row)
            nonzero_begin = x_offset = np.empty(0, np.int64)
        else:
            walked = np.repeat(regimes != Regime.DENSE, rows)
            row, x_index, position = _walked_nonzeros(
                dynamics, (mask_row, row_begin), (x_row, x_begin), regimes != Regime.DENSE
            )
            nonzero_begin = np.searchsorted(row, np.arange(len(walked) + 1))
            owner = np.searchsorted(x_begin, x_index, side="right") - 1
            x_offset = x_index - x_begin[owner]
        group_is_dense = np.append(regimes == Regime.DENSE, False)
        is_dense = group_is_dense[run_group]
        tiles, num_whole = _value_tiles(run_value, is_dense)
        shape = _dense_shape(rows[regimes == Regime.DENSE])
        sizes = np.append(rows, 0)[run_group]
        inner_sizes = np.append(inner, 0)[run_group]
        dense = np.flatnonzero(is_dense)
        dense_tiles = _dense_tiles(dense, np.diff(run_column), sizes, inner_sizes, shape)
        starts = (run_value[dense], run_x[dense], sizes[dense], inner_sizes[dense])
        arrays = {
            "run_column": run_column,
            "run_value": run_value,
            "run_x": run_x,
            "run_group": run_group,
            "row_begin": np.append(row_begin, row_begin[-1]),
            "x_begin": np.append(x_begin, x_begin[-1]),
            "mask_row": mask_row,
            "x_row": x_row,
            "nonzero_begin": nonzero_begin,
            "x_offset": x_offset,
            "position": position,
            "is_dense": group_is_dense.astype(np.int64),
            "tiles": tiles,
            "column_tiles": _column_tiles(run_column),
            "dense_tiles": dense_tiles,
        }
        return cls(
            groups=np.arange(len(groups)),
            regime=regimes,
            x_values=UNIT * -(-x.nnz // UNIT),
            mask_values=UNIT * -(-mask.nnz // UNIT),
            elementwise=elementwise,
            square=bool(square),
            num_whole=num_whole,
            dense_shape=shape,
            aligned=shape.rows >= 64 and all(np.all(part % 8 == 0) for part in starts),
            in_place=elementwise
            or bool(square and not len(tiles) and rows.max(initial=0) <= shape.rows),
            **shared({name: signed(array) for name, array in arrays.items()}),
        )

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of X without batch axes."""
        return (self.x_values,)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of M without batch axes."""
        return (self.mask_values,)


def _runs(groups: ColumnGroups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First column of each run, with the number of columns behind them, and each run's group."""
    owner = np.repeat(np.arange(len(groups)), np.diff(groups.run_indptr))
    order = np.argsort(groups.run_start, kind="stable")
    start, length, owner = groups.run_start[order], groups.run_length[order], owner[order]
    num_columns = groups.mask.shape[1]
    gap_start = np.concatenate([[0], start + length])
    gaps = gap_start[np.append(start, num_columns) > gap_start]
    column = np.concatenate([start, gaps])
    group = np.concatenate([owner, np.full(len(gaps), len(groups))])
    order = np.argsort(column, kind="stable")
    return np.append(column[order], num_columns).astype(np.int64), group[order].astype(np.int64)


def _walked_nonzeros(
    dynamics: SparsityPattern,
    written: tuple[NDArray[np.integer], NDArray[np.int64]],
    read: tuple[NDArray[np.integer], NDArray[np.int64]],
    walked: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """`_nonzeros` of the walked groups, numbered by the rows of all groups."""
    members = np.flatnonzero(walked)
    parts = []
    for _, begin in (written, read):
        sizes = np.diff(begin)[members]
        parts.append((ranges(begin[members], sizes), np.concatenate([[0], np.cumsum(sizes)])))
    (rows, indptr), (inner, x_indptr) = parts
    row, x_index, position = _nonzeros(dynamics, written[0][rows], indptr, read[0][inner], x_indptr)
    return rows[row], inner[x_index], position


def _value_tiles(
    run_value: NDArray[np.int64], is_dense: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """Tiles that hold values of groups that are not dense; those that hold no others come first."""
    begin, end = run_value[:-1], run_value[1:]
    num_tiles = -(-int(run_value[-1]) // TILE)

    def touched(runs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        kept = runs & (end > begin)
        change = np.zeros(num_tiles + 1, np.int64)
        np.add.at(change, begin[kept] // TILE, 1)
        np.add.at(change, (end[kept] - 1) // TILE + 1, -1)
        return np.cumsum(change)[:num_tiles] > 0

    walked, dense = touched(~is_dense), touched(is_dense)
    number = np.concatenate([np.flatnonzero(walked & ~dense), np.flatnonzero(walked & dense)])
    first = np.searchsorted(run_value, number * TILE, side="right") - 1
    last_value = np.minimum((number + 1) * TILE, run_value[-1]) - 1
    last = np.searchsorted(run_value, last_value, side="right") - 1
    return np.stack([number, first, last], axis=1), int((walked & ~dense).sum())


def _column_tiles(run_column: NDArray[np.int64]) -> NDArray[np.int64]:
    num_columns = int(run_column[-1])
    first = np.arange(0, num_columns, COLUMN_TILE)
    last = np.minimum(first + COLUMN_TILE, num_columns) - 1
    ends = [np.searchsorted(run_column, at, side="right") - 1 for at in (first, last)]
    return np.stack(ends, axis=1)


def _dense_shape(rows: NDArray[np.int64]) -> DenseShape:
    """The shape that pads the rows of dense groups least; the larger of equals."""

    def padded(shape: DenseShape) -> int:
        # a program more costs about as much as 16 more rows
        return int((-(-rows // shape.rows) * (shape.rows + 16)).sum())

    if not len(rows):
        return DENSE_SHAPES[0]
    # the largest reads D more often: it is for columns that one program then owns whole
    shapes = DENSE_SHAPES if rows.max() <= DENSE_SHAPES[-1].rows else DENSE_SHAPES[:-1]
    return min(reversed(shapes), key=padded)


def _dense_tiles(
    runs: NDArray[np.int64],
    columns: NDArray[np.int64],
    rows: NDArray[np.int64],
    inner: NDArray[np.int64],
    shape: DenseShape,
) -> NDArray[np.int64]:
    """[T, 3]: run, first column and first row of each tile, longest sums first."""
    across = -(-columns[runs] // shape.columns)
    down = -(-rows[runs] // shape.rows)
    run = np.repeat(runs, across * down)
    number = ranges(np.zeros(len(runs), np.int64), across * down)
    down = np.repeat(down, across * down)
    tiles = np.stack([run, number // down * shape.columns, number % down * shape.rows], axis=1)
    return tiles[np.argsort(-inner[run], kind="stable")].astype(np.int64)
