"""Blocks: the parts of a packed influence, and how the rows of each depend on each other.

A block holds groups that are computed together, all padded to the same number of columns C.
Leading axes of its values are batch.

===============  =====================  ==========================================================
regime           values                 one step
===============  =====================  ==========================================================
`ELEMENTWISE`    ``[..., G, C]``        row `g` times one entry of D
`WALK`           ``[..., N, C]``        row `n` = sum over the nonzeros of its row of D[S, R]
`DENSE`          ``[..., G, S, C]``     ``D[S, R] @ X[R, C]`` for each group
===============  =====================  ==========================================================

N counts the rows of all groups of the block, one group behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.columns import BlockColumns
from tritonsnap.plan.compact import compact
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import ranges
from tritonsnap.sparsity.pattern import SparsityPattern


class Regime(StrEnum):
    """How the product of a group is computed."""

    ELEMENTWISE = "elementwise"
    WALK = "walk"
    DENSE = "dense"


@dataclass(frozen=True, eq=False)
class ElementwiseBlock:
    """Groups of one row: ``out[..., g, c] = D[mask_row[g], x_row[g]] * x[..., g, c]``.

    Attributes
    ----------
    position : [G]
        Where the entry of D lies among the values on `plan.dynamics`; its nnz if D lacks it.
    mask_row, x_row : [G]
        The row of M that each group writes and the row of X that it reads.
    ordered
        Whether `position` is 0, 1, 2, ... over all of the dynamics: nothing to gather.
    complete
        Whether D has every entry that the block reads.
    all_rows
        Whether `mask_row` is 0, 1, 2, ... over all rows of M: nothing to gather.
    """

    groups: NDArray[np.int64]
    columns: BlockColumns
    position: Any
    mask_row: Any
    x_row: Any
    ordered: bool
    complete: bool
    all_rows: bool

    regime: ClassVar = Regime.ELEMENTWISE
    ARRAYS: ClassVar = ("position", "mask_row", "x_row")

    @classmethod
    def build(
        cls, groups: ColumnGroups, members: NDArray[np.int64], dynamics: SparsityPattern
    ) -> ElementwiseBlock:
        """Lay out the groups `members`, all of one row."""
        mask_row = groups.mask.support_rows[groups.mask.support_indptr[groups.mask_kind[members]]]
        x_row = groups.x.support_rows[groups.x.support_indptr[groups.x_kind[members]]]
        position = _positions(dynamics, mask_row, x_row)
        return cls(
            groups=members,
            columns=BlockColumns.build(groups, members),
            position=compact(position),
            mask_row=compact(mask_row),
            x_row=compact(x_row),
            ordered=np.array_equal(position, np.arange(dynamics.nnz)),
            complete=bool(np.all(position < dynamics.nnz)),
            all_rows=np.array_equal(mask_row, np.arange(groups.mask.shape[0])),
        )

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of X without batch axes."""
        return (self.columns.num_groups, self.columns.width)

    mask_shape = x_shape


@dataclass(frozen=True, eq=False)
class RowClass:
    """Rows of a walk that have about equally many nonzeros, `terms` of them after padding.

    Attributes
    ----------
    position : [terms, rows]
        Where each entry of D lies among the values on `plan.dynamics`; its nnz at padding.
    x_index : [terms, rows]
        The row of the block's X that it multiplies.
    """

    position: Any
    x_index: Any

    ARRAYS: ClassVar = ("position", "x_index")


