"""`Chunking`: how a learner goes through a stretch of time at once, found on the host.

A block of the influence is chunked in one of two ways. An elementwise block only needs the running
products of D's diagonal. Any other is followed backwards by its *adjoint*: for each group a matrix
``[lambda | Phi^T]`` [S, 1 + S], which is carried back by ``D_t[S, S]^T``: by dense products with
weights that were gathered once for all chunks, or, where D is thin, by walks. The latter is the
update of an influence too, with 1 + S columns in place of C, so another `DsmmPlan` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.cell import Cell
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.plan.blocks import Block, ElementwiseBlock, Regime, WalkBlock
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import Target, group_costs, partition
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing

_GATHERED, _LEAST_ROWS = 4, 8
"""Sources are gathered for each unit where it has fewer than one in so many of them, and groups
have so many rows that this is little beside their influence."""

_WIDER = 1.25
"""Blocks are seen as one if the widest has at most so many times the columns of any other."""

_MOST_PARTS = 3
"""Parts of a block whose adjoints are carried back by dense products."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Columns of a block that belong to one map: the same sources for each unit.

    Attributes
    ----------
    target
        The preactivation that they feed.
    first, count
        The sources that they multiply.
    source : [G, U, count] or None
        The sources where each unit has its own; one past the last at padding.
    """

    target: int
    first: int
    count: int
    source: Any


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An elementwise block whose columns in each group feed the unit of the group's row.

    Attributes
    ----------
    number
        Which block of the packing it is.
    pieces
        Its columns, by maps.
    order : [G, C] or None
        Where the block's columns lie among those of all pieces; None if they are in order.
    """

    number: int
    pieces: tuple[Piece, ...]
    order: Any


@dataclass(frozen=True, eq=False)
class Gathered:
    """An adjoint carried back by dense products.

    Attributes
    ----------
    support : [G, S]
        The rows of each group, those of its own units first; one past the last at padding.
    """

    support: Any


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
    pieces, order
        As in `Elementwise`.
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


