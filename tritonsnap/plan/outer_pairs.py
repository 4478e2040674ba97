"""`OuterPairs`: how the gradient of D is summed, from products of rows of one group each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
COLUMNS = 8
"""Columns that are read at once for a product where few others read them."""
_LANES, _SECTOR = 32, 8
"""Products that are computed in step, and float32 values that one access to memory brings."""
_TILE_SECTORS = 64
"""A GPU multiplies the rows of a tile in about the time in which it loads so many sectors."""
_MOST = 0.4
"""Partial sums for each value of an influence: their index is 5 % of a batch of 8 then."""
_WORD = 32
"""Products of a tile that one number of `kept` tells of."""

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OuterPairs:
    """Pairs of a row of M and one of X, whose products over columns make up the gradient of D.

    Each product goes to a place of its own among the *partial sums*; those of an entry of D are
    added then. Where groups need few of their products, a program takes them one by one, in the
    order of groups: neighbours read the same columns. Elsewhere it computes a tile of them and
    keeps what is needed: a tile of one group's rows, or, where those would be too many partial
    sums beside the influence, a tile of D for all groups, whose sums are D's entries.

    Attributes
    ----------
    tile
        Rows and columns of a tile: 1 or `OUTER_TILE`.
    local
        Whether the rows of tiles are numbered within a group.
    num_partial
        Number of partial sums.
    columns
        How many columns are read at once for a product of a pair: 1 or `COLUMNS`.
    pair_group, pair_row, pair_inner : [num_partial]
        Of each partial sum the group and the rows of M and of X in it; empty if there are tiles.
    run_begin, group_run : [G + 1], [K]
        Where each group's runs of columns begin, and the runs (see `CanonicalBlock`) by group;
        empty if there are tiles.
    tiles : [tiles, 8]
        First piece of each tile, one past its last, its first rows of M and of X, and how many of
        either it has. Then, of a tile that is needed whole, the place of its first product, and
        how far apart those of neighbouring rows of X lie; of another its number in `kept`, and 0.
    pieces : [pieces, 3]
        A run of columns in which products of the tile are needed, and the first of its group's
        rows of M and of X that lie in the tile.
    kept : [tiles that are not needed whole, 3, OUTER_TILE]
        For each row of X in a tile, the place of the first product that is needed, behind which
        the others lie, and for either half of the rows of M a bit for each whose product is.
    entry_begin, entry_partial : [nnz(dynamics) + 1], [num_partial]
        The partial sums that make up each entry of D; empty where they are the entries.
    """

    tile: int
    local: bool
    num_partial: int
    columns: int
    pair_group: Any
    pair_row: Any
    pair_inner: Any
    run_begin: Any
    group_run: Any
    tiles: Any
    pieces: Any
    kept: Any
    entry_begin: Any
    entry_partial: Any

    ARRAYS: ClassVar = (
        *("pair_group", "pair_row", "pair_inner", "run_begin", "group_run", "tiles", "pieces"),
        *("kept", "entry_begin", "entry_partial"),
    )

    @classmethod
    def build(
        cls, groups: ColumnGroups, dynamics: SparsityPattern, nonzeros: NDArray[np.number]
    ) -> OuterPairs:
        """Choose how to compute the products; `nonzeros` are those that each group needs."""
        rows, inner = (np.diff(begin) for begin in _begins(groups))
        tiles = -(-rows // OUTER_TILE) * -(-inner // OUTER_TILE)
        # lanes that share a row of X read rows of M: all of them, or as far apart as D has gaps
        gaps = _LANES * rows * inner / np.maximum(nonzeros, 1)
        spans = np.minimum(np.minimum(rows, gaps) / _SECTOR, _LANES)
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
        arrays = {
            "pair_group": group,
            "pair_row": row,
            "pair_inner": inner,
            "run_begin": begin,
            "group_run": runs,
            **_sums(entry, dynamics.nnz),
        }
        products = np.bincount(group, minlength=len(groups)) * groups.num_columns
        num_columns = groups.num_columns.sum()
        is_few = 2 * products.sum() <= COLUMNS * num_columns  # for one column
        is_long = num_columns >= COLUMNS * len(groups)
        return cls._with(arrays, 1, len(entry), columns=COLUMNS if is_few and is_long else 1)

    @classmethod
    def of_groups(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """Products by tiles of the rows of single groups."""
        down, across = (-(-np.diff(begin) // OUTER_TILE) for begin in _begins(groups))
        owner = np.repeat(np.arange(len(groups)), down * across)
        number = ranges(np.zeros(len(groups), np.int64), down * across)
        corner = np.stack([number % down[owner], number // down[owner]], axis=1) * OUTER_TILE
        entry, group, row, inner = _needed(groups, dynamics)
        first = np.cumsum(down * across) - down * across
        tile = first[group] + inner // OUTER_TILE * down[group] + row // OUTER_TILE
        line = tile * OUTER_TILE + inner % OUTER_TILE
        # entries that are one product each, and neighbours where the products are
        is_own = len(entry) == dynamics.nnz and np.all(np.diff(entry)[np.diff(line) == 0] == 1)
        place = entry if is_own else np.arange(len(entry))
        size = np.stack([np.diff(begin)[owner] for begin in _begins(groups)], axis=1) - corner
        arrays = {
            **_by_run(groups, corner, np.arange(len(owner)), owner, corner),
            **({} if is_own else _sums(entry, dynamics.nnz)),
        }
        return cls._of_tiles(arrays, size, line, row, place)

    @classmethod
    def of_dynamics(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """Products by tiles of D, each for all groups."""
        down = -(-dynamics.shape[0] // OUTER_TILE)
        rows, cols = dynamics.rows.astype(np.int64), dynamics.cols.astype(np.int64)
        number = cols // OUTER_TILE * down + rows // OUTER_TILE
        used, tile = np.unique(number, return_inverse=True)
        line = tile * OUTER_TILE + cols % OUTER_TILE
        corner = np.stack([used % down, used // down], axis=1) * OUTER_TILE
        arrays = _by_run(groups, corner, *_pieces_of_tiles(groups, used, down))
        size, place = np.array(dynamics.shape) - corner, np.arange(dynamics.nnz)
        return cls._of_tiles(arrays, size, line, rows, place, local=False)

    @classmethod
    def _of_tiles(
        cls,
        arrays: Mapping[str, NDArray[np.integer]],
        size: Index,
        line: Index,
        row: Index,
        place: Index,
        *,
        local: bool = True,
    ) -> OuterPairs:
        """Add what each tile keeps: of products the row of X in all tiles, M's row, the place.

        `size` is how many rows of M and of X lie behind each tile's first.
        """
        whole, kept = _kept(np.minimum(size, OUTER_TILE), line, row % OUTER_TILE, place)
        arrays = {**arrays, "tiles": np.hstack([arrays["tiles"], whole]), "kept": kept}
        return cls._with(arrays, OUTER_TILE, len(place), local=local)

    @classmethod
    def _with(
        cls,
        arrays: Mapping[str, NDArray[np.integer]],
        tile: int,
        num_partial: int,
        *,
        local: bool = True,
        columns: int = 1,
    ) -> OuterPairs:
        """Narrow index arrays; those that are not given are empty."""
        none = np.empty(0, np.int64)
        own = {name: signed(arrays.get(name, none)) for name in cls.ARRAYS}
        for name in ("tiles", "kept"):  # places are stored without a sign
            own[name] = arrays.get(name, none).astype(np.uint32).view(np.int32)
        return cls(tile, local, num_partial, columns, **own)

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


def _kept(size: Index, line: Index, row: Index, place: Index) -> tuple[Index, Index]:
    """The end of `OuterPairs.tiles`, and `OuterPairs.kept`.

    Given of each tile its rows of M and of X, and of each product the number of X's row in all
    tiles, M's row in the tile, and the place. The products of one row of X lie behind one another,
    by rows of M, and so do their places.
    """
    num_tiles = len(size)
    tile, inner = line // OUTER_TILE, line % OUTER_TILE
    first = np.zeros((num_tiles, 2), np.int64)  # places of the first two rows of X
    at = np.flatnonzero((row == 0) & (inner < 2))
    first[tile[at], inner[at]] = place[at]
    step = np.where(size[:, 1] > 1, first[:, 1] - first[:, 0], 1)
    regular = place == first[tile, 0] + inner * step[tile] + row
    whole = np.bincount(tile[regular], minlength=num_tiles) == size.prod(axis=1)

    number = np.cumsum(~whole) - 1
    ends = np.where(whole, [first[:, 0], step], [number, np.zeros_like(step)])
    kept = np.zeros((np.count_nonzero(~whole), 3, OUTER_TILE), np.int64)
    rest = np.flatnonzero(~whole[tile])
    tile, line, inner, row, place = (of[rest] for of in (number[tile], line, inner, row, place))
    new = np.flatnonzero(np.diff(line, prepend=-1))
    kept[tile[new], 0, inner[new]] = place[new]
    half, bit = row // _WORD, 1 << row % _WORD
    new = np.flatnonzero(np.diff(2 * line + half, prepend=-1))
    if len(new):
        kept[tile[new], 1 + half[new], inner[new]] = np.bitwise_or.reduceat(bit, new)
    return np.column_stack([size, *ends]), kept


def _by_run(
    groups: ColumnGroups,
    corner: Index,
    tile: Index,
    group: Index,
    first: Index,
) -> dict[str, Index]:
    """Tiles, and the runs of the groups in them: each has a tile and first rows in it, [..., 2]."""
    runs, begin = _runs_by_group(groups)
    count = np.diff(begin)[group]
    piece = np.repeat(np.arange(len(tile)), count)
    run = runs[ranges(begin[group], count)]
    order = np.lexsort((run, tile[piece]))
    piece = piece[order]
    ends = pointers(tile[piece], len(corner))
    return {
        "tiles": np.column_stack([ends[:-1], ends[1:], corner]),
        "pieces": np.column_stack([run[order], first[piece]]),
    }


def _runs_by_group(groups: ColumnGroups) -> tuple[Index, Index]:
    """The runs of all groups, one group behind the other, and where each group's begin."""
    _, owner = _runs(groups)
    runs = np.argsort(owner, kind="stable")
    begin = np.searchsorted(owner[runs], np.arange(len(groups) + 1))
    return runs[: begin[-1]], begin


def _pieces_of_tiles(groups: ColumnGroups, used: Index, down: int) -> tuple[Index, Index, Index]:
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
    return tile[kept], group[left], np.stack([row[left], inner[right]], axis=1)


def _pieces(rows: NDArray[np.integer], begin: Index) -> tuple[Index, Index, Index]:
    """Group, number of the tile, and first row in the group, of supports cut at tiles."""
    group = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
    number = rows.astype(np.int64) // OUTER_TILE
    new = np.ones(len(rows), bool)
    new[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(new)
    return group[first], number[first], first - begin[group[first]]
