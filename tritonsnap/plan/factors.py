"""`FactorStructure`: an immediate Jacobian that is an outer product in every column.

For a weight from source j into unit i the immediate Jacobian is ``gain[i] * source[j]`` in the
rows of unit i and zero elsewhere, so a step never materialises it: it is added to the packed
influence from its factors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_integer
from tritonsnap.plan.blocks import Block, DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.compact import compact, signed
from tritonsnap.plan.immediate import ImmediateStructure
from tritonsnap.plan.packing import AnyBlock, Packing


class Factors(NamedTuple):
    """The values of a factored immediate Jacobian.

    Attributes
    ----------
    gains : [..., targets, rows]
        What one unit of a preactivation does to each row of the state: ``ds/da``.
    sources : [..., sources]
        What the parameters multiply: inputs, previous state, one.
    structure : FactorStructure
        Which gain and which source each column has.
    """

    gains: Any
    sources: Any
    structure: FactorStructure


_MOST_PIECES = 16


class Piece(NamedTuple):
    """Consecutive columns of a block that feed one preactivation from consecutive sources."""

    target: int
    source: int
    column: int
    length: int


@dataclass(frozen=True, eq=False)
class FactorBlock:
    """The factors of one block's columns.

    Attributes
    ----------
    outer
        Whether all groups read the same sources: then the block's part is one outer product of
        `target`'s gains with the sources in `stretches`.
    target
        The preactivation that all columns of an `outer` block feed.
    stretches
        (first source, count) of each stretch of sources of an `outer` block.
    target_index : [G, C] or empty
        The preactivation that each column feeds.
    source_index : [G, C] or empty
        The source that each column multiplies; one past the last at padding, which counts as zero.
    row : [parts, G, 1] or [parts, G, C]
        The row of the state that the part of the column's unit is.
    place : the shape of `row`
        Which row of the group it is; S (no row) where the group lacks it.
    """

    outer: bool
    target: int
    stretches: tuple[tuple[int, int], ...]
    target_index: Any
    source_index: Any
    row: Any
    place: Any

    ARRAYS: ClassVar = ("target_index", "source_index", "row", "place")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The columns of every group, if all have the same targets and sources (dense weights).

        Empty where they have not, where they are many, or where a group feeds several units.
        """
        target, source = self.target_index, self.source_index
        if not source.size or self.row.shape[-1] != 1 or self.place.shape[-1] != 1:
            return ()
        if np.any(source != source[:1]) or np.any(target != target[:1]):
            return ()
        begins = (np.diff(source[0].astype(np.int64), prepend=-2) != 1) | (
            np.diff(target[0].astype(np.int64), prepend=-1) != 0
        )
        begin = np.flatnonzero(begins)
        if len(begin) > _MOST_PIECES:
            return ()
        length = np.diff(np.append(begin, source.shape[1]))
        firsts = (target[0][begin], source[0][begin], begin, length)
        return tuple(Piece(*map(int, piece)) for piece in zip(*firsts, strict=True))


@dataclass(frozen=True, eq=False)
class CanonicalFactors:
    """The factors of all columns of a `CanonicalBlock`, in their order.

    Attributes
    ----------
    column_gain : [p]
        ``target * rows + unit``: where the column's gain for the first part lies. Where every
        column has one row: the target alone, or one past the last if the row is not the unit's.
    column_source : [p]
        The source that the column multiplies.
    """

    column_gain: Any
    column_source: Any

    ARRAYS: ClassVar = ("column_gain", "column_source")


