"""`Packing`: how one target organises a plan's work, and the layout of packed values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import library_of, namespace_of
from tritonsnap.plan.assignment import Assignment, build_block, choose
from tritonsnap.plan.blocks import (
    Block,
    DenseBlock,
    ElementwiseBlock,
    Regime,
    WalkBlock,
)
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import GroupCosts, Target, group_costs
from tritonsnap.plan.flat_values import (
    FlatPlaces,
    Side,
    end_padded,
    from_stretches,
    into_stretches,
    put,
    put_slice,
    value_index,
)
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern

AnyBlock = Block | CanonicalBlock


@dataclass(frozen=True, eq=False)
class Packing:
    """The blocks of a plan on one target.

    Packed values are a tuple of arrays, one a block (shapes: see `tritonsnap.plan.blocks`), with
    batch as leading axes. Padding holds zeros and stays zero.

    Attributes
    ----------
    target
        What runs it.
    groups, dynamics
        The plan's column groups and the entries of D that they need.
    costs
        The predicted cost of each group, on which the regimes were chosen.
    blocks
        The blocks; every group lies in exactly one. For Triton it is one `CanonicalBlock`, for the
        others they are those of `tritonsnap.plan.blocks`.
    dynamics_row, dynamics_col : [nnz(dynamics)] or empty
        Position of the entries of D; empty when every block reads D as a dense matrix.
    rows_in_order
        Whether the entries of D lie in rows 0, 1, 2, ..., one in each.
    restricted
        Whether a dense D may hold entries that the plan's dynamics leave out, which count as zero.
    calls
        What torch operators keep for their calls on this packing.
    """

    target: Target
    groups: ColumnGroups
    dynamics: SparsityPattern
    costs: GroupCosts
    blocks: tuple[Any, ...]
    dynamics_row: Any
    dynamics_col: Any
    rows_in_order: bool
    restricted: bool
    _flat: dict[Side, FlatPlaces] = field(default_factory=dict, repr=False)
    calls: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """A copy registers calls of its own: torch finds none that only a pickle holds."""
        return {**self.__dict__, "calls": {}}

    @classmethod
    def build(
        cls,
        groups: ColumnGroups,
        dynamics: SparsityPattern,
        target: Target,
        restricted: bool,
        regime: Regime | None = None,
    ) -> Packing:
        """Choose a regime for each group and lay out the blocks.

        `regime` forces all groups that are not elementwise into one regime.
        """
        costs = group_costs(groups, dynamics, target)
        _, assignment = choose(groups, dynamics.shape, costs, target, restricted, regime)
        return cls.from_assignment(groups, dynamics, target, costs, assignment, restricted)

    @classmethod
    def from_assignment(
        cls,
        groups: ColumnGroups,
        dynamics: SparsityPattern,
        target: Target,
        costs: GroupCosts,
        assignment: Assignment,
        restricted: bool,
    ) -> Packing:
        """Lay out blocks of given groups in given regimes."""
        if target.canonical:
            blocks: tuple[AnyBlock, ...] = _canonical(groups, assignment, dynamics)
        else:
            blocks = tuple(
                build_block(regime, groups, members, dynamics, target)
                for regime, members in assignment
            )
        reads_values = restricted or any(
            regime != Regime.DENSE for regime, members in assignment if len(members)
        )
        empty = np.empty(0, np.uint16)
        return cls(
            target=target,
            groups=groups,
            dynamics=dynamics,
            costs=costs,
            blocks=blocks,
            dynamics_row=compact(dynamics.rows) if reads_values else empty,
            dynamics_col=compact(dynamics.cols) if reads_values else empty,
            rows_in_order=np.array_equal(dynamics.rows, np.arange(dynamics.shape[0])),
            restricted=restricted,
        )

    @cached_property
    def transposed(self) -> Packing:
        """The packing of the transposed plan: X's blocks are this one's M blocks, and back."""
        assignment = tuple(part for block in self.blocks for part in parts_of(block))
        return self.from_assignment(
            self.groups.transposed,
            self.dynamics.transpose(),
            self.target,
            self.costs,
            assignment,
            self.restricted,
        )

    @cached_property
    def pairs(self) -> OuterPairs:
        """What `masked_outer` sums for each entry of D, of a packing for Triton."""
        return OuterPairs.build(self.groups, self.dynamics, self.costs.nonzeros)

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def regimes(self) -> NDArray[np.object_]:
        """The regime that each group was given, object [groups]."""
        regimes = np.empty(len(self.groups), object)
        for block in self.blocks:
            regimes[block.groups] = block.regime
        return regimes

    @cached_property
    def digest(self) -> str:
        """A hash of the patterns, and of which groups each block holds and how it is computed."""
        patterns = (self.groups.x.digest, self.groups.mask.digest, self.dynamics.digest)
        content = repr((self.target.name, *patterns, self.restricted))
        hasher = hashlib.blake2b(content.encode(), digest_size=16)
        for runs in (self.groups.run_indptr, self.groups.run_start, self.groups.run_length):
            hasher.update(np.ascontiguousarray(runs, np.int64).data)
        for block in self.blocks:
            for regime, groups in parts_of(block):
                hasher.update(regime.encode())
                hasher.update(np.ascontiguousarray(groups, np.int64).data)
        return hasher.hexdigest()

    @property
    def predicted_seconds(self) -> float:
        """What one product is predicted to take, batch 1, float32."""
        total = self.target.block * len(self.blocks)
        for block in self.blocks:
            for regime, groups in parts_of(block):
                total += self.costs.by_regime[regime][groups].sum()
        return float(total) * 1e-9

    @property
    def structure_bytes(self) -> int:
        """Bytes of all index arrays that the packed ops read."""
        return sum(array.nbytes for array in {id(array): array for array in self.arrays()}.values())

    @property
    def in_place(self) -> bool:
        """Whether the `out` of an update may be its `j`; on the CPU always."""
        return all(block.in_place for block in self.blocks if isinstance(block, CanonicalBlock))

    @property
    def wants_dense(self) -> bool:
        """Whether D is best given as a dense matrix: something gathers it, nothing forbids it."""
        parts = (part for block in self.blocks for part in parts_of(block))
        return not self.restricted and any(regime == Regime.DENSE for regime, _ in parts)

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        return collect(self)

    def with_arrays(self, arrays: list[Any]) -> Packing:
        """The same packing reading other arrays in place of `arrays()` (as operands of a jit)."""
        return rebuild(self, iter(arrays))

    # ---- layout --------------------------------------------------------------------------------

    def pattern(self, side: Side) -> SparsityPattern:
        """The pattern of X or of M."""
        return self.groups.x if side == "x" else self.groups.mask

    def shapes(self, side: Side) -> list[tuple[int, ...]]:
        """The shape of each block's values of X or of M, without batch axes."""
        return [block.x_shape if side == "x" else block.mask_shape for block in self.blocks]

    def column_shapes(self) -> list[tuple[int, ...]]:
        """The shape of one value per column of each block, without batch axes."""
        return [
            (self.groups.mask.shape[1],)
            if isinstance(block, CanonicalBlock)
            else (block.columns.num_groups, block.columns.width)
            for block in self.blocks
        ]

    def pack(self, values: Any, side: Side = "x") -> tuple[Any, ...]:
        """Turn flat values ``[..., nnz]`` of X (or of M) into blocks."""
        self.pattern(side).check_values("values", values)
        if self.target.canonical:
            return (end_padded(namespace_of(values), values, self.shapes(side)[0][0]),)
        if library_of(values) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.pack(self, values, side)
        xp = namespace_of(values)
        if xp is np and any(block.columns.stretches is None for block in self.blocks):
            return self._flat_places(side).pack(values)
        packed = []
        for block, shape, (index, inside) in zip(
            self.blocks, self.shapes(side), self._value_indices(side, xp), strict=True
        ):
            if index is None:
                packed.append(from_stretches(xp, values, block.columns, shape, side))
                continue
            if values.shape[-1] == 0:
                packed.append(xp.zeros((*values.shape[:-1], *shape), dtype=values.dtype))
                continue
            taken = xp.take(values, index, axis=-1)
            if inside is not None:
                taken = xp.where(inside, taken, xp.zeros((), dtype=values.dtype))
            packed.append(taken)
        return tuple(packed)

    def unpack(self, blocks: tuple[Any, ...], side: Side = "mask", like: Any = None) -> Any:
        """Turn blocks of M (or of X) into flat values ``[..., nnz]``.

        `like` gives the library, dtype and batch axes (all of its axes but the last) of the result
        where there are no blocks.
        """
        shapes = self.shapes(side)
        batch = self.check_blocks("blocks", blocks, side)
        if not blocks:
            if like is None:
                raise ValueError("`like` must be given to unpack no blocks")
            xp = namespace_of(like)
            return xp.zeros((*like.shape[:-1], self.pattern(side).nnz), dtype=like.dtype)
        if self.target.canonical:
            return blocks[0][..., : self.pattern(side).nnz]
        if library_of(*blocks) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.unpack(self, blocks, side)
        xp = namespace_of(*blocks)
        if xp is np and any(block.columns.stretches is None for block in self.blocks):
            return self._flat_places(side).unpack(blocks, batch)
        whole = xp.zeros((*batch, self.pattern(side).nnz), dtype=blocks[0].dtype)
        for block, values, shape, (index, inside) in zip(
            self.blocks, blocks, shapes, self._value_indices(side, xp), strict=True
        ):
            if index is None:
                whole = into_stretches(whole, values, block.columns, shape, side)
            else:
                whole = put(whole, index, inside, values)
        return whole

    def unpack_columns(self, blocks: tuple[Any, ...], like: Any = None) -> Any:
        """Turn one value per column, ``[..., G, C]`` a block, into ``[..., columns]``.

        `like` gives the library, dtype and shape without columns where there are no blocks.
        """
        num_columns = self.groups.mask.shape[1]
        if not blocks:
            return namespace_of(like).zeros((*like.shape, num_columns), dtype=like.dtype)
        if self.target.canonical:
            return blocks[0]
        if library_of(*blocks) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.unpack_columns(self, blocks)
        xp = namespace_of(*blocks)
        whole = xp.zeros((*blocks[0].shape[:-2], num_columns), dtype=blocks[0].dtype)
        for block, values in zip(self.blocks, blocks, strict=True):
            columns = block.columns
            if columns.stretches is None:
                index = columns.index(xp)
                whole = put(whole, index, index < num_columns, values)
                continue
            begin = 0
            for stretch in columns.stretches:
                piece = values[..., begin : begin + stretch.length]
                flat = piece.reshape(*piece.shape[:-2], piece.shape[-2] * piece.shape[-1])
                whole = put_slice(whole, stretch.column, flat)
                begin += stretch.length
        return whole

    def zeros(self, batch: tuple[int, ...], xp: Any, side: Side = "mask", **like: Any) -> Any:
        """Blocks of zeros; `like` holds dtype and device for the library."""
        return tuple(xp.zeros((*batch, *shape), **like) for shape in self.shapes(side))

    def check_blocks(self, name: str, blocks: Any, side: Side) -> tuple[int, ...]:
        """The batch shape of `blocks`, or a `ValueError` that names `name`."""
        shapes = self.shapes(side)
        if not isinstance(blocks, (tuple, list)) or len(blocks) != len(shapes):
            given = f"{len(blocks)}" if isinstance(blocks, (tuple, list)) else type(blocks).__name__
            raise ValueError(f"`{name}` must be a tuple of {len(shapes)} blocks, got {given}")
        batch: tuple[int, ...] | None = None
        for number, (block, shape) in enumerate(zip(blocks, shapes, strict=True)):
            lead = tuple(block.shape[: block.ndim - len(shape)])
            batch = lead if batch is None else batch
            if block.ndim < len(shape) or tuple(block.shape[len(lead) :]) != shape:
                raise ValueError(
                    f"`{name}[{number}]` must have shape [..., {', '.join(map(str, shape))}] "
                    f"as the plan packs it for {self.target.name}, got {list(block.shape)}"
                )
            if lead != batch:
                raise ValueError(
                    f"`{name}` must have equal batch axes in all blocks, "
                    f"got {list(batch)} and {list(lead)}"
                )
        return batch or ()

    def _value_indices(self, side: Side, xp: Any) -> list[tuple[Any, Any]]:
        """Per block the place of each packed value among the flat ones, and where it has one."""
        return [value_index(block, side, xp) for block in self.blocks]

    def _flat_places(self, side: Side) -> FlatPlaces:
        if side not in self._flat:
            self._flat[side] = FlatPlaces.build(
                cast("tuple[Block, ...]", self.blocks),
                self.shapes(side),
                side,
                self.pattern(side).nnz,
            )
        return self._flat[side]


