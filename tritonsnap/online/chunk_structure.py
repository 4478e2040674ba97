"""`Chunking`: how a learner goes through a stretch of time at once, found on the host.

A block of the influence is chunked in one of two ways. An elementwise block only needs the running
products of D's diagonal. Any other is followed backwards by its *adjoint*: for each group a matrix
``[lambda | Phi^T]`` [S, 1 + S], which is carried back by ``D_t[S, S]^T``. That is the update of an
influence too, with 1 + S columns in place of C, so the plan of another `DsmmPlan` does it.
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
from tritonsnap.plan.cost import group_costs
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing

_GATHERED, _LEAST_ROWS = 4, 8
"""Sources are gathered for each unit where it has fewer than one in so many of them, and groups
have so many rows that this is little beside their influence."""


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
class Groups:
    """A block with groups of several rows, and how its adjoint lies in memory.

    The adjoint has R rows: ``G * S`` where the adjoint's block is dense, else those of all groups.

    Attributes
    ----------
    number
        Which block of the packing it is.
    shape
        (G, S, U, C): groups, rows and units in each at most, columns.
    pieces, order
        As in `Elementwise`.
    row : [R]
        The row of the state; one past the last at padding.
    place : [R]
        Which row of its group it is.
    unit_row : [G, parts, U] or None
        The row of the adjoint that each part of each unit is; R where the group lacks it; None if
        they are all rows, in order.
    gain_row : [G, parts, U]
        The row of the state that it is.
    adjoint_rows : [G, S] or None
        Where the rows of each group lie in the adjoint, R at padding; None if they are in order.
    influence_rows : [G, S] or None
        The same for the rows of the influence.
    packed_rows : [N] or None
        Where the rows of the influence lie among ``G * S``.
    """

    number: int
    shape: tuple[int, int, int, int]
    pieces: tuple[Piece, ...]
    order: Any
    row: Any
    place: Any
    unit_row: Any
    gain_row: Any
    adjoint_rows: Any
    influence_rows: Any
    packed_rows: Any


@dataclass(frozen=True, eq=False)
class Chunking:
    """Which blocks of an influence are chunked, and what that needs to know.

    Attributes
    ----------
    steps
        Steps in a chunk.
    elementwise, groups
        The chunked blocks.
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
        The plan of the adjoints of `groups`, one block each; None without groups.
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
                columns = Columns(structure, cell, block)
                elementwise.append(Elementwise(number, *columns.pieces(gather=False)))
            else:
                several.append(number)
        adjoint, adjoint_dynamics, groups = None, None, []
        if several:
            adjoint = adjoint_plan(packing, several, chosen)
            adjoint_dynamics = _entries_of(
                dynamics, packing, adjoint.dynamics.cols, adjoint.dynamics.rows
            )
            adjoint_packing = adjoint.packing(packing.target.name)
            groups = [
                _groups(number, structure, cell, packing.blocks[number], block)
                for number, block in zip(several, adjoint_packing.blocks, strict=True)
            ]
        diagonal, diagonal_place = None, None
        if elementwise:
            diagonal, diagonal_place = _diagonal(dynamics, packing)
        rest = tuple(n for n in range(len(packing.blocks)) if n not in chosen)
        return cls(
            steps=steps,
            elementwise=tuple(elementwise),
            groups=tuple(groups),
            stepped=_only(structure, packing, rest) if rest else None,
            stepped_numbers=rest,
            diagonal=diagonal,
            diagonal_place=diagonal_place,
            adjoint=adjoint,
            adjoint_dynamics=adjoint_dynamics,
            own_row=_own_rows(structure, cell, packing, elementwise, groups),
            digest=f"{structure.digest} {packing.digest} {steps} {sorted(chosen.items())}",
        )


def can_chunk(structure: FactorStructure, block: Block) -> bool:
    """Whether a block can be chunked: an elementwise one must feed one preactivation a group."""
    if not isinstance(block, ElementwiseBlock):
        return True
    columns = Columns(structure, None, block)
    unit = block.mask_row.astype(np.int64) % structure.num_units
    return bool(np.all((columns.unit == unit[:, None]) | ~columns.inside))


class Columns:
    """The columns of a block by map, group and unit."""

    def __init__(self, structure: FactorStructure, cell: Cell | None, block: Block) -> None:
        self.cell = cell
        self.column = block.columns.index(np)
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
        assert self.cell is not None
        num_groups, num_units = self.units.shape
        order = np.zeros(self.column.shape, np.int64)
        pieces: list[Piece] = []
        begin, first_column = 0, 0
        for linear in self.cell.maps:
            last_column = first_column + linear.num_parameters
            here = self.inside & (self.column >= first_column) & (self.column < last_column)
            first_column = last_column
            if not here.any():
                continue
            target = self.cell.targets.index(linear.target)
            first, count = self.cell.sources[linear.source]
            group, place = np.nonzero(here)
            slot, source = self.slot[group, place], self.source[group, place]
            pair = group * num_units + slot
            most = int(np.bincount(pair).max())
            if not gather or most * _GATHERED > count:
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
                begin += num_units * count
                continue
            # `pair` need not ascend: columns are sorted by unit only within a group
            by_pair = np.argsort(pair, kind="stable")
            sizes = np.bincount(pair, minlength=num_groups * num_units)
            rank = np.empty(len(pair), np.int64)
            rank[by_pair] = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            table = np.full((num_groups, num_units, most), self.num_sources, np.int64)
            table[group, slot, rank] = source
            pieces.append(Piece(target, 0, most, compact(table)))
            order[group, place] = begin + slot * most + rank
            begin += num_units * most
        in_order = order.shape[1] == begin and np.array_equal(
            order, np.broadcast_to(np.arange(begin), order.shape)
        )
        # padding takes what lies one past the last: zero
        order = np.where(self.inside, order, begin)
        return tuple(pieces), None if in_order else compact(order)