@dataclass(frozen=True, eq=False)
class Chunking:
    """Which blocks of an influence are chunked, and what that needs to know.

    Attributes
    ----------
    steps
        Steps in a chunk.
    elementwise, groups
        The chunked blocks, those with groups of several rows in parts.
    merged
        How the latter are put together again.
    stepped
        The other blocks, as a structure of their own with a plan of their own; None if there are
        none.
    stepped_numbers
        Which blocks of the packing they are.
    diagonal
        The dynamics of a row on itself, for elementwise blocks.
    diagonal_place : [rows] or None
        Where each row's entry is in `diagonal`, one past the last if it has none; None if in order.
    adjoint
        The plan of the adjoints that are walked, one block each; None if there are none.
    adjoint_dynamics
        The transposed dynamics, in the order of `adjoint`.
    own_row : [1 or targets, rows] or None
        Where the adjoint of each row is, as the group of its own unit sees it, among the rows of
        the state (for elementwise blocks) and the emitted rows of all `groups`, one past the last
        if it is stepped; None where all is elementwise.
    digest
        A hash of the content, equal in every process.
    host
        The chunking whose arrays lie on the host, where these are operands of a program.
    """

    steps: int
    elementwise: tuple[Elementwise, ...]
    groups: tuple[Groups, ...]
    merged: tuple[Merged, ...]
    stepped: FactorStructure | None
    stepped_numbers: tuple[int, ...]
    diagonal: DynamicsStructure | None
    diagonal_place: Any
    adjoint: DsmmPlan | None
    adjoint_dynamics: DynamicsStructure | None
    own_row: Any
    digest: str
    host: Chunking | None = field(default=None, repr=False)

    @classmethod
    def build(
        cls,
        steps: int,
        structure: FactorStructure,
        dynamics: DynamicsStructure,
        packing: Packing,
        chosen: Mapping[int, Regime],
    ) -> Chunking:
        """Find out what chunks of the blocks `chosen` need; it says how each adjoint is stepped."""
        cell = dynamics.cell
        elementwise, several = [], []
        for number in sorted(chosen):
            block = packing.blocks[number]
            if isinstance(block, ElementwiseBlock):
                columns = Columns(structure, cell, block.columns.index(np))
                elementwise.append(Elementwise(number, *columns.pieces(gather=False)))
            else:
                several.append(number)
        walked = [number for number in several if chosen[number] == Regime.WALK]
        adjoint, adjoint_dynamics, walks = None, None, iter(())
        if walked:
            adjoint = adjoint_plan(packing, walked)
            adjoint_dynamics = _entries_of(
                dynamics, packing, adjoint.dynamics.cols, adjoint.dynamics.rows
            )
            walks = iter(adjoint.packing(packing.target.name).blocks)
        price = calibrated_target(packing.target.name)
        groups: list[Groups] = []
        merged: list[Merged] = []
        owners: list[Columns] = []
        others = [number for number in several if number not in walked]
        for numbers in [(number,) for number in walked] + _joined(packing, others):
            rows = BlockRows.joined([packing.blocks[n] for n in numbers], cell.rows)
            columns = _joined_columns([packing.blocks[n] for n in numbers])
            walk, members = None, [np.arange(len(rows.sizes))]
            if numbers[0] in walked:
                walk = next(walks)
            else:
                members = split_by_rows(rows.sizes, dynamics.num_terms, price)
            own = [Columns(structure, cell, columns[some]) for some in members]
            parts = [
                _groups(numbers, one, cell, rows.take(some), walk)
                for one, some in zip(own, members, strict=True)
            ]
            owners += own
            groups += [part for part, _ in parts]
            merged += _merged(packing, numbers, [part for _, part in parts], members)
        diagonal, diagonal_place = None, None
        if elementwise:
            diagonal, diagonal_place = _diagonal(dynamics, packing)
        rest = tuple(n for n in range(len(packing.blocks)) if n not in chosen)
        return cls(
            steps=steps,
            elementwise=tuple(elementwise),
            groups=tuple(groups),
            merged=tuple(merged),
            stepped=_only(structure, packing, rest) if rest else None,
            stepped_numbers=rest,
            diagonal=diagonal,
            diagonal_place=diagonal_place,
            adjoint=adjoint,
            adjoint_dynamics=adjoint_dynamics,
            own_row=_own_rows(structure, cell, packing, elementwise, groups, owners),
            digest=f"{structure.digest} {packing.digest} {steps} {sorted(chosen.items())} "
            f"{[group.shape for group in groups]}",
        )


def can_chunk(structure: FactorStructure, block: Block) -> bool:
    """Whether a block can be chunked: an elementwise one must feed one preactivation a group."""
    if not isinstance(block, ElementwiseBlock):
        return True
    columns = Columns(structure, None, block.columns.index(np))
    unit = block.mask_row.astype(np.int64) % structure.num_units
    return bool(np.all((columns.unit == unit[:, None]) | ~columns.inside))


