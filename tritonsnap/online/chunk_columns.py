"""The columns of groups of an influence, as products of sources and gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.adjoints import Held
from tritonsnap.online.cell import Cell
from tritonsnap.plan.blocks import Block, ElementwiseBlock
from tritonsnap.plan.compact import compact
from tritonsnap.plan.factors import FactorStructure

_GATHERED = 2
"""Sources are gathered for each unit where it has fewer than one in so many of them."""


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
        last = structure.plan.mask.shape[1] - 1
        safe = np.where(self.inside, self.column, np.minimum(self.column[:, :1], last))
        self.unit = structure.unit[safe].astype(np.int64)
        self.target = structure.target[safe].astype(np.int64)
        self.source = structure.source[safe].astype(np.int64)
        self.number = safe if structure.numbers is None else structure.numbers[safe]
        self.num_sources = structure.num_sources
        # units [G, U] of each group, ascending, padded by the first; any one if it has no columns
        units = [
            np.unique(unit[inside] if inside.any() else unit[:1])
            for unit, inside in zip(self.unit, self.inside, strict=True)
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
        order: NDArray[np.int64] = np.zeros_like(self.column)
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
                most = max(most, self.column.shape[1] - begin)
            rank = np.empty(len(pair), np.int64)
            rank[by_pair] = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            table = np.full((num_groups, num_units, most), self.num_sources, np.int64)
            table[group, slot, rank] = source
            pieces.append(Piece(target, 0, most, compact(table)))
            order[group, place] = begin + slot * most + rank
            empty.append((table == self.num_sources).reshape(num_groups, num_units * most))
            begin += num_units * most
        if self.column.shape[1] == begin and np.all(
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
            here = self.inside & (self.number >= first_column) & (self.number < last_column)
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


def held_units(owners: Sequence[Columns], hidden: int, devices: int) -> Held | None:
    """The units that columns of each device feed, padded by the first; None if all on any."""
    held = np.zeros((devices, hidden), bool)
    for columns in owners:
        device = np.arange(len(columns.inside)) * devices // len(columns.inside)
        group = np.nonzero(columns.inside)[0]
        held[device[group], columns.unit[columns.inside]] = True
    most = int(held.sum(axis=1).max())
    if most == hidden:
        return None
    order = np.argsort(~held, axis=1, kind="stable")
    slot = np.where(held, np.cumsum(held, axis=1) - 1, most)
    return Held(compact(order[:, :most].ravel()), compact(slot.ravel()))


def joined_columns(blocks: Sequence[Block]) -> NDArray[np.int64]:
    """[G, C]: the columns of the groups of several blocks, the first of which is the widest."""
    tables = [np.asarray(block.columns.index(np), np.int64) for block in blocks]
    padding, width = blocks[0].columns.num_columns, tables[0].shape[1]
    return np.concatenate(
        [
            np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=padding)
            for table in tables
        ]
    )
