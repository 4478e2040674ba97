"""Groups of several rows in a chunk: how their adjoints lie in memory, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_columns import Columns, Piece
from tritonsnap.plan.blocks import Block, DenseBlock, Regime, WalkBlock
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import Target, group_costs, partition
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity.pattern import SparsityPattern

_LEAST_ROWS = 8
"""Sources are gathered for groups of so many rows, beside whose influence that is little."""

_WIDER = 1.25
"""Blocks are seen as one if the widest has at most so many times the columns of any other."""

_MOST_PARTS = 4
"""Parts of a block whose adjoints are carried back by dense products."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """An adjoint carried back by dense products.

    Attributes
    ----------
    support : [G, S]
        The rows of each group; one past the last at padding.
    lasting, fading
        Only the first so many rows of Phi^T are not zero, so many steps before the end.
    """

    support: Any
    lasting: int
    fading: int


@dataclass(frozen=True, eq=False)
class Walked:
    """An adjoint carried back by walks: R rows, those of one group behind those of another.

    Attributes
    ----------
    row : [R]
        The row of the state.
    place : [R]
        Which row of its group it is.
    rows : [G, S] or None
        Where the rows of each group lie, R at padding; None if they are in order.
    """

    row: Any
    place: Any
    rows: Any


@dataclass(frozen=True, eq=False)
class Groups:
    """Some groups of a block, with several rows each, and how their adjoint lies in memory.

    Attributes
    ----------
    numbers
        Which blocks of the packing they are from.
    shape
        (G, S, U, C): groups, rows and units in each at most, columns.
    pieces
        The columns, by maps: so they lie in memory during a sequence.
    order : [G, C] or None
        Where the block's columns lie among those of all pieces; None if they are in order.
    inverse : [G, L] or None
        Where the columns of all pieces lie among the block's, C if nowhere.
    way
        How the adjoint is carried back.
    unit_row : [G, parts, U] or None
        The row of the adjoint that each part of each unit is; one past the last where there is
        none; None if they are the first of each group.
    gain_row : [G, parts, U]
        The row of the state that it is.
    influence_rows : [G, S] or None
        Where the rows of each group lie in the blocks, one behind the other, and one past the last
        at padding; None if they are all, in order.
    """

    numbers: tuple[int, ...]
    shape: tuple[int, int, int, int]
    pieces: tuple[Piece, ...]
    order: Any
    inverse: Any
    way: Gathered | Walked
    unit_row: Any
    gain_row: Any
    influence_rows: Any


@dataclass(frozen=True, eq=False)
class Merged:
    """How a block is put together of `Groups`.

    Attributes
    ----------
    number
        Which block of the packing it is.
    rows : [N] or None
        Where its rows lie among those of all `Groups` of the same blocks, one past the last at
        padding; None if it is all of them, in order.
    groups : [G] or None
        The same for its groups.
    """

    number: int
    rows: Any
    groups: Any


def adjoint_plan(packing: Packing, numbers: Sequence[int]) -> DsmmPlan:
    """The plan of ``[lambda | Phi^T]`` for the groups of some blocks, one walk for each."""
    blocks = [packing.blocks[number] for number in numbers]
    members = np.concatenate([block.groups for block in blocks])
    mask = packing.groups.mask
    kinds = packing.groups.mask_kind[members]
    sizes = np.diff(mask.support_indptr)[kinds]
    supports = mask.kinds_as_columns(kinds)
    columns = supports.take_columns(np.repeat(np.arange(len(kinds)), 1 + sizes))
    plan = DsmmPlan(columns, columns, packing.dynamics.transpose())
    costs = group_costs(plan.groups, plan.dynamics, calibrated_target(packing.target.name))
    ends = np.cumsum([len(block.groups) for block in blocks])
    assignment = tuple(
        (Regime.WALK, np.arange(end - len(block.groups), end))
        for block, end in zip(blocks, ends, strict=True)
    )
    plan.restricted = packing.restricted
    return plan.with_packing(
        Packing.from_assignment(
            plan.groups, plan.dynamics, packing.target, costs, assignment, plan.restricted
        )
    )


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block by groups.

    Attributes
    ----------
    supports : int64 [G, S]
        The rows of the state, ascending; at padding one past the last.
    places : int64 [G, S]
        Where they lie in the block; at padding `total`.
    sizes : int64 [G]
        How many they are.
    lasting : bool [G, S]
        The rows from which a path within the group leads to a cycle: those of Phi^T that are not
        zero however far from the end.
    fading : int64 [G]
        How many steps from the end the others are zero.
    num_rows
        Rows of the state.
    total
        Rows of the block, with its padding.
    """

    supports: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    lasting: NDArray[np.bool_]
    fading: NDArray[np.int64]
    num_rows: int
    total: int

    @classmethod
    def of(cls, block: Block, dynamics: SparsityPattern) -> BlockRows:
        """Read them from a walk or a dense block."""
        num_rows = dynamics.shape[0]
        if not isinstance(block, WalkBlock):
            assert isinstance(block, DenseBlock)
            supports = np.asarray(block.mask_support, np.int64)
            inside = supports < num_rows
            places = np.where(inside, np.arange(supports.size).reshape(supports.shape), inside.size)
            lasting = _lasting_rows(supports, dynamics)
            return cls(supports, places, inside.sum(axis=1), *lasting, num_rows, supports.size)
        total = len(block.mask_row)
        sizes = np.diff(block.mask_indptr.astype(np.int64))
        inside = np.arange(int(sizes.max(initial=0))) < sizes[:, None]
        supports = np.full(inside.shape, num_rows, np.int64)
        supports[inside] = block.mask_row
        places = np.full(inside.shape, total, np.int64)
        places[inside] = np.arange(total)
        return cls(supports, places, sizes, *_lasting_rows(supports, dynamics), num_rows, total)

    @classmethod
    def joined(cls, blocks: Sequence[Block], dynamics: SparsityPattern) -> BlockRows:
        """Those of several blocks, one behind the other."""
        parts = [cls.of(block, dynamics) for block in blocks]
        total, begin = sum(part.total for part in parts), 0
        for number, part in enumerate(parts):
            here = np.where(part.places < part.total, part.places + begin, total)
            parts[number] = replace(part, places=here, total=total)
            begin += part.total
        return cls.aligned(parts)

    @classmethod
    def aligned(cls, parts: Sequence[BlockRows]) -> BlockRows:
        """Those of several parts, one behind the other, whose places stay as they are."""
        size, total = max(part.supports.shape[1] for part in parts), parts[0].total

        def join(name: str, padding: int) -> NDArray[Any]:
            tables = [getattr(part, name) for part in parts]
            return np.concatenate(
                [
                    np.pad(table, ((0, 0), (0, size - table.shape[1])), constant_values=padding)
                    for table in tables
                ]
            )

        return cls(
            join("supports", parts[0].num_rows),
            join("places", total),
            np.concatenate([part.sizes for part in parts]),
            join("lasting", False),
            np.concatenate([part.fading for part in parts]),
            parts[0].num_rows,
            total,
        )

    def with_columns(self, groups: NDArray[np.bool_]) -> BlockRows:
        """Of groups that have no columns no rows either."""
        if groups.all():
            return self
        here = groups[:, None]
        return replace(
            self,
            supports=np.where(here, self.supports, self.num_rows),
            places=np.where(here, self.places, self.total),
            sizes=np.where(groups, self.sizes, 0),
            lasting=self.lasting & here,
            fading=np.where(groups, self.fading, 0),
        )

    def with_empty_group(self) -> BlockRows:
        """One more group, without rows."""
        more = self.take(np.array([0])).with_columns(np.array([False]))
        return BlockRows.aligned([self, more])

    def take(self, members: NDArray[np.int64]) -> BlockRows:
        """Those of some groups."""
        size = int(self.sizes[members].max(initial=0))
        return BlockRows(
            self.supports[members, :size],
            self.places[members, :size],
            self.sizes[members],
            self.lasting[members, :size],
            self.fading[members],
            self.num_rows,
            self.total,
        )

    def in_order(self, order: NDArray[np.int64]) -> BlockRows:
        """The rows of each group in another order [G, S]."""
        return replace(
            self,
            supports=np.take_along_axis(self.supports, order, axis=1),
            places=np.take_along_axis(self.places, order, axis=1),
            lasting=np.take_along_axis(self.lasting, order, axis=1),
        )