def parts_of(block: AnyBlock) -> Assignment:
    """The groups of a block by the regime in which they are computed."""
    if isinstance(block, CanonicalBlock):
        present = [regime for regime in Regime if np.any(block.regime == regime)]
        return tuple((regime, np.flatnonzero(block.regime == regime)) for regime in present)
    return ((block.regime, block.groups),)


def _canonical(
    groups: ColumnGroups, assignment: Assignment, dynamics: SparsityPattern
) -> tuple[CanonicalBlock, ...]:
    """All groups in one block."""
    regimes = np.empty(len(groups), object)
    for regime, members in assignment:
        regimes[members] = regime
    return (CanonicalBlock.build(groups, regimes, dynamics),)


def collect(node: Any) -> list[Any]:
    """All arrays of a packing or a part of one, depth first, in a fixed order."""
    if isinstance(node, Packing):
        parts = [node.dynamics_row, node.dynamics_col]
        return parts + [array for block in node.blocks for array in collect(block)]
    arrays = [getattr(node, name) for name in node.ARRAYS]
    for child in _children(node):
        arrays += collect(child)
    return arrays


def rebuild(node: Any, arrays: Any) -> Any:
    """The inverse of `collect`: a copy of `node` that holds the given arrays."""
    if isinstance(node, Packing):
        row, col = next(arrays), next(arrays)
        blocks = tuple(rebuild(block, arrays) for block in node.blocks)
        return replace(node, dynamics_row=row, dynamics_col=col, blocks=blocks, _flat={}, calls={})
    own = {name: next(arrays) for name in node.ARRAYS}
    if isinstance(node, WalkBlock):
        own["columns"] = rebuild(node.columns, arrays)
        own["classes"] = tuple(rebuild(row_class, arrays) for row_class in node.classes)
    elif isinstance(node, (ElementwiseBlock, DenseBlock)):
        own["columns"] = rebuild(node.columns, arrays)
    return replace(node, **own)


def _children(node: Any) -> tuple[Any, ...]:
    if isinstance(node, WalkBlock):
        return (node.columns, *node.classes)
    return (node.columns,) if isinstance(node, (ElementwiseBlock, DenseBlock)) else ()