class Columns:
    """The columns [G, C] of some groups by map, group and unit."""

    def __init__(
        self,
        structure: FactorStructure,
        cell: Cell | None,
        column: NDArray[np.int64],
    ) -> None:
        self.cell = cell
        self.column = column
        self.inside = self.column < structure.plan.mask.shape[1]
        safe = np.where(self.inside, self.column, self.column[:, :1])
        self.unit = structure.unit[safe].astype(np.int64)
        self.target = structure.target[safe].astype(np.int64)
        self.source = structure.source[safe].astype(np.int64)
        self.num_sources = structure.num_sources
        # units [G, U] of each group, ascending, padded by the first
        units = [
            np.unique(unit[inside]) for unit, inside in zip(self.unit, self.inside, strict=True)
        ]
        self.num_units = np.array([len(u) for u in units])
        self.units = np.stack(
            [np.pad(u, (0, max(map(len, units)) - len(u)), constant_values=u[0]) for u in units]
        )
        self.slot = np.stack(
            [np.searchsorted(known, unit) for known, unit in zip(units, self.unit, strict=True)]
        )

    def pieces(self, gather: bool) -> tuple[tuple[Piece, ...], Any]:
        """The pieces, and where the columns lie among those of all pieces.

        `gather` allows pieces whose units have sources of their own.
        """
        num_groups, num_units = self.units.shape
        order = np.zeros(self.column.shape, np.int64)
        empty: list[NDArray[np.bool_]] = []  # which columns of each piece hold zeros
        pieces: list[Piece] = []
        begin = 0
        runs = self._runs(gather)
        for target, first, count, here, gathered in runs:
            group, place = np.nonzero(here)
            slot, source = self.slot[group, place], self.source[group, place]
            if not gathered:
                last = pieces[-1] if pieces else None
                if (
                    last is not None
                    and num_units == 1
                    and last.source is None
                    and (last.target, last.first + last.count) == (target, first)
                ):  # one product serves both
                    pieces[-1] = replace(last, count=last.count + count)
                else:
                    pieces.append(Piece(target, first, count, None))
                order[group, place] = begin + slot * count + source - first
                empty.append(np.zeros((num_groups, num_units * count), bool))
                begin += num_units * count
                continue
            pair = group * num_units + slot
            # `pair` need not ascend: columns are sorted by unit only within a group
            by_pair = np.argsort(pair, kind="stable")
            sizes = np.bincount(pair, minlength=num_groups * num_units)
            most = int(sizes.max())
            if num_units == 1 and here is runs[-1][3]:  # as wide as the block
                most = max(most, order.shape[1] - begin)
            rank = np.empty(len(pair), np.int64)
            rank[by_pair] = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            table = np.full((num_groups, num_units, most), self.num_sources, np.int64)
            table[group, slot, rank] = source
            pieces.append(Piece(target, 0, most, compact(table)))
            order[group, place] = begin + slot * most + rank
            empty.append((table == self.num_sources).reshape(num_groups, num_units * most))
            begin += num_units * most
        if order.shape[1] == begin and np.all(
            np.where(self.inside, order == np.arange(begin), np.concatenate(empty, axis=1))
        ):
            return tuple(pieces), None
        # padding takes what lies one past the last: zero
        return tuple(pieces), compact(np.where(self.inside, order, begin))

    def _runs(self, gather: bool) -> list[tuple[int, int, int, NDArray[np.bool_], bool]]:
        """Maps, or several of one target together: target, sources, columns, whether to gather."""
        assert self.cell is not None
        num_units = self.units.shape[1]
        runs: list[tuple[int, int, int, NDArray[np.bool_], bool]] = []
        first_column = 0
        for linear in self.cell.maps:
            last_column = first_column + linear.num_parameters
            here = self.inside & (self.column >= first_column) & (self.column < last_column)
            first_column = last_column
            if not here.any():
                continue
            target = self.cell.targets.index(linear.target)
            first, count = self.cell.sources[linear.source]
            group, place = np.nonzero(here)
            most = int(np.bincount(group * num_units + self.slot[group, place]).max())
            joins = bool(runs) and runs[-1][0] == target and runs[-1][4]
            if joins and count == 1:
                runs[-1] = (target, 0, 0, runs[-1][3] | here, True)
            else:
                runs.append((target, first, count, here, gather and most * _GATHERED <= count))
        return runs


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
    total
        Rows of the block, with its padding.
    """

    supports: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, block: Block, num_rows: int) -> BlockRows:
        """Read them from a walk or a dense block."""
        if not isinstance(block, WalkBlock):
            supports = np.asarray(block.mask_support, np.int64)  # type: ignore[union-attr]
            inside = supports < num_rows
            places = np.where(inside, np.arange(supports.size).reshape(supports.shape), inside.size)
            return cls(supports, places, inside.sum(axis=1), supports.size)
        total = len(block.mask_row)
        sizes = np.diff(block.mask_indptr.astype(np.int64))
        inside = np.arange(int(sizes.max(initial=0))) < sizes[:, None]
        supports = np.full(inside.shape, num_rows, np.int64)
        supports[inside] = block.mask_row
        places = np.full(inside.shape, total, np.int64)
        places[inside] = np.arange(total)
        return cls(supports, places, sizes, total)

    @classmethod
    def joined(cls, blocks: Sequence[Block], num_rows: int) -> BlockRows:
        """Those of several blocks, one behind the other."""
        parts = [cls.of(block, num_rows) for block in blocks]
        total, begin = sum(part.total for part in parts), 0
        size = max(part.supports.shape[1] for part in parts)
        supports, places = [], []
        for part in parts:
            width = ((0, 0), (0, size - part.supports.shape[1]))
            here = np.where(part.places < part.total, part.places + begin, total)
            supports.append(np.pad(part.supports, width, constant_values=num_rows))
            places.append(np.pad(here, width, constant_values=total))
            begin += part.total
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(np.concatenate(supports), np.concatenate(places), sizes, total)

    def take(self, members: NDArray[np.int64]) -> BlockRows:
        """Those of some groups."""
        size = int(self.sizes[members].max(initial=0))
        supports, places = (table[members, :size] for table in (self.supports, self.places))
        return BlockRows(supports, places, self.sizes[members], self.total)


def split_by_rows(sizes: NDArray[np.int64], terms: int, price: Target) -> list[NDArray[np.int64]]:
    """Groups whose adjoints are carried back together: few parts, with little padding."""

    def cost(items: NDArray[np.int64]) -> float:
        return len(items) * gathered_step(int(sizes[items].max()), terms, price)

    return partition(sizes, cost, _MOST_PARTS, price.block)


def gathered_step(size: int, terms: int, price: Target) -> float:
    """Nanoseconds that dense products take to carry the adjoint of `size` rows one step back."""
    made = 0.0 if terms == 1 else terms * price.element * size**2  # D[S, S]
    products = price.multiply_add * size**2 * (1 + size)
    return made + products + 2 * price.element * size * (1 + size)


def _groups(
    numbers: tuple[int, ...],
    columns: Columns,
    cell: Cell,
    rows: BlockRows,
    walk: WalkBlock | None,
) -> tuple[Groups, BlockRows]:
    """Groups of a block whose adjoint is walked, or else gathered; and their rows in its order."""
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
        order = np.argsort(~mine, axis=1, kind="stable")
        rows = replace(
            rows,
            supports=np.take_along_axis(rows.supports, order, axis=1),
            places=np.take_along_axis(rows.places, order, axis=1),
        )
    inside = rows.supports < num_rows
    place = np.arange(rows.supports.size).reshape(rows.supports.shape)
    total = rows.supports.size
    way: Gathered | Walked = Gathered(compact(rows.supports))
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
    in_order = np.array_equal(rows.places.ravel(), np.arange(rows.total))
    groups = Groups(
        numbers=numbers,
        shape=(*rows.supports.shape, num_units, columns.column.shape[1]),
        pieces=pieces,
        order=order,
        way=way,
        unit_row=None if unit_row is None else compact(unit_row),
        gain_row=compact(gain_row),
        influence_rows=None if in_order else compact(rows.places),
    )
    return groups, rows


def _joined(packing: Packing, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Blocks that may be seen as one, since they are about equally wide."""
    joined: list[tuple[int, ...]] = []
    for number in sorted(numbers, key=lambda n: -packing.blocks[n].columns.width):
        width = packing.blocks[number].columns.width
        if joined and packing.blocks[joined[-1][0]].columns.width <= _WIDER * width:
            joined[-1] = (*joined[-1], number)
        else:
            joined.append((number,))
    return joined