def _lasting_rows(
    supports: NDArray[np.int64], dynamics: SparsityPattern
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """`BlockRows.lasting` and `BlockRows.fading`."""
    num_rows = dynamics.shape[0]
    reads = np.zeros((num_rows + 1, num_rows + 1), bool)
    reads[dynamics.cols, dynamics.rows] = True
    kinds, kind = np.unique(supports, axis=0, return_inverse=True)
    lasting = kinds < num_rows
    fading = np.zeros(len(kinds), np.int64)
    for support, last, number in zip(kinds, lasting, range(len(kinds)), strict=True):
        readers = reads[np.ix_(support, support)]
        while not np.array_equal(left := last & readers[:, last].any(axis=1), last):
            last[:] = left
            fading[number] += 1
    return lasting[kind], fading[kind]


def split_by_rows(rows: BlockRows, terms: int, price: Target) -> list[NDArray[np.int64]]:
    """Groups whose adjoints are carried back together: few parts, with little padding."""
    lasting = rows.lasting.sum(axis=1)

    def cost(items: NDArray[np.int64]) -> float:
        size, last = int(rows.sizes[items].max()), int(lasting[items].max())
        return len(items) * gathered_step(size, last, terms, price)

    keys = rows.sizes * (lasting.max(initial=0) + 1) + lasting
    return partition(keys, cost, _MOST_PARTS, price.block)


def gathered_step(size: int, lasting: int, terms: int, price: Target) -> float:
    """Nanoseconds that dense products take to carry the adjoint of `size` rows one step back."""
    made = 0.0 if terms == 1 else terms * price.element * lasting**2  # D[S, S]
    products = price.multiply_add * size * (lasting**2 + terms * size)
    return made + products + 2 * price.element * size * (1 + lasting)


def build_groups(
    numbers: tuple[int, ...],
    columns: Columns,
    cell: Cell,
    rows: BlockRows,
    walk: WalkBlock | None,
    devices: int,
) -> tuple[Groups, BlockRows]:
    """Groups of a block whose adjoint is walked, or else gathered; and their rows in its order.

    They are those of several devices one behind the other, as many on each.
    """
    num_rows = cell.rows
    num_groups, num_units = columns.units.shape
    parts = np.arange(len(cell.parts))[:, None]
    gain_row = parts * cell.hidden + columns.units[:, None, :]  # [G, parts, U]
    first = walk is None and np.all(columns.num_units == num_units)
    if first:
        own = np.zeros((num_groups, cell.hidden + 1), bool)
        own[np.arange(num_groups)[:, None], columns.units] = True
        unit = np.where(rows.supports < num_rows, rows.supports % cell.hidden, cell.hidden)
        mine = np.take_along_axis(own, unit, axis=1)
        rows = replace(rows, lasting=rows.lasting | mine)
        rows = rows.in_order(np.lexsort((~rows.lasting, ~mine)))
    inside = rows.supports < num_rows
    total = rows.supports.size // devices
    place = (np.arange(rows.supports.size) % max(total, 1)).reshape(rows.supports.shape)
    lasting = int(rows.lasting.sum(axis=1).max()) if first else rows.supports.shape[1]
    way: Gathered | Walked = Gathered(compact(rows.supports), lasting, int(rows.fading.max()))
    if walk is not None:
        total = int(inside.sum())
        place = np.full(rows.supports.shape, total, np.int64)
        place[inside] = np.arange(total)
        way = Walked(
            compact(rows.supports[inside]),
            compact(np.nonzero(inside)[1]),
            None if inside.all() else compact(place),
        )
    unit_row = None
    if not first:
        unit_row = np.full(gain_row.shape, total, np.int64)
        for group, size in enumerate(rows.sizes):
            support = rows.supports[group, :size]
            found = np.minimum(np.searchsorted(support, gain_row[group]), size - 1)
            known = support[found] == gain_row[group]
            unit_row[group] = np.where(known, place[group, found], unit_row[group])
    pieces, order = columns.pieces(gather=rows.supports.shape[1] >= _LEAST_ROWS)
    in_order = _in_order(rows.places.reshape(devices, -1), rows.total)
    groups = Groups(
        numbers=numbers,
        shape=(num_groups // devices, rows.supports.shape[1], num_units, columns.column.shape[1]),
        pieces=pieces,
        order=order,
        inverse=None if order is None else _inverse(order, pieces, num_units),
        way=way,
        unit_row=None if unit_row is None else compact(unit_row),
        gain_row=compact(gain_row),
        influence_rows=None if in_order else compact(rows.places),
    )
    return groups, rows


def _inverse(order: Any, pieces: Sequence[Piece], num_units: int) -> Any:
    """`Groups.inverse`."""
    (num_groups, width), length = order.shape, num_units * sum(piece.count for piece in pieces)
    inverse = np.full((num_groups, length + 1), width, np.int64)
    np.put_along_axis(inverse, order.astype(np.int64), np.arange(width)[None, :], axis=1)
    return compact(inverse[:, :length])


def join_blocks(packing: Packing, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Blocks that may be seen as one, since they are about equally wide."""
    joined: list[tuple[int, ...]] = []
    for number in sorted(numbers, key=lambda n: -packing.blocks[n].columns.width):
        width = packing.blocks[number].columns.width
        if joined and packing.blocks[joined[-1][0]].columns.width <= _WIDER * width:
            joined[-1] = (*joined[-1], number)
        else:
            joined.append((number,))
    return joined


def align_members(
    members: Sequence[NDArray[np.int64]], num_groups: int, devices: int
) -> list[NDArray[np.int64]]:
    """Parts with equally many groups of each device, `num_groups` where there are no more."""
    found = []
    for some in members:
        by_device = [some[some * devices // num_groups == device] for device in range(devices)]
        most = max(map(len, by_device))
        padded = [
            np.pad(own, (0, most - len(own)), constant_values=num_groups) for own in by_device
        ]
        found.append(np.concatenate(padded))
    return found


def merge_groups(
    packing: Packing,
    numbers: Sequence[int],
    rows: Sequence[BlockRows],
    members: Sequence[NDArray[np.int64]],
    devices: int,
) -> list[Merged]:
    """How blocks are put together of parts with the groups `members` of all of them."""
    places = np.concatenate([part.places.reshape(devices, -1) for part in rows], axis=1)
    total, length = rows[0].total, places.shape[1]
    at = np.full((devices, total + 1), length, np.int64)
    np.put_along_axis(at, places, np.arange(length)[None, :], axis=1)
    together = np.concatenate([some.reshape(devices, -1) for some in members], axis=1)
    order = np.argsort(together, axis=1, kind="stable")
    found, row, group = [], 0, 0
    for number in numbers:
        block = packing.blocks[number]
        num_rows, num_groups = int(np.prod(block.mask_shape[:-1])), block.columns.num_groups
        found.append(
            Merged(
                number,
                _unless_in_order(at[:, row : row + num_rows], length),
                _unless_in_order(order[:, group : group + num_groups], order.shape[1]),
            )
        )
        row, group = row + num_rows, group + num_groups
    return found


def _in_order(index: NDArray[np.int64], length: int) -> bool:
    """Whether every row is 0, 1, 2, ... up to `length`."""
    return index.shape[1] == length and bool(np.all(index == np.arange(length)))


def _unless_in_order(index: NDArray[np.int64], length: int) -> Any:
    """One row behind the other; None if each is in order."""
    return None if _in_order(index, length) else compact(index.ravel())
