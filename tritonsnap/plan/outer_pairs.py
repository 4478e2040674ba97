"""`OuterPairs`: what the gradient of each entry, or tile, of D sums products of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.blocks import _concatenated, _nonzeros
from tritonsnap.plan.canonical import _runs
from tritonsnap.plan.compact import signed
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import index_dtype, ranges
from tritonsnap.sparsity.pattern import SparsityPattern

OUTER_TILE = 64
"""Rows and columns of D whose entries one program computes together where they are many."""
_FEW = 64
"""Entries of a tile, of OUTER_TILE ** 2, from which on computing all of them is faster."""

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OuterPairs:
    """Pairs for values in canonical order, those of one tile of D behind those of the one before.

    Where the groups need few of the entries of D, a tile is one entry, in the order of
    `plan.dynamics`, and a pair one row of R and one of X. Otherwise tiles are squares, those of a
    column of tiles behind one another, and a pair is all rows of R and of X in one of them.

    Attributes
    ----------
    tile
        Rows and columns of a tile: 1 or `OUTER_TILE`.
    pair_begin : [tiles + 1]
        Where the pairs of each tile begin.
    pair_run : [pairs]
        A run of columns in which entries of the tile are used; see `CanonicalBlock`.
    pair_row, pair_inner : [pairs]
        The first of the run's rows of M and of X in the tile.
    entry : [nnz(dynamics)]
        Where each entry lies in the whole D, column by column; empty where it lies in its own
        place, since tiles are entries or D is full.
    """

    tile: int
    pair_begin: Any
    pair_run: Any
    pair_row: Any
    pair_inner: Any
    entry: Any

    ARRAYS: ClassVar = ("pair_begin", "pair_run", "pair_row", "pair_inner", "entry")

    @classmethod
    def build(
        cls, groups: ColumnGroups, dynamics: SparsityPattern, nonzeros: NDArray[np.number]
    ) -> OuterPairs:
        """List the pairs of entries or of tiles; `nonzeros` are the entries each group needs."""
        columns = groups.num_columns
        tiles = columns[_tile_pairs(groups, dynamics)[1]].sum()
        is_tiled = (columns * nonzeros).sum() > _FEW * tiles
        return (cls.of_tiles if is_tiled else cls.of_entries)(groups, dynamics)

    @classmethod
    def of_entries(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """List the pairs of each entry of D."""
        pairs = _entry_pairs(groups, dynamics)
        return cls._sorted(1, groups, dynamics.nnz, np.empty(0, np.int64), *pairs)

    @classmethod
    def of_tiles(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """List the pairs of each tile of D."""
        rows, inner = dynamics.shape
        num_tiles = -(-rows // OUTER_TILE) * -(-inner // OUTER_TILE)
        entry = dynamics.cols.astype(np.int64) * rows + dynamics.rows
        entry = entry if len(entry) < rows * inner else entry[:0]
        pairs = _tile_pairs(groups, dynamics)
        return cls._sorted(OUTER_TILE, groups, num_tiles, entry, *pairs)

    @classmethod
    def _sorted(
        cls,
        size: int,
        groups: ColumnGroups,
        num_tiles: int,
        entry: Index,
        tile: Index,
        group: Index,
        row: Index,
        inner: Index,
    ) -> OuterPairs:
        """Pairs of groups as pairs of runs, by tile."""
        _, run_group = _runs(groups)
        runs = np.argsort(run_group, kind="stable")
        begin = np.searchsorted(run_group[runs], np.arange(len(groups) + 1))
        count = np.diff(begin)[group]
        pair = np.repeat(np.arange(len(tile)), count)
        run = runs[ranges(begin[group], count)]
        order = np.lexsort((row[pair], run, tile[pair]))
        pair, run = pair[order], run[order]
        return cls(
            tile=size,
            pair_begin=signed(np.searchsorted(tile[pair], np.arange(num_tiles + 1))),
            pair_run=signed(run),
            pair_row=signed(row[pair]),
            pair_inner=signed(inner[pair]),
            entry=entry.astype(index_dtype(int(entry.max(initial=0)) + 1)),
        )

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        return [getattr(self, name) for name in self.ARRAYS]


def _entry_pairs(
    groups: ColumnGroups, dynamics: SparsityPattern
) -> tuple[Index, Index, Index, Index]:
    """Entry, group, and rows of M and X in the group, of every entry that a group needs."""
    mask_row, row_begin = _concatenated(groups.mask, groups.mask_kind)
    x_row, x_begin = _concatenated(groups.x, groups.x_kind)
    row, x_index, entry = _nonzeros(dynamics, mask_row, row_begin, x_row, x_begin)
    group = np.searchsorted(row_begin, row, side="right") - 1
    return entry, group, row - row_begin[group], x_index - x_begin[group]


def _tile_pairs(
    groups: ColumnGroups, dynamics: SparsityPattern
) -> tuple[Index, Index, Index, Index]:
    """Tile, group, and first rows of M and X in it, of every tile with entries and such rows."""
    down, across = (-(-size // OUTER_TILE) for size in dynamics.shape)
    used = np.zeros(down * across, bool)
    used[dynamics.cols // OUTER_TILE * down + dynamics.rows // OUTER_TILE] = True
    group, i_row, row = _pieces(*_concatenated(groups.mask, groups.mask_kind))
    x_group, i_inner, inner = _pieces(*_concatenated(groups.x, groups.x_kind))
    begin = np.searchsorted(x_group, np.arange(len(groups) + 1))
    count = np.diff(begin)[group]
    left, right = np.repeat(np.arange(len(group)), count), ranges(begin[group], count)
    tile = i_inner[right] * down + i_row[left]
    kept = used[tile]
    left, right = left[kept], right[kept]
    return tile[kept], group[left], row[left], inner[right]


def _pieces(rows: NDArray[np.integer], begin: Index) -> tuple[Index, Index, Index]:
    """Group, number of the tile, and first row in the group, of supports cut at tiles."""
    group = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    number = rows.astype(np.int64) // OUTER_TILE
    new = np.ones(len(rows), bool)
    new[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(new)
    return group[first], number[first], first - begin[group[first]]
