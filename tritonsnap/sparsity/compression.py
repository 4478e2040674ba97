"""How the nonzeros of a Jacobian lie in its compressed form, and how to read them from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.coloring import (
    Coloring,
    color_bidirectional,
    color_columns,
    color_graph,
    color_rows,
    is_valid,
    part_of,
)
from tritonsnap.sparsity.indices import index_dtype, ranges
from tritonsnap.sparsity.orders import Bipartite
from tritonsnap.sparsity.pattern import SparsityPattern

Mode = Literal["row", "column", "both"]
Side = Literal["row", "column"]
MODES = ("auto", "row", "column", "both")
# Rows or columns this much fuller than the mean make a pattern worth splitting in two.
_ARROW_LIKE = 4


LONGEST_RUN = 256
_SHORTEST_RUN = 8


class Runs(NamedTuple):
    """Consecutive columns with equal supports: blocks of the compressed Jacobian, transposed.

    Values of a run are ``[columns, support]``, its part of the compressed Jacobian is
    ``[colors, columns]``. No run has more than `LONGEST_RUN` columns.

    Parameters
    ----------
    colors : int32 [sum of support sizes]
        The colors of the rows of each kind of columns.
    first_column, first_color, first_value : int64 [runs]
        Where each run begins among the columns, in `colors`, and among the values.
    columns, support : int64 [runs]
        How many columns each run has, and how many rows each of them.
    """

    colors: Any
    first_column: Any
    first_color: Any
    first_value: Any
    columns: Any
    support: Any


@dataclass(frozen=True, eq=False)
class Compression:
    """Which passes compute a Jacobian ``[m, p]``, and which of its values are wanted.

    Parameters
    ----------
    mask
        Where the Jacobian may be nonzero. The colorings belong to it.
    pattern
        Which values are returned, in canonical order. Those outside `mask` are zero.
    rows
        Coloring of the m rows: one VJP per color; None if JVPs do it all.
    columns
        Coloring of the p columns: one JVP per color; None if VJPs do it all.
    by_column : bool [mask.nnz]
        Which nonzeros are read from the JVPs, where there are both; else None.
    auto
        Whether the passes were chosen for being the fewest: as few of another kind may replace
        them.
    """

    mask: SparsityPattern
    pattern: SparsityPattern
    rows: Coloring | None
    columns: Coloring | None
    by_column: NDArray[np.bool_] | None = None
    auto: bool = False

    @classmethod
    def of(
        cls,
        mask: SparsityPattern,
        keep: SparsityPattern | None = None,
        mode: str = "auto",
        order: str = "largest_first",
        dense_threshold: float = 0.8,
    ) -> Compression:
        """Choose the passes for a mask.

        Parameters
        ----------
        mask, keep
            Where the Jacobian may be nonzero, and which of these values to return (all if None).
        mode
            ``"row"`` (VJPs), ``"column"`` (JVPs), ``"both"``, or ``"auto"``: the fewer passes, of
            equally many the VJPs, which several leaves can share; both only for an arrow-like mask
            where that halves the passes.
        order
            See `color_rows`.
        dense_threshold
            A mask of at least this density is not colored: one pass per row, or per column.

        Raises
        ------
        ValueError
            If `mode` or `order` is unknown, or `keep` has another shape than `mask`.
        """
        if mode not in MODES:
            raise ValueError(f"`mode` must be one of {MODES}, got {mode!r}")
        pattern = mask if keep is None else keep
        if pattern.shape != mask.shape:
            raise ValueError(f"`keep` has shape {pattern.shape}, its mask {mask.shape}")
        if mode == "both":
            return cls._of_both(mask, pattern, order)
        if mask.density >= dense_threshold:
            num_rows, num_cols = mask.shape
            auto = mode == "auto"
            if mode == "column" or (auto and num_cols < num_rows):
                return cls(mask, pattern, None, Coloring.each_its_own(num_cols), auto=auto)
            return cls(mask, pattern, Coloring.each_its_own(num_rows), None, auto=auto)
        if mode == "row":
            return cls(mask, pattern, color_rows(mask, order), None)
        if mode == "column":
            return cls(mask, pattern, None, color_columns(mask, order))
        return cls._of_fewest(mask, pattern, order)

    @classmethod
    def _of_fewest(cls, mask: SparsityPattern, pattern: SparsityPattern, order: str) -> Compression:
        rows = Bipartite.of_rows(mask)
        columns = rows.transpose(mask.column_kind)
        graphs: dict[Side, Bipartite] = {"row": rows, "column": columns}
        fullest_column, fullest_row = rows.largest_clique, columns.largest_clique
        # A side has at least as many colors as the fullest line across it has nonzeros. So the
        # side with the lower bound goes first, and often makes the other one superfluous.
        sides: tuple[Side, Side] = ("row", "column")
        first, second = sides if fullest_column <= fullest_row else sides[::-1]
        side, best = first, color_graph(graphs[first], order)
        other_may_win = best.num_colors >= graphs[second].largest_clique + (first == "row")
        if other_may_win and not rows.has_links_of(columns):
            other = color_graph(graphs[second], order)
            if other.num_colors < best.num_colors + (second == "row"):
                side, best = second, other
        num_rows, num_cols = mask.shape
        if fullest_column * num_cols > _ARROW_LIKE * mask.nnz < fullest_row * num_rows:
            both = cls._of_both(mask, pattern, order)
            if 2 * both.num_passes <= best.num_colors:
                return both
        if side == "row":
            return cls(mask, pattern, best, None, auto=True)
        return cls(mask, pattern, None, best, auto=True)

    @classmethod
    def _of_both(cls, mask: SparsityPattern, pattern: SparsityPattern, order: str) -> Compression:
        split = color_bidirectional(mask, order)
        return cls(mask, pattern, split.rows, split.columns, split.by_column)

    @cached_property
    def runs(self) -> Runs | None:
        """The runs of equal columns of a mask that VJPs serve; None where they would not pay."""
        if self.mode != "row" or self.pattern is not self.mask or not self.mask.nnz:
            return None
        assert self.rows is not None
        kind = self.mask.column_kind
        changes = np.flatnonzero(kind[1:] != kind[:-1]) + 1
        ends = np.append(changes, len(kind))
        starts = np.insert(changes, 0, 0)
        pieces = -(-(ends - starts) // LONGEST_RUN)
        first = ranges(np.zeros_like(pieces), pieces) * LONGEST_RUN + np.repeat(starts, pieces)
        columns = np.minimum(np.repeat(ends, pieces) - first, LONGEST_RUN)
        support = np.diff(self.mask.support_indptr)[kind[first]]
        if columns.mean() < _SHORTEST_RUN or support.max() == 1:
            return None
        return Runs(
            colors=self.rows.colors[self.mask.support_rows],
            first_column=first,
            first_color=self.mask.support_indptr[kind[first]],
            first_value=self.mask.indptr[first],
            columns=columns,
            support=support,
        )

    def by_as_many_columns(self) -> Compression | None:
        """JVPs in place of VJPs, where the mode is open and they are no more; else None."""
        if not self.auto or self.mode != "row":
            return None
        if np.bincount(self.mask.rows).max(initial=0) > self.num_passes:
            return None  # the columns need more colors
        columns = color_columns(self.mask)
        if columns.num_colors > self.num_passes:
            return None
        return replace(self, rows=None, columns=columns)

    def untruncated(self) -> Compression:
        """The same passes, with all values of the mask returned."""
        return replace(self, pattern=self.mask)

    @property
    def mode(self) -> Mode:
        """``"row"`` for VJPs, ``"column"`` for JVPs, or ``"both"``."""
        if self.columns is None:
            return "row"
        return "column" if self.rows is None else "both"

    @property
    def num_passes(self) -> int:
        """VJPs and JVPs together."""
        return sum(side.num_colors for side in (self.rows, self.columns) if side is not None)

    @property
    def compressed_shape(self) -> tuple[int, int]:
        """Shape of the compressed Jacobian.

        ``[row colors, p]`` for VJPs, ``[column colors, m]`` for JVPs. Both of them, flattened, one
        after the other, as a single row for ``"both"``.
        """
        num_rows, num_cols = self.mask.shape
        by_rows = (self.rows.num_colors, num_cols) if self.rows is not None else (0, 0)
        by_columns = (self.columns.num_colors, num_rows) if self.columns is not None else (0, 0)
        if self.mode == "both":
            return 1, by_rows[0] * by_rows[1] + by_columns[0] * by_columns[1]
        return by_rows if self.mode == "row" else by_columns

    @cached_property
    def index(self) -> NDArray[np.integer]:
        """int32 or int64 [pattern.nnz]: the place of each value in the flat compressed Jacobian.

        -1 for a value outside the mask.
        """
        num_rows, num_cols = self.mask.shape
        rows, cols = self.mask.rows.astype(np.int64), self.mask.cols.astype(np.int64)
        place = np.empty(self.mask.nnz, np.int64)
        from_vjps = np.full(self.mask.nnz, self.rows is not None)
        if self.by_column is not None:
            from_vjps = ~self.by_column
        offset = 0
        if self.rows is not None:
            place[from_vjps] = (self.rows.colors[rows] * np.int64(num_cols) + cols)[from_vjps]
            offset = self.rows.num_colors * num_cols
        if self.columns is not None:
            from_jvps = self.columns.colors[cols] * np.int64(num_rows) + rows + offset
            place[~from_vjps] = from_jvps[~from_vjps]
        if self.pattern is not self.mask:
            keys = cols * num_rows + rows
            wanted = self.pattern.cols.astype(np.int64) * num_rows + self.pattern.rows
            found = np.searchsorted(keys, wanted)
            known = found < len(keys)
            known[known] = keys[found[known]] == wanted[known]
            place = np.where(known, np.append(place, -1)[np.where(known, found, -1)], -1)
        size = self.compressed_shape[0] * self.compressed_shape[1]
        return place.astype(index_dtype(size))

    @cached_property
    def has_gaps(self) -> bool:
        """Whether some wanted value lies outside the mask."""
        return bool(np.any(self.index < 0))

    @cached_property
    def is_flat(self) -> bool:
        """Whether the compressed Jacobian, flattened, is the values: nothing to gather."""
        size = self.compressed_shape[0] * self.compressed_shape[1]
        return len(self.index) == size and bool(np.all(self.index == np.arange(size)))

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        hasher = hashlib.blake2b(self.mask.digest.encode() + self.pattern.digest.encode())
        for side in (self.rows, self.columns):
            hasher.update(b"-" if side is None else side.colors.tobytes())
        hasher.update(b"-" if self.by_column is None else self.by_column.tobytes())
        return hasher.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Compression):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def _arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        arrays = self.mask._arrays(f"{prefix}mask/") | self.pattern._arrays(f"{prefix}pattern/")
        for name, side in (("rows", self.rows), ("columns", self.columns)):
            if side is not None:
                arrays |= side._arrays(f"{prefix}{name}/")
        if self.by_column is not None:
            arrays[f"{prefix}by_column"] = self.by_column
        return arrays | {f"{prefix}auto": np.array(self.auto)}

    @classmethod
    def _from_arrays(cls, arrays: dict[str, NDArray[Any]], path: Path, prefix: str) -> Compression:
        mask, pattern = (
            SparsityPattern._from_arrays(arrays, path, f"{prefix}{name}/")
            for name in ("mask", "pattern")
        )
        rows, columns = (
            Coloring._from_arrays(arrays, path, f"{prefix}{name}/")
            if f"{prefix}{name}/colors" in arrays
            else None
            for name in ("rows", "columns")
        )
        by_column = arrays.get(f"{prefix}by_column")
        auto = bool(np.any(arrays.get(f"{prefix}auto", False)))
        found = cls(mask, mask if pattern == mask else pattern, rows, columns, by_column, auto)
        if not found._is_sound():
            raise ValueError(f"{path} holds no valid projection: its colorings fit no mask")
        return found

    def _is_sound(self) -> bool:
        """Whether the colorings belong to the masks, so that no two values are added."""
        if self.pattern.shape != self.mask.shape or (self.rows is None and self.columns is None):
            return False
        if self.rows is not None and self.columns is not None:
            if self.by_column is None or self.by_column.dtype != bool:
                return False
            if self.by_column.shape != (self.mask.nnz,):
                return False
            parts = part_of(self.mask, ~self.by_column), part_of(self.mask, self.by_column)
        else:
            parts = self.mask, self.mask
        sides = zip((self.rows, self.columns), parts, (0, 1), strict=True)
        return all(side is None or is_valid(side, part, axis) for side, part, axis in sides)


@dataclass(frozen=True, eq=False)
class Projection:
    """A compression with its index arrays in the library and on the device where they are used.

    Parameters
    ----------
    compression
        What the arrays are made of.
    index : int [nnz]
        See `Compression.index`.
    coordinates : int [nnz, 2]
        Row and column of each value.
    row_colors, column_colors : int [m], int [p]
        Colors of the rows and columns; None where there are no such passes.
    runs
        See `Compression.runs`.
    """

    compression: Compression
    index: Any
    coordinates: Any
    row_colors: Any
    column_colors: Any
    runs: Runs | None = None

    @classmethod
    def of(cls, compression: Compression) -> Projection:
        """Make the index arrays of a compression, in NumPy."""
        pattern = compression.pattern
        rows, columns = compression.rows, compression.columns
        return cls(
            compression,
            compression.index,
            np.stack([pattern.rows, pattern.cols], axis=1).astype(index_dtype(max(pattern.shape))),
            None if rows is None else rows.colors,
            None if columns is None else columns.colors,
            compression.runs,
        )

    def convert(self, array: Callable[[Any], Any]) -> Projection:
        """Put every index array through `array`, for instance to another device."""
        names = ("index", "coordinates", "row_colors", "column_colors")
        arrays = {name: getattr(self, name) for name in names}
        converted = {name: array(a) for name, a in arrays.items() if a is not None}
        runs = None if self.runs is None else Runs(*map(array, self.runs))
        return replace(self, runs=runs, **converted)

    @property
    def pattern(self) -> SparsityPattern:
        """The pattern of the values that `gather_compressed` returns."""
        return self.compression.pattern