@dataclass(frozen=True, eq=False)
class FactorStructure(ImmediateStructure):
    """Which gain and which source the immediate Jacobian of each parameter has.

    ``I[part * units + unit[c], c] = gains[target[c], part * units + unit[c]] * sources[source[c]]``

    Parameters
    ----------
    plan
        The plan whose influence it is added to.
    unit, target, source : int [p]
        The unit that each parameter feeds, the preactivation by which it does, and the source
        that it multiplies.
    num_units
        Units; the state has ``parts * num_units`` rows, one part behind the other.
    num_targets, num_sources
        Preactivations and sources.
    numbers : int [p] or None
        Which columns of a whole structure these are, where `take_columns` took them from one.
    """

    unit: NDArray[np.integer]
    target: NDArray[np.integer]
    source: NDArray[np.integer]
    num_units: int
    num_targets: int
    num_sources: int
    numbers: NDArray[np.integer] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        num_columns = self.plan.mask.shape[1]
        for name, top in (
            ("unit", self.num_units),
            ("target", self.num_targets),
            ("source", self.num_sources),
        ):
            check_integer(f"num_{name}s", top)
            index = getattr(self, name)
            if not isinstance(index, np.ndarray) or index.dtype.kind not in "iu":
                given = getattr(index, "dtype", type(index).__name__)
                raise TypeError(f"`{name}` must be a NumPy array of integers, got {given}")
            if index.shape != (num_columns,):
                raise ValueError(f"`{name}` must have shape ({num_columns},), got {index.shape}")
            if index.size and (index.min() < 0 or index.max() >= top):
                raise ValueError(f"`{name}` must lie in [0, {top})")
        if self.plan.mask.shape[0] % max(self.num_units, 1):
            raise ValueError(
                f"`num_units` must divide the {self.plan.mask.shape[0]} rows of the plan, "
                f"got {self.num_units}"
            )

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        hasher = hashlib.blake2b(self.plan.digest.encode(), digest_size=16)
        sizes = (self.num_units, self.num_targets, self.num_sources)
        hasher.update(repr(sizes).encode())
        for index in (self.unit, self.target, self.source):
            hasher.update(np.ascontiguousarray(index, np.int64).data)
        return hasher.hexdigest()

    def take_columns(self, columns: NDArray[np.integer]) -> FactorStructure:
        """The structure of some columns, in ascending order; see `DsmmPlan.take_columns`."""
        return FactorStructure(
            plan=self.plan.take_columns(columns),
            unit=self.unit[columns],
            target=self.target[columns],
            source=self.source[columns],
            num_units=self.num_units,
            num_targets=self.num_targets,
            num_sources=self.num_sources,
            numbers=columns if self.numbers is None else self.numbers[columns],
        )

    def _lay_out_all(self, packing: Packing) -> tuple[FactorBlock, ...]:
        return tuple(self.lay_out(block, packing) for block in packing.blocks)

    def entries(
        self, block: AnyBlock, packing: Packing
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The nonzeros of the immediate Jacobian in a block, one by one.

        Returns
        -------
        place, gain, source : int64 [nonzeros]
            Where each lies in the flattened block of M, among the flattened gains, and among the
            sources.
        """
        if isinstance(block, CanonicalBlock):
            return self._canonical_entries()
        columns = block.columns.index(np)
        safe = np.minimum(columns, packing.groups.mask.shape[1] - 1)
        num_rows = packing.groups.mask.shape[0]
        parts = np.arange(num_rows // self.num_units)[:, None, None]
        row = parts * self.num_units + self.unit[safe]
        place = _place_in_group(block, row)
        if isinstance(block, WalkBlock):
            begin = block.mask_indptr.astype(np.int64)
            first, size = begin[:-1, None], np.diff(begin)[:, None]
        else:
            size = block.mask_shape[1] if isinstance(block, DenseBlock) else 1
            first = np.arange(len(columns))[:, None] * size
        kept = (columns < packing.groups.mask.shape[1]) & (place < size)
        flat = (first + place) * block.columns.width + np.arange(block.columns.width)
        gain = self.target[safe] * np.int64(num_rows) + row
        source = np.broadcast_to(self.source[safe], row.shape)
        return flat[kept], gain[kept], source[kept].astype(np.int64)

    def _canonical_entries(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """`entries` of all values in canonical order."""
        mask = self.plan.mask
        column = mask.cols.astype(np.int64)
        place = np.flatnonzero(mask.rows % self.num_units == self.unit[column])
        rows, column = mask.rows[place].astype(np.int64), column[place]
        gain = self.target[column] * np.int64(mask.shape[0]) + rows
        return place, gain, self.source[column].astype(np.int64)

    def canonical(self) -> CanonicalFactors:
        """The factors for values in canonical order."""
        key = "canonical"
        if key not in self._layouts:
            mask = self.plan.mask
            gain = self.target.astype(np.int64) * mask.shape[0] + self.unit
            if self.plan.packing("triton").blocks[0].elementwise:
                gain = np.where(
                    mask.rows % self.num_units == self.unit, self.target, self.num_targets
                )
            self._layouts[key] = (CanonicalFactors(signed(gain), signed(self.source)),)
        factors: CanonicalFactors = self._layouts[key][0]
        return factors

    def lay_out(self, block: Block, packing: Packing, outer: bool = True) -> FactorBlock:
        """The factors of a block of a packing, as an outer product where allowed and possible."""
        columns = block.columns.index(np)
        num_columns = packing.groups.mask.shape[1]
        inside = columns < num_columns
        safe = np.where(inside, columns, np.minimum(columns[:, :1], num_columns - 1))
        unit, target = self.unit[safe], self.target[safe]
        source = np.where(inside, self.source[safe], self.num_sources)
        empty = np.empty(0, np.uint8)
        if (
            outer
            and isinstance(block, ElementwiseBlock)
            and np.all(source == source[:1])
            and np.all(target == target[0, 0])
            and np.all(unit == (block.mask_row.astype(np.int64) % self.num_units)[:, None])
        ):
            begins = np.flatnonzero(np.diff(source[0], prepend=-2) != 1)
            lengths = np.diff(np.append(begins, source.shape[1]))
            stretches = tuple(
                (int(source[0, b]), int(n)) for b, n in zip(begins, lengths, strict=True)
            )
            return FactorBlock(True, int(target[0, 0]), stretches, empty, empty, empty, empty)
        if np.all(unit == unit[:, :1]):
            unit = unit[:, :1]
        parts = packing.groups.mask.shape[0] // self.num_units
        row = np.arange(parts)[:, None, None] * self.num_units + unit
        return FactorBlock(
            outer=False,
            target=0,
            stretches=(),
            target_index=compact(target),
            source_index=compact(source),
            row=compact(row),
            place=compact(_place_in_group(block, row)),
        )


def _place_in_group(block: Block, row: NDArray[np.integer]) -> NDArray[np.int64]:
    """Which of its group's rows each row of the state is; the group's size if it is none."""
    if isinstance(block, ElementwiseBlock):
        supports = block.mask_row[:, None]
    elif isinstance(block, DenseBlock):
        supports = block.mask_support
    else:
        supports = _ragged(block)
    place = np.full(row.shape, supports.shape[1], np.int64)
    for group, support in enumerate(supports):  # supports ascend
        found = np.searchsorted(support, row[:, group])
        inside = np.minimum(found, len(support) - 1)
        place[:, group] = np.where(support[inside] == row[:, group], found, supports.shape[1])
    return place


def _ragged(block: WalkBlock) -> NDArray[np.int64]:
    indptr = block.mask_indptr.astype(np.int64)
    sizes = np.diff(indptr)
    supports = np.full((len(sizes), int(sizes.max(initial=0))), np.iinfo(np.int64).max)
    supports[np.arange(supports.shape[1]) < sizes[:, None]] = block.mask_row
    return supports