def _joined_columns(blocks: Sequence[Block]) -> NDArray[np.int64]:
    """[G, C]: the columns of the groups of several blocks, the first of which is the widest."""
    tables = [np.asarray(block.columns.index(np), np.int64) for block in blocks]
    padding, width = blocks[0].columns.num_columns, tables[0].shape[1]
    return np.concatenate(
        [
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=padding)
            for table in tables
        ]
    )


def _merged(
    packing: Packing,
    numbers: Sequence[int],
    rows: Sequence[BlockRows],
    members: Sequence[NDArray[np.int64]],
) -> list[Merged]:
    """How blocks are put together of parts with the groups `members` of all of them."""
    places = np.concatenate([part.places.ravel() for part in rows])
    total = rows[0].total
    at = np.full(total + 1, len(places), np.int64)
    at[places] = np.arange(len(places))
    order = np.argsort(np.concatenate(members), kind="stable")
    found, row, group = [], 0, 0
    for number in numbers:
        block = packing.blocks[number]
        num_rows, num_groups = int(np.prod(block.mask_shape[:-1])), block.columns.num_groups
        found.append(
            Merged(
                number,
                _unless_in_order(at[row : row + num_rows], len(places)),
                _unless_in_order(order[group : group + num_groups], len(order)),
            )
        )
        row, group = row + num_rows, group + num_groups
    return found