@dataclass(frozen=True, eq=False)
class WalkBlock:
    """Groups whose D[S, R] is thin: every row walks the nonzeros of D.

    The nonzeros are held either by row, for a compiled CSR product, or by classes of rows of about
    equal length, for vectorised libraries.

    Attributes
    ----------
    mask_row : [N]
        Which row of M each row of the block is.
    mask_indptr, x_indptr : [G + 1]
        Where the rows of each group begin.
    num_x_rows, most_rows
        Rows of the block's X; rows of M of its largest group.
    nonzeros
        Number of nonzeros of D over all groups.
    by_row
        Which of the two forms the nonzeros have.
    row_length : [N]
        By row: nonzeros in each row.
    x_offset, position : [nonzeros]
        By row: the row of X within its group, and the place of D's entry among the values on
        `plan.dynamics`.
    classes, place : [N]
        By classes: the rows of each class, and where each row of the block lies when the classes
        stand one behind the other.
    """

    groups: NDArray[np.int64]
    columns: BlockColumns
    mask_row: Any
    mask_indptr: Any
    x_indptr: Any
    num_x_rows: int
    most_rows: int
    nonzeros: int
    by_row: bool
    row_length: Any
    x_offset: Any
    position: Any
    classes: tuple[RowClass, ...]
    place: Any

    regime: ClassVar = Regime.WALK
    ARRAYS: ClassVar = (
        *("mask_row", "mask_indptr", "x_indptr"),
        *("row_length", "x_offset", "position", "place"),
    )

    @classmethod
    def build(
        cls,
        groups: ColumnGroups,
        members: NDArray[np.int64],
        dynamics: SparsityPattern,
        by_row: bool,
    ) -> WalkBlock:
        """Lay out the groups `members`, by row (for SciPy) or by classes of rows."""
        mask_row, mask_indptr = _concatenated(groups.mask, groups.mask_kind[members])
        x_row, x_indptr = _concatenated(groups.x, groups.x_kind[members])
        row, x_index, position = _nonzeros(dynamics, mask_row, mask_indptr, x_row, x_indptr)
        counts = np.bincount(row, minlength=len(mask_row))
        empty = np.empty(0, np.int64)
        row_length, x_offset, by_row_position, place = empty, empty, empty, empty
        classes: tuple[RowClass, ...] = ()
        if by_row:
            row_length, by_row_position = counts, position
            x_offset = x_index - x_indptr[np.searchsorted(x_indptr, x_index, side="right") - 1]
        else:
            classes, place = _row_classes(counts, x_index, position, dynamics.nnz)
        return cls(
            groups=members,
            columns=BlockColumns.build(groups, members),
            mask_row=compact(mask_row),
            mask_indptr=compact(mask_indptr),
            x_indptr=compact(x_indptr),
            num_x_rows=len(x_row),
            most_rows=int(np.diff(mask_indptr).max(initial=0)),
            nonzeros=len(row),
            by_row=by_row,
            row_length=compact(row_length),
            x_offset=compact(x_offset),
            position=compact(by_row_position),
            classes=classes,
            place=compact(place),
        )

    def nonzero_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each nonzero its row of the block's M, its row of X, and its place in D's values."""
        if self.by_row:
            row = np.repeat(np.arange(len(self.row_length)), self.row_length)
            group = np.searchsorted(self.mask_indptr, row, side="right") - 1
            x_row = self.x_indptr.astype(np.int64)[group] + self.x_offset
            return row, x_row, self.position.astype(np.int64)
        order, begin = np.argsort(self.place), 0
        found = [(np.empty(0, np.int64),) * 3]
        for row_class in self.classes:
            shape = row_class.position.shape
            row = np.broadcast_to(order[begin : begin + shape[1]], shape)
            found.append((row.ravel(), row_class.x_index.ravel(), row_class.position.ravel()))
            begin += shape[1]
        rows, x_rows, positions = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, x_rows, positions

    @cached_property
    def csr(self) -> Any:
        """The nonzeros by row as SciPy's `csr_array`, values undefined; made on first use."""
        from scipy.sparse import csr_array

        indptr = np.zeros(len(self.row_length) + 1, np.int32)
        np.cumsum(self.row_length, out=indptr[1:])
        first = np.repeat(self.x_indptr[:-1].astype(np.int32), np.diff(indptr[self.mask_indptr]))
        shape = (self.mask_shape[0], self.num_x_rows)
        return csr_array((np.empty(self.nonzeros), first + self.x_offset, indptr), shape=shape)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of X without batch axes."""
        return (self.num_x_rows, self.columns.width)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of M without batch axes."""
        return (int(self.mask_row.shape[0]), self.columns.width)


@dataclass(frozen=True, eq=False)
class DenseBlock:
    """Groups whose D[S, R] is worth gathering: a dense product for each.

    Attributes
    ----------
    mask_support, x_support : [G, S], [G, R]
        The rows that each group writes and reads, padded with one past the last row.
    padded
        Whether there is any padding of rows.
    whole
        Whether the block is one group of all rows of M and X: nothing to gather.
    """

    groups: NDArray[np.int64]
    columns: BlockColumns
    mask_support: Any
    x_support: Any
    padded: bool
    whole: bool

    regime: ClassVar = Regime.DENSE
    ARRAYS: ClassVar = ("mask_support", "x_support")

    @classmethod
    def build(cls, groups: ColumnGroups, members: NDArray[np.int64]) -> DenseBlock:
        """Lay out the groups `members`."""
        mask_support = _padded_supports(groups.mask, groups.mask_kind[members])
        x_support = _padded_supports(groups.x, groups.x_kind[members])
        num_rows, num_inner = groups.mask.shape[0], groups.x.shape[0]
        return cls(
            groups=members,
            columns=BlockColumns.build(groups, members),
            mask_support=compact(mask_support),
            x_support=compact(x_support),
            padded=bool(np.any(mask_support == num_rows) or np.any(x_support == num_inner)),
            whole=mask_support.shape == (1, num_rows) and x_support.shape == (1, num_inner),
        )

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of X without batch axes."""
        return (*self.x_support.shape, self.columns.width)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of the block's values of M without batch axes."""
        return (*self.mask_support.shape, self.columns.width)


Block = ElementwiseBlock | WalkBlock | DenseBlock

_LENGTHS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16])


