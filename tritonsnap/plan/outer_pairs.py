"""`OuterPairs`: how the gradient of D is summed, from products of rows of one group each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.blocks import _concatenated, nonzeros_by_x_row
from tritonsnap.plan.canonical import _runs
from tritonsnap.plan.compact import signed
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import pointers, ranges
from tritonsnap.sparsity.pattern import SparsityPattern

OUTER_TILE = 64
"""Rows of M and of X whose products one program computes together where many are needed."""
_LANES, _SECTOR = 32, 8
"""Products that are computed in step, and float32 values that one access to memory brings."""
_TILE_SECTORS = 64
"""A GPU multiplies the rows of a tile in about the time in which it loads so many sectors."""
_MOST = 0.4
"""Partial sums for each value of an influence: their index is 5 % of a batch of 8 then."""
_WORD = 32
"""Products of a tile that one number of `tile_bits` tells of."""

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OuterPairs:
    """Pairs of a row of M and one of X, whose products over columns make up the gradient of D.

    Each product goes to a place of its own among the *partial sums*; those of an entry of D are
    added then. Where groups need few of their products, a program takes them one by one, in the
    order of groups: neighbours read the same columns. Elsewhere it computes a tile of them and
    keeps what is needed: a tile of one group's rows, or, where the groups' partial sums would
    together be larger than the influence, a tile of D for all groups, whose sums are D's entries.

    Attributes
    ----------
    tile
        Rows and columns of a tile: 1 or `OUTER_TILE`.
    local
        Whether the rows of tiles are numbered within a group.
    num_partial
        Number of partial sums.
    pair_row, pair_inner : [pairs]
        The rows of M and of X in the group; in a tile the first ones of a run of columns.
    pair_group : [pairs] or empty
        The group, where a tile is one pair: then pairs and partial sums have one number.
    run_begin, group_run : [G + 1] and [K], or empty
        Where each group's runs of columns begin among all runs, sorted by group.
    tile_begin : [tiles + 1] or empty
        Where the pairs of each tile begin.
    pair_run : [pairs] or empty
        A run of columns in which products of the tile are needed; see `CanonicalBlock`.
    tile_row, tile_inner : [tiles] or empty
        The first rows of the tile.
    tile_bits, tile_partial : [tiles, OUTER_TILE, 2], [tiles, OUTER_TILE], or empty
        For each row of X in the tile a bit for each row of M whose product is needed, and the place
        of the first; the others follow.
    entry_begin, entry_partial : [nnz(dynamics) + 1] and [num_partial], or empty
        The partial sums that make up each entry of D; empty where they are the entries.
    """

    tile: int
    local: bool
    num_partial: int
    pair_row: Any
    pair_inner: Any
    pair_group: Any
    run_begin: Any
    group_run: Any
    tile_begin: Any
    pair_run: Any
    tile_row: Any
    tile_inner: Any
    tile_bits: Any
    tile_partial: Any
    entry_begin: Any
    entry_partial: Any

    ARRAYS: ClassVar = (
        *("pair_row", "pair_inner", "pair_group", "run_begin", "group_run", "tile_begin"),
        *("pair_run", "tile_row", "tile_inner", "tile_bits", "tile_partial"),
        *("entry_begin", "entry_partial"),
    )

    @classmethod
    def build(
        cls, groups: ColumnGroups, dynamics: SparsityPattern, nonzeros: NDArray[np.number]
    ) -> OuterPairs:
        """Choose how to compute the products; `nonzeros` are those that each group needs."""
        rows, inner = (np.diff(begin) for begin in _begins(groups))
        tiles = -(-rows // OUTER_TILE) * -(-inner // OUTER_TILE)
        # lanes of one row of M read X's rows from side to side, or as many apart as D has gaps
        gaps = _LANES * rows * inner / np.maximum(nonzeros, 1)
        spans = np.minimum(np.minimum(inner, gaps) / _SECTOR, _LANES)
        sectors = nonzeros / _LANES * (2 + spans)
        columns = groups.num_columns
        if (columns * sectors).sum() <= _TILE_SECTORS * (columns * tiles).sum():
            return cls.of_pairs(groups, dynamics)
        is_small = nonzeros.sum() <= _MOST * max(groups.mask.nnz, groups.x.nnz)
        return (cls.of_groups if is_small else cls.of_dynamics)(groups, dynamics)

    @classmethod
    def of_pairs(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """Every product that a group needs by itself."""
        entry, group, row, inner = _needed(groups, dynamics)
        runs, begin = _runs_by_group(groups)
        own = {"pair_row": row, "pair_inner": inner, "pair_group": group}
        sums = _sums(entry, dynamics.nnz)
        return cls._with({**own, "run_begin": begin, "group_run": runs, **sums}, 1, len(entry))

    @classmethod
    def of_groups(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """Products by tiles of the rows of single groups."""
        down, across = (-(-np.diff(begin) // OUTER_TILE) for begin in _begins(groups))
        owner = np.repeat(np.arange(len(groups)), down * across)
        number = ranges(np.zeros(len(groups), np.int64), down * across)
        tile_row, tile_inner = (
            part * OUTER_TILE for part in (number % down[owner], number // down[owner])
        )
        entry, group, row, inner = _needed(groups, dynamics)
        first = np.cumsum(down * across) - down * across
        tile = first[group] + inner // OUTER_TILE * down[group] + row // OUTER_TILE
        key = tile * OUTER_TILE + inner % OUTER_TILE
        # entries that are one product each, and neighbours where the products are
        is_own = len(entry) == dynamics.nnz and np.all(np.diff(entry)[np.diff(key) == 0] == 1)
        place = entry if is_own else np.arange(len(entry))
        arrays = {
            "tile_row": tile_row,
            "tile_inner": tile_inner,
            **_by_run(groups, len(owner), np.arange(len(owner)), owner, tile_row, tile_inner),
            **_kept(len(owner), key, row, place),
            **({} if is_own else _sums(entry, dynamics.nnz)),
        }
        return cls._with(arrays, OUTER_TILE, len(entry))

    @classmethod
    def of_dynamics(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """Products by tiles of D, each for all groups."""
        down = -(-dynamics.shape[0] // OUTER_TILE)
        rows, cols = dynamics.rows.astype(np.int64), dynamics.cols.astype(np.int64)
        used, tile = np.unique(
            cols // OUTER_TILE * down + rows // OUTER_TILE, return_inverse=True
        )
        key = tile * OUTER_TILE + cols % OUTER_TILE
        arrays = {
            "tile_row": used % down * OUTER_TILE,
            "tile_inner": used // down * OUTER_TILE,
            **_by_run(groups, len(used), *_pieces_of_tiles(groups, used, down)),
            **_kept(len(used), key, rows, np.arange(dynamics.nnz)),
        }
        return cls._with(arrays, OUTER_TILE, dynamics.nnz, local=False)

    @classmethod
    def _with(
        cls, arrays: dict[str, Index], tile: int, num_partial: int, local: bool = True
    ) -> OuterPairs:
        """Narrow index arrays; those that are not given are empty."""
        own = {name: signed(arrays.get(name, np.empty(0, np.int64))) for name in cls.ARRAYS}
        bits = arrays.get("tile_bits", np.empty((0, OUTER_TILE, OUTER_TILE // _WORD), np.int32))
        return cls(tile, local, num_partial, **{**own, "tile_bits": bits})

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        return [getattr(self, name) for name in self.ARRAYS]

    def with_arrays(self, arrays: Iterable[Any]) -> OuterPairs:
        """The same pairs reading other arrays in place of `arrays()`."""
        return replace(self, **dict(zip(self.ARRAYS, arrays, strict=True)))


def _begins(groups: ColumnGroups) -> tuple[Index, Index]:
    """Where the rows of M and of X of each group begin, one group behind the other."""
    return (
        _concatenated(groups.mask, groups.mask_kind)[1],
        _concatenated(groups.x, groups.x_kind)[1],
    )


def _needed(groups: ColumnGroups, dynamics: SparsityPattern) -> tuple[Index, Index, Index, Index]:
    """Entry of D, group, and rows of M and X in the group, of every product that a group needs.

    One group behind the other; in each as on D.
    """
    mask_row, row_begin = _concatenated(groups.mask, groups.mask_kind)
    x_row, x_begin = _concatenated(groups.x, groups.x_kind)
    row, x_index, entry = nonzeros_by_x_row(dynamics, mask_row, row_begin, x_row, x_begin)
    group = np.repeat(np.arange(len(groups)), np.diff(x_begin))[x_index]
    return entry, group, row - row_begin[group], x_index - x_begin[group]


def _sums(entry: Index, num_entries: int) -> dict[str, Index]:
    """The partial sums of each entry, given the entry of each partial sum."""
    if np.array_equal(entry, np.arange(num_entries)):
        return {}
    both = np.sort(entry << 32 | np.arange(len(entry)))  # five times as fast as a stable order
    return {"entry_begin": pointers(entry, num_entries), "entry_partial": both & (1 << 32) - 1}


def _kept(num_tiles: int, key: Index, row: Index, place: Index) -> dict[str, Any]:
    """What tiles keep: products by the number of X's row in all tiles, their row of M and place.

    Those of one row of X lie behind one another, by rows of M, and so do their places.
    """
    row = row % OUTER_TILE
    words = OUTER_TILE // _WORD
    word, bit = key * words + row // _WORD, np.uint32(1) << (row % _WORD).astype(np.uint32)
    bits = np.zeros(num_tiles * OUTER_TILE * words, np.uint32)
    new = np.flatnonzero(np.diff(word, prepend=-1))
    bits[word[new]] = np.bitwise_or.reduceat(bit, new) if len(new) else 0
    first = np.zeros(num_tiles * OUTER_TILE, np.int64)
    new = np.flatnonzero(np.diff(key, prepend=-1))
    first[key[new]] = place[new]
    shape = (num_tiles, OUTER_TILE)
    return {
        "tile_bits": bits.reshape(*shape, -1).view(np.int32),
        "tile_partial": first.reshape(shape),
    }


def _by_run(
    groups: ColumnGroups, num_tiles: int, tile: Index, group: Index, row: Index, inner: Index
) -> dict[str, Index]:
    """Pieces of groups in tiles as pieces of their runs, by tile."""
    runs, begin = _runs_by_group(groups)
    count = np.diff(begin)[group]
    piece = np.repeat(np.arange(len(tile)), count)
    run = runs[ranges(begin[group], count)]
    order = np.lexsort((run, tile[piece]))
    piece = piece[order]
    return {
        "tile_begin": np.searchsorted(tile[piece], np.arange(num_tiles + 1)),
        "pair_run": run[order],
        "pair_row": row[piece],
        "pair_inner": inner[piece],
    }


def _runs_by_group(groups: ColumnGroups) -> tuple[Index, Index]:
    """The runs of all groups, one group behind the other, and where each group's begin."""
    _, owner = _runs(groups)
    runs = np.argsort(owner, kind="stable")
    begin = np.searchsorted(owner[runs], np.arange(len(groups) + 1))
    return runs[: begin[-1]], begin


def _pieces_of_tiles(
    groups: ColumnGroups, used: Index, down: int
) -> tuple[Index, Index, Index, Index]:
    """Place in `used`, group, and first rows of M and X, of the groups' rows in those tiles."""
    group, i_row, row = _pieces(*_concatenated(groups.mask, groups.mask_kind))
    x_group, i_inner, inner = _pieces(*_concatenated(groups.x, groups.x_kind))
    begin = np.searchsorted(x_group, np.arange(len(groups) + 1))
    count = np.diff(begin)[group]
    left, right = np.repeat(np.arange(len(group)), count), ranges(begin[group], count)
    number = i_inner[right] * down + i_row[left]
    tile = np.minimum(np.searchsorted(used, number), len(used) - 1)
    kept = used[tile] == number
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