def _unless_in_order(index: NDArray[np.int64], length: int) -> Any:
    """None if the index is 0, 1, 2, ... up to `length`."""
    in_order = len(index) == length and np.array_equal(index, np.arange(length))
    return None if in_order else compact(index)


def _entries_of(
    dynamics: DynamicsStructure,
    packing: Packing,
    rows: NDArray[np.integer],
    cols: NDArray[np.integer],
) -> DynamicsStructure:
    """The structure of some entries of the dynamics."""
    num_rows = packing.dynamics.shape[0]
    keys = packing.dynamics.cols.astype(np.int64) * num_rows + packing.dynamics.rows
    place = np.searchsorted(keys, cols.astype(np.int64) * num_rows + rows)
    return dynamics.take(place, packing.dynamics.rows)


def _diagonal(dynamics: DynamicsStructure, packing: Packing) -> tuple[DynamicsStructure, Any]:
    """The dynamics of each row on itself, and where each row's entry is."""
    pattern = packing.dynamics
    own = pattern.rows[pattern.rows == pattern.cols]
    place = np.full(pattern.shape[0], len(own), np.int64)
    place[own] = np.arange(len(own))
    in_order = np.array_equal(own, np.arange(pattern.shape[0]))
    return _entries_of(dynamics, packing, own, own), None if in_order else compact(place)


def _only(structure: FactorStructure, packing: Packing, numbers: Sequence[int]) -> FactorStructure:
    """The structure over a plan that has only some of the blocks."""
    blocks = tuple(packing.blocks[number] for number in numbers)
    part = replace(packing, blocks=blocks, _flat={}, calls={})
    part.__dict__.pop("digest", None)
    plan = structure.plan.with_packing(part)
    return replace(structure, plan=plan, _layouts={})


def _own_rows(
    structure: FactorStructure,
    cell: Cell,
    packing: Packing,
    elementwise: Sequence[Elementwise],
    groups: Sequence[Groups],
    owners: Sequence[Columns],
) -> Any:
    """`Chunking.own_row`."""
    num_rows = structure.plan.mask.shape[0]
    num_targets = structure.num_targets
    if not groups and len(elementwise) == len(packing.blocks):
        return None
    total = num_rows + sum(int(np.prod(group.gain_row.shape)) for group in groups)
    own = np.full((num_targets, num_rows), total, np.int64)
    for one in elementwise:
        block = packing.blocks[one.number]
        for piece in one.pieces:
            own[piece.target, block.mask_row] = block.mask_row
    begin = num_rows
    for group, columns in zip(groups, owners, strict=True):
        parts = group.gain_row.shape[1]
        emitted = begin + np.arange(int(np.prod(group.gain_row.shape)))
        emitted = emitted.reshape(group.gain_row.shape)  # [G, parts, U]
        owner = np.broadcast_to(np.arange(len(columns.unit))[:, None], columns.unit.shape)
        at = columns.inside
        for part in range(parts):
            row = part * cell.hidden + columns.unit[at]
            own[columns.target[at], row] = emitted[owner[at], part, columns.slot[at]]
        begin += emitted.size
    if np.all(own == own[:1]):
        own = own[:1]
    return compact(own)


_PARTS = (Piece, Elementwise, Gathered, Walked, Groups, Merged)


def map_arrays(function: Any, node: Any) -> Any:
    """Replace the index arrays of pieces, blocks and tuples of them, depth first."""
    if isinstance(node, tuple):
        return tuple(map_arrays(function, child) for child in node)
    if isinstance(node, _PARTS):
        changed = {f.name: map_arrays(function, getattr(node, f.name)) for f in fields(node)}
        return replace(node, **changed)
    return function(node) if hasattr(node, "dtype") else node
