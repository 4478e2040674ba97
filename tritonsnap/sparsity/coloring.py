"""Groups of rows, or of columns, of a Jacobian that one derivative pass can serve.

Rows that share no column may be summed by one VJP and told apart afterwards; columns that share no
row, by one JVP. Finding few such groups is a coloring problem (Curtis, Powell & Reid 1974; Coleman
& More 1983; survey: Gebremedhin, Manne & Pothen, "What color is your Jacobian?", SIAM Review 2005).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_instance, check_integer
from tritonsnap.files import read_arrays, write_arrays
from tritonsnap.sparsity.orders import (
    Bipartite,
    color_by_networkx,
    cyclic,
    dsatur,
    largest_first,
    natural,
    smallest_last,
)
from tritonsnap.sparsity.pattern import SparsityPattern

FORMAT = "tritonsnap.Coloring/1"
ORDERS: dict[str, Callable[[Bipartite], NDArray[np.int32]]] = {
    "largest_first": largest_first,
    "natural": natural,
    "smallest_last": smallest_last,
    "dsatur": dsatur,
}
NETWORKX = "networkx:"


@dataclass(frozen=True, eq=False, repr=False)
class Coloring:
    """A color for each row (or column), such that equal colors share no column (row).

    Parameters
    ----------
    colors : int32 [rows or columns]
        The color of each, from 0 on; -1 for a row (column) that no pass may touch.
    num_colors
        Number of colors in use: the number of VJPs (JVPs) that a Jacobian takes. 0 if the
        pattern is empty.
    lower_bound
        No coloring has fewer colors: the nonzeros of the fullest column (row).
    order
        The order that `color_rows` or `color_columns` was asked for.
    """

    colors: NDArray[np.int32]
    num_colors: int
    lower_bound: int
    order: str

    def __post_init__(self) -> None:
        self.colors.flags.writeable = False

    @classmethod
    def each_its_own(cls, size: int) -> Coloring:
        """One color for each: what a dense Jacobian needs."""
        return cls(np.arange(size, dtype=np.int32), size, size, "natural")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the coloring to an ``.npz`` file, atomically."""
        write_arrays(path, FORMAT, self._arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Coloring:
        """Read a coloring that `save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a coloring, or is damaged.
        """
        return cls._from_arrays(read_arrays(path, FORMAT), Path(path))

    def _arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """The arrays that `_from_arrays` reads, for files that hold several objects."""
        return {
            f"{prefix}colors": self.colors,
            f"{prefix}counts": np.array([self.num_colors, self.lower_bound]),
            f"{prefix}order": np.asarray(self.order),
        }

    @classmethod
    def _from_arrays(
        cls, arrays: dict[str, NDArray[Any]], path: Path, prefix: str = ""
    ) -> Coloring:
        """Rebuild a coloring from `_arrays`; `path` is what an error names."""
        try:
            colors = arrays[f"{prefix}colors"].astype(np.int32, casting="same_kind")
            num_colors, lower_bound = arrays[f"{prefix}counts"].tolist()
            order = str(arrays[f"{prefix}order"])
            check_integer("num_colors", num_colors, 0, len(colors))
            check_integer("lower_bound", lower_bound, 0, num_colors)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid coloring: {error}") from error
        if colors.ndim != 1 or np.any(colors < -1) or np.any(colors >= max(num_colors, 1)):
            raise ValueError(f"{path} holds no valid coloring: colors out of range")
        return cls(colors, num_colors, lower_bound, order)

    def plot(self, pattern: SparsityPattern, axes: Any = None) -> Any:
        """Draw `pattern` with each nonzero in the color of its row (or column).

        Parameters
        ----------
        pattern
            The pattern that was colored.
        axes
            Matplotlib axes to draw on; new ones if None.

        Returns
        -------
        The matplotlib axes.

        Raises
        ------
        ImportError
            If matplotlib is missing; the message names the pip command.
        ValueError
            If the coloring belongs to a pattern of another shape.
        """
        if axes is None:
            try:
                from matplotlib import pyplot
            except ModuleNotFoundError as error:
                raise ImportError(
                    "matplotlib is not installed; run: pip install 'tritonsnap[plots]'"
                ) from error
            axes = pyplot.figure().add_subplot()
        by_row = is_valid(self, pattern, axis=0)
        if not by_row and not is_valid(self, pattern, axis=1):
            raise ValueError(f"`pattern` {pattern!r} is not the one that was colored")
        shade = self.colors[pattern.rows if by_row else pattern.cols]
        rows, columns = pattern.shape
        marks = axes.scatter(pattern.cols, pattern.rows, c=shade, cmap="turbo", marker="s", s=4)
        marks.set_rasterized(True)
        axes.set(
            xlim=(-0.5, columns - 0.5),
            ylim=(rows - 0.5, -0.5),
            aspect="equal",
            xlabel="column",
            ylabel="row",
            title=f"{self.num_colors} {'row' if by_row else 'column'} colors",
        )
        return axes

    def __repr__(self) -> str:
        return (
            f"Coloring({len(self.colors)} in {self.num_colors} colors, "
            f"lower_bound={self.lower_bound}, order={self.order!r})"
        )


@dataclass(frozen=True, eq=False)
class BidirectionalColoring:
    """A split of a pattern's columns: some read from JVPs, all others from VJPs.

    An arrow matrix has a full row and a full column: either alone forces as many colors as there
    are rows. Read its full column from a JVP of its own, and two VJPs serve everything else.

    Parameters
    ----------
    rows
        Coloring of the rows, valid on the columns that VJPs serve.
    columns
        Coloring of the columns, valid on the columns that JVPs serve.
    by_column : bool [nnz]
        Which nonzeros are read from the JVPs, in canonical order.
    """

    rows: Coloring
    columns: Coloring
    by_column: NDArray[np.bool_]

    @property
    def num_colors(self) -> int:
        """VJPs and JVPs together."""
        return self.rows.num_colors + self.columns.num_colors


def color_rows(pattern: SparsityPattern, order: str = "largest_first") -> Coloring:
    """Color the rows of a pattern, so that rows of one color share no column.

    Parameters
    ----------
    pattern
        The pattern of the Jacobian ``[m, p]``.
    order
        ``"largest_first"``, ``"natural"``, ``"smallest_last"``, ``"dsatur"``, or
        ``"networkx:<strategy>"`` for any strategy of `networkx.greedy_color` (slow: it forms the
        conflict graph). Where numbering the rows modulo `lower_bound` is a coloring, as for bands
        and blocks, that is returned in place of the first four: none has fewer colors.

    Returns
    -------
    Coloring of the m rows; its `num_colors` is the number of VJPs.

    Raises
    ------
    ValueError
        If `order` is unknown.
    """
    check_instance("pattern", pattern, SparsityPattern)
    return color_graph(Bipartite.of_rows(pattern), order)


def color_columns(pattern: SparsityPattern, order: str = "largest_first") -> Coloring:
    """Color the columns of a pattern, so that columns of one color share no row.

    The arguments, errors and result are those of `color_rows`; `num_colors` counts JVPs.
    """
    check_instance("pattern", pattern, SparsityPattern)
    return color_graph(Bipartite.of_columns(pattern), order)


def color_bidirectional(
    pattern: SparsityPattern, order: str = "largest_first"
) -> BidirectionalColoring:
    """Split a pattern between VJPs and JVPs so that both together are few.

    The fullest columns go to the JVPs, and everything else to the VJPs (or the fullest rows to the
    VJPs and everything else to the JVPs); the best split over a geometric series of sizes wins.

    Parameters
    ----------
    pattern, order
        As for `color_rows`.
    """
    splits = [*_splits(np.diff(pattern.indptr)[pattern.cols])]
    splits += [~full for full in _splits(np.bincount(pattern.rows)[pattern.rows])]
    candidates = []
    for by_column in splits:
        by_vjp, by_jvp = part_of(pattern, ~by_column), part_of(pattern, by_column)
        rows = _only(color_rows(by_vjp, order), by_vjp.rows)
        columns = _only(color_columns(by_jvp, order), by_jvp.cols)
        candidates.append(BidirectionalColoring(rows, columns, by_column))
    return min(candidates, key=lambda candidate: candidate.num_colors)


def is_valid(coloring: Coloring, pattern: SparsityPattern, axis: int) -> bool:
    """Whether equal colors meet in no column (axis 0: rows colored) or row (axis 1)."""
    if len(coloring.colors) != pattern.shape[axis]:
        return False
    colored, across = (pattern.rows, pattern.cols)[:: 1 if axis == 0 else -1]
    met = coloring.colors[colored].astype(np.int64) * pattern.shape[1 - axis] + across
    return len(np.unique(met)) == pattern.nnz


def color_graph(graph: Bipartite, order: str) -> Coloring:
    """Color the vertices of a pattern's graph, as `color_rows` does."""
    if not isinstance(order, str) or (order not in ORDERS and not order.startswith(NETWORKX)):
        raise ValueError(
            f"`order` must be one of {sorted(ORDERS)} or '{NETWORKX}<strategy>', got {order!r}"
        )
    if order not in ORDERS:
        colors = color_by_networkx(graph, order.removeprefix(NETWORKX))
    elif (optimal := cyclic(graph)) is not None:
        colors = optimal
    else:
        colors = ORDERS[order](graph)
    num_colors = int(colors.max()) + 1 if len(graph.links) else 0
    return Coloring(colors, num_colors, graph.largest_clique, order)


def _splits(fullness: NDArray[np.integer]) -> list[NDArray[np.bool_]]:
    """Masks [nnz] of the nonzeros in lines fuller than a threshold, thresholds halving."""
    top = int(fullness.max(initial=1))
    return [fullness > top >> halvings for halvings in range(top.bit_length())]


def part_of(pattern: SparsityPattern, chosen: NDArray[np.bool_]) -> SparsityPattern:
    """The pattern of some of a pattern's nonzeros."""
    return SparsityPattern.from_coo(pattern.rows[chosen], pattern.cols[chosen], pattern.shape)


def _only(coloring: Coloring, lines: NDArray[np.integer]) -> Coloring:
    """Take the color from all others: their nonzeros would spoil what is read from the passes."""
    colors = np.full_like(coloring.colors, -1)
    colors[lines] = coloring.colors[lines]
    return replace(coloring, colors=colors)