def adjoint_plan(
    packing: Packing, numbers: Sequence[int], chosen: Mapping[int, Regime] | None = None
) -> DsmmPlan:
    """The plan of ``[lambda | Phi^T]`` for the groups of some blocks, one block for each.

    `chosen` says in which regime each block is computed; without it, where it is cheapest.
    """
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
    assignment = []
    for number, end, block in zip(numbers, ends, blocks, strict=True):
        own = np.arange(end - len(block.groups), end)
        if chosen is None:
            total = {kind: costs.by_regime[kind][own].sum() for kind in (Regime.WALK, Regime.DENSE)}
            regime = min(total, key=lambda kind: total[kind])
        else:
            regime = chosen[number]
        assignment.append((regime, own))
    plan.restricted = packing.restricted
    return plan.with_packing(
        Packing.from_assignment(
            plan.groups, plan.dynamics, packing.target, costs, tuple(assignment), plan.restricted
        )
    )


def _groups(
    number: int, structure: FactorStructure, cell: Cell, block: Block, adjoint: Block
) -> Groups:
    columns = Columns(structure, cell, block)
    num_rows = structure.plan.mask.shape[0]
    supports = _supports(adjoint, num_rows)  # [G, S], padded with num_rows
    num_groups, size = supports.shape
    pieces, order = columns.pieces(gather=size >= _LEAST_ROWS)
    inside = supports < num_rows
    if isinstance(adjoint, WalkBlock):
        row = adjoint.mask_row.astype(np.int64)
        place = np.nonzero(inside)[1]
        adjoint_rows = np.full(supports.shape, len(row), np.int64)
        adjoint_rows[inside] = np.arange(len(row))
    else:
        row, place = supports.ravel(), np.tile(np.arange(size), num_groups)
        adjoint_rows = np.arange(num_groups * size).reshape(supports.shape)
    in_order = np.array_equal(adjoint_rows.ravel(), np.arange(len(row)))
    parts = np.arange(num_rows // cell.hidden)[:, None]
    gain_row = parts * cell.hidden + columns.units[:, None, :]  # [G, parts, U]
    unit_row = np.full(gain_row.shape, len(row), np.int64)
    for group in range(num_groups):
        support = supports[group, inside[group]]
        found = np.minimum(np.searchsorted(support, gain_row[group]), len(support) - 1)
        known = support[found] == gain_row[group]
        unit_row[group] = np.where(known, adjoint_rows[group, found], len(row))
    all_rows = np.array_equal(unit_row.ravel(), np.arange(len(row)))
    influence_rows, packed_rows = None, None
    if isinstance(block, WalkBlock):
        total = int(inside.sum())
        at = np.full(supports.shape, total, np.int64)
        at[inside] = np.arange(total)
        influence_rows, packed_rows = compact(at), compact(np.flatnonzero(inside))
    return Groups(
        number=number,
        shape=(num_groups, size, columns.units.shape[1], block.columns.width),
        pieces=pieces,
        order=order,
        row=compact(row),
        place=compact(place),
        unit_row=None if all_rows else compact(unit_row),
        gain_row=compact(gain_row),
        adjoint_rows=None if in_order else compact(adjoint_rows),
        influence_rows=influence_rows,
        packed_rows=packed_rows,
    )


def _supports(block: Block, num_rows: int) -> NDArray[np.int64]:
    """[G, S]: the rows of each group, padded with `num_rows`."""
    if not isinstance(block, WalkBlock):
        return np.asarray(block.mask_support, np.int64)  # type: ignore[union-attr]
    sizes = np.diff(block.mask_indptr.astype(np.int64))
    supports = np.full((len(sizes), int(sizes.max(initial=0))), num_rows, np.int64)
    supports[np.arange(supports.shape[1]) < sizes[:, None]] = block.mask_row
    return supports


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
    for group in groups:
        parts = group.gain_row.shape[1]
        columns = Columns(structure, cell, packing.blocks[group.number])
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


_PARTS = (Piece, Elementwise, Groups)


def map_arrays(function: Any, node: Any) -> Any:
    """Replace the index arrays of pieces, blocks and tuples of them, depth first."""
    if isinstance(node, tuple):
        return tuple(map_arrays(function, child) for child in node)
    if isinstance(node, _PARTS):
        changed = {f.name: map_arrays(function, getattr(node, f.name)) for f in fields(node)}
        return replace(node, **changed)
    return function(node) if hasattr(node, "dtype") else node