def class_lengths(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest rows that are computed together with rows of so many nonzeros."""
    long = np.int64(2) ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    short = _LENGTHS[np.searchsorted(_LENGTHS, np.minimum(counts, _LENGTHS[-1]))]
    return np.where(counts <= _LENGTHS[-1], short, long)


def _row_classes(
    counts: NDArray[np.int64],
    x_index: NDArray[np.int64],
    position: NDArray[np.int64],
    padding: int,
) -> tuple[tuple[RowClass, ...], NDArray[np.int64]]:
    """Split rows, with `counts` nonzeros each, into classes of about equal length.

    Returns
    -------
    classes
        Rows of ascending length; each padded by a third at most up to 16 terms, then by half.
    place : int64 [rows]
        Where each row lies when the classes stand one behind the other.
    """
    terms = class_lengths(counts)
    order = np.argsort(terms, kind="stable")
    place = np.empty(len(counts), np.int64)
    place[order] = np.arange(len(counts))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    last = max(len(x_index) - 1, 0)
    classes = []
    for rows in np.split(order, np.flatnonzero(np.diff(terms[order])) + 1):
        term = np.arange(counts[rows].max(initial=0))[:, None]
        inside = term < counts[rows]
        entry = np.minimum(indptr[rows] + term, last)
        classes.append(
            RowClass(
                compact(np.where(inside, position[entry], padding)),
                compact(np.where(inside, x_index[entry], 0)),
            )
        )
    return tuple(classes), place


def _positions(
    dynamics: SparsityPattern, rows: NDArray[np.integer], cols: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Where entries of D lie among the values on `dynamics`; its nnz for those it lacks."""
    keys = dynamics.cols.astype(np.int64) * dynamics.shape[0] + dynamics.rows
    wanted = cols.astype(np.int64) * dynamics.shape[0] + rows
    found = np.searchsorted(keys, wanted)
    present = np.zeros(len(wanted), bool)
    inside = found < len(keys)
    present[inside] = keys[found[inside]] == wanted[inside]
    return np.where(present, found, len(keys))


def _concatenated(
    pattern: SparsityPattern, kinds: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """The supports of the given kinds one behind the other, and where each begins."""
    sizes = np.diff(pattern.support_indptr)[kinds]
    rows = pattern.support_rows[ranges(pattern.support_indptr[kinds], sizes)]
    return rows, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _padded_supports(pattern: SparsityPattern, kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """[kinds, most rows]: supports padded with one past the last row."""
    rows, indptr = _concatenated(pattern, kinds)
    sizes = np.diff(indptr)
    padded = np.full((len(kinds), int(sizes.max(initial=0))), pattern.shape[0], np.int64)
    padded[np.arange(padded.shape[1]) < sizes[:, None]] = rows
    return padded


_TABLE_ENTRIES = 1 << 20
_AT_ONCE = 1 << 18
"""Entries of D that are looked up at a time: what the processor's caches hold."""


def _nonzeros(
    dynamics: SparsityPattern,
    mask_row: NDArray[np.integer],
    mask_indptr: NDArray[np.int64],
    x_row: NDArray[np.integer],
    x_indptr: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The nonzeros of D[S, R] of all groups, sorted by block row.

    Returns
    -------
    row, x_index, position : int64 [nonzeros]
        The block's row of M, the block's row of X, and the place among D's values.
    """
    row, x_index, position = nonzeros_by_x_row(dynamics, mask_row, mask_indptr, x_row, x_indptr)
    order = np.argsort(row, kind="stable")
    return row[order], x_index[order], position[order]


def nonzeros_by_x_row(
    dynamics: SparsityPattern,
    mask_row: NDArray[np.integer],
    mask_indptr: NDArray[np.int64],
    x_row: NDArray[np.integer],
    x_indptr: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The same sorted by block row of X, then by row of M."""
    num_rows, num_groups = dynamics.shape[0], len(mask_indptr) - 1
    indptr, rows = dynamics.indptr, dynamics.rows
    lengths = (indptr[1:] - indptr[:-1])[x_row]
    work = np.concatenate([[0], np.cumsum(lengths)])[x_indptr]  # before each group
    most_groups = max(_TABLE_ENTRIES // max(num_rows, 1), 1)
    found: list[tuple[NDArray[np.int64], ...]] = []
    start = 0
    while start < num_groups:
        stop = int(np.searchsorted(work, work[start] + _AT_ONCE, side="right")) - 1
        stop = min(max(stop, start + 1), start + most_groups, num_groups)
        # place[g, i]: the block's row that is row i of M in group g, or -1
        place = np.full((stop - start, num_rows), -1, np.int32)
        written = np.arange(mask_indptr[start], mask_indptr[stop])
        owner = np.repeat(np.arange(stop - start), np.diff(mask_indptr[start : stop + 1]))
        place[owner, mask_row[written]] = written
        read = np.arange(x_indptr[start], x_indptr[stop])
        reader = np.repeat(np.arange(stop - start), np.diff(x_indptr[start : stop + 1]))
        counts = lengths[x_indptr[start] : x_indptr[stop]]
        position = ranges(indptr[x_row[read]], counts)
        row = place.ravel()[np.repeat(reader * num_rows, counts) + rows[position]]
        kept = np.flatnonzero(row >= 0)
        x_index: NDArray[np.int64] = np.repeat(read, counts)[kept]
        found.append((row[kept].astype(np.int64), x_index, position[kept]))
        start = stop
    if not found:
        return (np.empty(0, np.int64),) * 3
    rows_found, x_found, positions = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows_found, x_found, positions
