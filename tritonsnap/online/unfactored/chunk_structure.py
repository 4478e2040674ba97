"""`UnfactoredChunking`: how a cell whose Jacobians are values goes through time at once.

The groups of the influence that have adjoints of as many rows are a `Part`. Groups whose columns
have immediate Jacobians in different rows have a color in common: one derivative pass serves them
all, as in a compressed Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.chunk_groups import BlockRows
from tritonsnap.plan.blocks import Block, ElementwiseBlock, WalkBlock
from tritonsnap.plan.compact import compact
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity.coloring import color_columns
from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True, eq=False)
class Part:
    """Groups of one block, or of all elementwise ones, whose adjoints are carried back together.

    Attributes
    ----------
    numbers
        Which blocks of the packing they are from.
    shape
        (G, S): groups, and rows in each at most.
    support : [G, S]
        The rows of the state; one past the last at padding.
    entry : [G, S, S] or None
        Where ``D[S, S]^T`` lies among the values of the dynamics, one past the last where it is
        zero; None if it is all of them, in order.
    owner : [colors, rows] or None
        Which row of the groups' adjoints [G * S] is that of each row of the state, one past the
        last if none is; None if they are in order.
    counted : bool [colors, parameters] or None
        The parameters of each color; None if one color has all.
    columns : tuple of [G, C] or None
        For each block the parameter of each column, one past the last at padding; None if they are
        all, in order.
    color : tuple of [G]
        For each block the color of each group.
    places, rows : [G, S], [N] or None
        For a walk: where the rows of each group lie in the block, one past the last at padding, and
        where the rows of the block lie among those of all groups.
    """

    numbers: tuple[int, ...]
    shape: tuple[int, int]
    support: Any
    entry: Any
    owner: Any
    counted: Any
    columns: tuple[Any, ...]
    color: tuple[Any, ...]
    places: Any = None
    rows: Any = None

    ARRAYS: ClassVar = (
        *("support", "entry", "owner", "counted"),
        *("columns", "color", "places", "rows"),
    )

    @property
    def num_colors(self) -> int:
        """Passes that take the immediate Jacobian of all groups."""
        return 1 if self.owner is None else int(self.owner.shape[0])

    @classmethod
    def build(cls, packing: Packing, numbers: Sequence[int], immediate: SparsityPattern) -> Part:
        """Find out what chunks of some blocks need: of one, or of elementwise ones."""
        blocks: list[Block] = [packing.blocks[number] for number in numbers]
        columns = [np.asarray(block.columns.index(np), np.int64) for block in blocks]
        places, rows = None, None
        if isinstance(blocks[0], ElementwiseBlock):
            own = [np.asarray(block.mask_row, np.int64) for block in blocks]  # type: ignore[union-attr]
            support = np.concatenate(own)[:, None]
        else:
            lying = BlockRows.of(blocks[0], packing.dynamics)
            support = lying.supports
            if isinstance(blocks[0], WalkBlock):
                places, rows = lying.places, np.argsort(lying.places, axis=None)[: lying.total]
        members = np.concatenate([block.groups for block in blocks])
        reached = _immediate_rows(packing, members, columns, immediate)
        colors = color_columns(reached).colors.astype(np.int64)
        num_parameters = immediate.shape[1]
        counted = np.zeros((int(colors.max()) + 1, num_parameters), bool)
        begin, color = 0, []
        for table in columns:
            of_block = colors[begin : begin + len(table)]
            inside = table < num_parameters
            counted[np.broadcast_to(of_block[:, None], table.shape)[inside], table[inside]] = True
            color.append(compact(of_block))
            begin += len(table)
        all_in_order = len(columns) == 1 and np.array_equal(columns[0], [np.arange(num_parameters)])
        owner = _owners(support, reached, colors)
        return cls(
            numbers=tuple(numbers),
            shape=(support.shape[0], support.shape[1]),
            support=compact(support),
            entry=_entries(support, packing.dynamics),
            owner=owner,
            counted=None if counted.shape[0] == 1 and counted.all() else counted,
            columns=(None,) if all_in_order else tuple(map(compact, columns)),
            color=tuple(color),
            places=None if places is None else compact(places),
            rows=None if rows is None else compact(rows),
        )


def _immediate_rows(
    packing: Packing,
    members: NDArray[np.int64],
    columns: Sequence[NDArray[np.int64]],
    immediate: SparsityPattern,
) -> SparsityPattern:
    """[rows, groups]: where the immediate Jacobian of any column of each group may be nonzero."""
    sizes = np.diff(immediate.column_starts())
    group, column, begin = [], [], 0
    for table in columns:
        at, _ = np.nonzero(table < immediate.shape[1])
        group.append(begin + at)
        column.append(table[table < immediate.shape[1]])
        begin += len(table)
    owner, column_of = np.concatenate(group), np.concatenate(column)
    chosen = immediate.take_columns(column_of)
    return SparsityPattern.from_coo(
        chosen.rows, np.repeat(owner, sizes[column_of]), (immediate.shape[0], len(members))
    )


def _owners(support: NDArray[np.int64], reached: SparsityPattern, colors: NDArray[np.int64]) -> Any:
    """`Part.owner`."""
    num_rows, total = reached.shape[0], support.size
    at = np.full((len(support), num_rows + 1), total, np.int64)
    np.put_along_axis(at, support, np.arange(total).reshape(support.shape), axis=1)
    owner = np.full((int(colors.max()) + 1, num_rows), total, np.int64)
    group = reached.cols.astype(np.int64)
    owner[colors[group], reached.rows] = at[group, reached.rows]
    if total == num_rows and np.array_equal(owner, [np.arange(num_rows)]):
        return None
    return compact(owner)


def _entries(support: NDArray[np.int64], dynamics: SparsityPattern) -> Any:
    """`Part.entry`."""
    num_rows = dynamics.shape[0]
    place = np.full((num_rows + 1, num_rows + 1), dynamics.nnz, np.int64)
    place[dynamics.cols, dynamics.rows] = np.arange(dynamics.nnz)  # transposed
    entry = place[support[:, :, None], support[:, None, :]]
    if np.array_equal(entry.ravel(), np.arange(dynamics.nnz)):
        return None
    return compact(entry)


@dataclass(frozen=True, eq=False)
class UnfactoredChunking:
    """How a learner of an `UnfactoredCell` goes through a stretch of time at once.

    Attributes
    ----------
    steps
        Steps in a chunk.
    parts
        The groups of the influence.
    digest
        A hash of the content, equal in every process.
    host
        The chunking whose arrays lie on the host, where these are operands of a program.
    """

    steps: int
    parts: tuple[Part, ...]
    digest: str
    host: UnfactoredChunking | None = field(default=None, repr=False)

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        found: list[Any] = []
        for part in self.parts:
            for name in Part.ARRAYS:
                value = getattr(part, name)
                found += value if isinstance(value, tuple) else [value]
        return [array for array in found if array is not None]

    def with_arrays(self, arrays: Sequence[Any]) -> UnfactoredChunking:
        """The same chunking reading other arrays, as operands of a program."""
        rest = iter(arrays)

        def taken(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(taken, value))
            return None if value is None else next(rest)

        parts = [
            replace(part, **{name: taken(getattr(part, name)) for name in Part.ARRAYS})
            for part in self.parts
        ]
        return replace(self, parts=tuple(parts), host=self.host or self)


def parts_of(packing: Packing, immediate: SparsityPattern) -> tuple[Part, ...]:
    """All groups of an influence: elementwise blocks as one part, others by block."""
    together = [n for n, b in enumerate(packing.blocks) if isinstance(b, ElementwiseBlock)]
    others = [[n] for n, b in enumerate(packing.blocks) if not isinstance(b, ElementwiseBlock)]
    return tuple(
        Part.build(packing, numbers, immediate) for numbers in [together, *others] if numbers
    )
