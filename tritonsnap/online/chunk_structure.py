"""`Chunking`: how a learner goes through a stretch of time at once, found on the host.

A block of the influence is chunked in one of two ways. An elementwise block only needs the running
products of D's diagonal. Any other is followed backwards by its *adjoint*: for each group a matrix
``[lambda | Phi^T]`` [S, 1 + S], which is carried back by ``D_t[S, S]^T``: by dense products with
weights that were gathered once for all chunks, or, where D is thin, by walks. Rows of Phi^T from
which no path leads to a cycle within the group are zero a few steps before the end, and dense
products leave them out from there on: in a sparse network half of them. A walk is the
update of an influence too, with 1 + S columns in place of C, so another `DsmmPlan` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.adjoints import Held
from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_columns import Columns, Piece, held_units, joined_columns
from tritonsnap.online.chunk_groups import (
    BlockRows,
    Gathered,
    Groups,
    Merged,
    Walked,
    adjoint_plan,
    align_members,
    build_groups,
    join_blocks,
    merge_groups,
    split_by_rows,
)
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.plan.blocks import ElementwiseBlock, Regime, WalkBlock
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import Target
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing


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
class Chunking:
    """Which blocks of an influence are chunked, and what that needs to know.

    Attributes
    ----------
    steps
        Steps in a chunk.
    elementwise, groups
        The chunked blocks, those with groups of several rows in parts, walked ones first.
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
    held
        The units whose parameters' gradients are found; None if they are all.
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
    held: Held | None
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
        price = calibrated_target(packing.target.name)
        return cls.build_aligned(steps, structure, dynamics, [packing], chosen, price)

    @classmethod
    def build_aligned(
        cls,
        steps: int,
        structure: FactorStructure,
        dynamics: DynamicsStructure,
        packings: Sequence[Packing],
        chosen: Mapping[int, Regime],
        price: Target,
    ) -> Chunking:
        """The chunkings of the packings of some devices, which `align_packings` made, in one.

        Each of its own index arrays holds those of all devices, one behind the other, all equally
        long; shapes and `stepped` are those of the first. Only one device alone can walk adjoints.
        """
        cell, packing, devices = dynamics.cell, packings[0], len(packings)
        elementwise, several = [], []
        owners: list[Columns] = []
        for number in sorted(chosen):
            blocks = [one.blocks[number] for one in packings]
            if isinstance(blocks[0], ElementwiseBlock):
                columns = Columns(structure, cell, joined_columns(blocks))
                elementwise.append(Elementwise(number, *columns.pieces(gather=False)))
                owners.append(columns)
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
        groups: list[Groups] = []
        merged: list[Merged] = []
        of_groups: list[Columns] = []
        others = [number for number in several if number not in walked]
        for numbers in [(number,) for number in walked] + join_blocks(packing, others):
            by_device = [[one.blocks[n] for n in numbers] for one in packings]
            rows = BlockRows.aligned([BlockRows.joined(b, packing.dynamics) for b in by_device])
            table = np.concatenate([joined_columns(blocks) for blocks in by_device])
            rows = rows.with_columns(np.any(table < structure.plan.mask.shape[1], axis=1))
            walk: WalkBlock | None = None
            members = [np.arange(len(rows.sizes))]
            if numbers[0] in walked:
                walk = next(walks)
            else:
                members = split_by_rows(rows, dynamics.num_terms, price)
            if devices > 1:
                members = align_members(members, len(rows.sizes), devices)
                rows = rows.with_empty_group()
                table = np.pad(
                    table, ((0, 1), (0, 0)), constant_values=structure.plan.mask.shape[1]
                )
            own = [Columns(structure, cell, table[some]) for some in members]
            parts = [
                build_groups(numbers, one, cell, rows.take(some), walk, devices)
                for one, some in zip(own, members, strict=True)
            ]
            of_groups += own
            groups += [part for part, _ in parts]
            merged += merge_groups(packing, numbers, [r for _, r in parts], members, devices)
        diagonal, diagonal_place = None, None
        if elementwise:
            diagonal, diagonal_place = _diagonal(dynamics, packing)
        if diagonal is not None and devices > 1:
            diagonal = diagonal.with_arrays(np.tile(array, devices) for array in diagonal.arrays())
            diagonal_place = None if diagonal_place is None else np.tile(diagonal_place, devices)
        rest = tuple(n for n in range(len(packing.blocks)) if n not in chosen)
        held = held_units([*owners, *of_groups], cell.hidden, devices)
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
            own_row=_own_rows(structure, cell, packings, elementwise, groups, of_groups),
            held=held,
            digest=f"{digest_of(structure, packings)} {steps} {sorted(chosen.items())} "
            f"{[group.shape for group in groups]}",
        )


def digest_of(structure: FactorStructure, packings: Sequence[Packing]) -> str:
    """A hash of a structure, and of how the columns of one or more devices are packed."""
    return " ".join([structure.digest, *(packing.digest for packing in packings)])


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
    packings: Sequence[Packing],
    elementwise: Sequence[Elementwise],
    groups: Sequence[Groups],
    owners: Sequence[Columns],
) -> Any:
    """`Chunking.own_row`."""
    num_rows, devices = structure.plan.mask.shape[0], len(packings)
    if not groups and len(elementwise) == len(packings[0].blocks):
        return None
    emitted = [group.gain_row.size // devices for group in groups]
    total = num_rows + sum(emitted)
    own = np.full((devices, structure.num_targets, num_rows), total, np.int64)
    for one in elementwise:
        for own_of_device, packing in zip(own, packings, strict=True):
            block = packing.blocks[one.number]
            for piece in one.pieces:
                own_of_device[piece.target, block.mask_row] = block.mask_row
    begin = num_rows
    for group, columns, size in zip(groups, owners, emitted, strict=True):
        parts = group.gain_row.shape[1]
        place = begin + np.arange(group.gain_row.size) % size
        place = place.reshape(group.gain_row.shape)  # [G, parts, U]
        at, slot = columns.inside, columns.slot[columns.inside]
        owner = np.nonzero(at)[0]
        device = owner * devices // len(at)
        for part in range(parts):
            row = part * cell.hidden + columns.unit[at]
            own[device, columns.target[at], row] = place[owner, part, slot]
        begin += size
    if np.all(own == own[:, :1]):
        own = own[:, :1]
    return compact(own.reshape(-1, num_rows))


_PARTS = (Piece, Elementwise, Gathered, Walked, Groups, Merged, Held)


def map_arrays(function: Any, node: Any) -> Any:
    """Replace the index arrays of pieces, blocks and tuples of them, depth first."""
    if isinstance(node, tuple):
        return tuple(map_arrays(function, child) for child in node)
    if isinstance(node, _PARTS):
        changed = {f.name: map_arrays(function, getattr(node, f.name)) for f in fields(node)}
        return replace(node, **changed)
    return function(node) if hasattr(node, "dtype") else node
