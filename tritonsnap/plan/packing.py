"""`Packing`: how one target organises a plan's work, and the layout of packed values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import library_of, namespace_of
from tritonsnap.plan.blocks import (
    Block,
    DenseBlock,
    ElementwiseBlock,
    Regime,
    WalkBlock,
)
from tritonsnap.plan.columns import BlockColumns
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import GroupCosts, Target, group_costs, partition
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern

Side = Literal["x", "mask"]
Assignment = tuple[tuple[Regime, NDArray[np.int64]], ...]


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
        The blocks; every group lies in exactly one.
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
    blocks: tuple[Block, ...]
    dynamics_row: Any
    dynamics_col: Any
    rows_in_order: bool
    restricted: bool
    _flat: dict[Side, list[tuple[Any, Any]]] = field(default_factory=dict, repr=False)
    calls: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

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
        options = (regime,) if regime is not None else (None, Regime.WALK, Regime.DENSE)
        plans = [_assign(groups, costs, target, option) for option in options]
        assignment = min(plans, key=lambda plan: plan[0])[1]
        return cls._from_assignment(groups, dynamics, target, costs, assignment, restricted)

    @classmethod
    def _from_assignment(
        cls,
        groups: ColumnGroups,
        dynamics: SparsityPattern,
        target: Target,
        costs: GroupCosts,
        assignment: Assignment,
        restricted: bool,
    ) -> Packing:
        blocks = tuple(
            _build_block(regime, groups, members, dynamics, target)
            for regime, members in assignment
        )
        reads_values = restricted or any(block.regime != Regime.DENSE for block in blocks)
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
        assignment = tuple((block.regime, block.groups) for block in self.blocks)
        return self._from_assignment(
            self.groups.transposed,
            self.dynamics.transpose(),
            self.target,
            self.costs,
            assignment,
            self.restricted,
        )

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
        for block in self.blocks:
            hasher.update(block.regime.encode())
            hasher.update(np.ascontiguousarray(block.groups, np.int64).data)
        return hasher.hexdigest()

    @property
    def predicted_seconds(self) -> float:
        """What one product is predicted to take, batch 1, float32."""
        total = self.target.block * len(self.blocks)
        for block in self.blocks:
            total += self.costs.by_regime[block.regime][block.groups].sum()
        return float(total) * 1e-9

    @property
    def structure_bytes(self) -> int:
        """Bytes of all index arrays that the packed ops read."""
        return sum(array.nbytes for array in self.arrays())

    @property
    def wants_dense(self) -> bool:
        """Whether D is best given as a dense matrix: something gathers it, nothing forbids it."""
        return not self.restricted and any(b.regime == Regime.DENSE for b in self.blocks)

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

    def pack(self, values: Any, side: Side = "x") -> tuple[Any, ...]:
        """Turn flat values ``[..., nnz]`` of X (or of M) into blocks."""
        self.pattern(side).check_values("values", values)
        if library_of(values) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.pack(self, values, side)
        xp = namespace_of(values)
        packed = []
        for block, shape, (index, inside) in zip(
            self.blocks, self.shapes(side), self._flat_index(side, xp), strict=True
        ):
            if index is None:
                packed.append(_from_stretches(xp, values, block.columns, shape, side))
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
        if library_of(*blocks) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.unpack(self, blocks, side)
        xp = namespace_of(*blocks)
        whole = xp.zeros((*batch, self.pattern(side).nnz), dtype=blocks[0].dtype)
        for block, values, shape, (index, inside) in zip(
            self.blocks, blocks, shapes, self._flat_index(side, xp), strict=True
        ):
            if index is None:
                whole = _into_stretches(whole, values, block.columns, shape, side)
            else:
                whole = _put(whole, index, inside, values)
        return whole

    def unpack_columns(self, blocks: tuple[Any, ...], like: Any = None) -> Any:
        """Turn one value per column, ``[..., G, C]`` a block, into ``[..., columns]``.

        `like` gives the library, dtype and shape without columns where there are no blocks.
        """
        num_columns = self.groups.mask.shape[1]
        if not blocks:
            return namespace_of(like).zeros((*like.shape, num_columns), dtype=like.dtype)
        if library_of(*blocks) == "torch":
            from tritonsnap.plan import torch_layout

            return torch_layout.unpack_columns(self, blocks)
        xp = namespace_of(*blocks)
        whole = xp.zeros((*blocks[0].shape[:-2], num_columns), dtype=blocks[0].dtype)
        for block, values in zip(self.blocks, blocks, strict=True):
            columns = block.columns
            if columns.stretches is None:
                index = columns.index(xp)
                whole = _put(whole, index, index < num_columns, values)
                continue
            begin = 0
            for stretch in columns.stretches:
                piece = values[..., begin : begin + stretch.length]
                flat = piece.reshape(*piece.shape[:-2], piece.shape[-2] * piece.shape[-1])
                whole = _put_slice(whole, stretch.column, flat)
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

    def _flat_index(self, side: Side, xp: Any) -> list[tuple[Any, Any]]:
        """Per block the place of each packed value among the flat ones, and where it has one."""
        if xp is not np:
            return [_value_index(block, side, xp) for block in self.blocks]
        if side not in self._flat:
            self._flat[side] = [_value_index(block, side, np) for block in self.blocks]
        return self._flat[side]


def _assign(
    groups: ColumnGroups, costs: GroupCosts, target: Target, forced: Regime | None
) -> tuple[float, Assignment]:
    """Split groups into blocks; `forced` is the regime of all that are not elementwise."""
    regimes = costs.regimes.copy()
    if forced is not None:
        possible = np.isfinite(costs.by_regime[forced])
        regimes[(regimes != Regime.ELEMENTWISE) & possible] = forced
    columns, written, read = groups.num_columns, groups.mask_sizes, groups.x_sizes
    assignment: list[tuple[Regime, NDArray[np.int64]]] = []
    total = 0.0

    def split(members: NDArray[np.int64], regime: Regime) -> None:
        nonlocal total
        price = costs.by_regime[regime]
        padded = np.full(len(price), 1.0)

        def cost(items: NDArray[np.int64]) -> float:
            block = members[items]
            most = columns[block].max()
            if regime == Regime.DENSE:
                rows, inner = written[block].max(), read[block].max()
                entry = target.gather + target.multiply_add * most
                each = target.product + rows * (inner * entry + target.element * most)
                return float(len(block) * each)
            padded[block] = most / np.maximum(columns[block], 1)
            return float((price[block] * padded[block]).sum())

        keys = (
            (written * read * 4096 + columns)[members]
            if regime == Regime.DENSE
            else columns[members]
        )
        for items in partition(keys, cost, target.most_blocks, target.block):
            total += cost(items) + target.block
            assignment.append((regime, members[items]))

    single = regimes == Regime.ELEMENTWISE
    for segment in np.unique(groups.segment[single]):
        split(np.flatnonzero(single & (groups.segment == segment)), Regime.ELEMENTWISE)
    for regime in (Regime.DENSE, Regime.WALK):
        members = np.flatnonzero(regimes == regime)
        if len(members):
            split(members, regime)
    return total, tuple(assignment)


def _build_block(
    regime: Regime,
    groups: ColumnGroups,
    members: NDArray[np.int64],
    dynamics: SparsityPattern,
    target: Target,
) -> Block:
    if regime == Regime.ELEMENTWISE:
        return ElementwiseBlock.build(groups, members, dynamics)
    if regime == Regime.WALK:
        return WalkBlock.build(groups, members, dynamics, target.by_row)
    return DenseBlock.build(groups, members)


def _value_index(block: Block, side: Side, xp: Any) -> tuple[Any, Any]:
    """Where each packed value lies among the flat ones; None where stretches imply it.

    Returns
    -------
    index : the block's shape
    inside : bool, the block's shape, or None where nothing is padding
    """
    if block.columns.stretches is not None:
        return None, None
    start, inside = block.columns.value_starts(xp, side)
    if isinstance(block, ElementwiseBlock):
        index = start
    elif isinstance(block, WalkBlock):
        indptr = block.x_indptr if side == "x" else block.mask_indptr
        num_rows = block.x_shape[0] if side == "x" else block.mask_shape[0]
        begin = indptr.astype(start.dtype)  # uint would wrap below
        row = xp.arange(num_rows)
        owner = xp.searchsorted(begin, row, side="right") - 1
        index = start[owner] + (row - begin[owner])[:, None]
        inside = inside[owner]
    else:
        support = block.x_support if side == "x" else block.mask_support
        size = (block.columns.x_size if side == "x" else block.columns.mask_size)[:, None]
        row = xp.arange(support.shape[1])
        index = start[:, None, :] + row[:, None]
        inside = inside[:, None, :] & (row < size)[:, :, None]
    index = xp.where(inside, index, 0)
    if xp is np and bool(inside.all()):
        return index, None
    return index, inside


def _from_stretches(
    xp: Any, values: Any, columns: BlockColumns, shape: tuple[int, ...], side: Side
) -> Any:
    groups, rows = _stretch_rows(columns, shape)
    pieces = []
    for stretch in columns.stretches or ():
        begin = stretch.x_value if side == "x" else stretch.mask_value
        flat = values[..., begin : begin + groups * stretch.length * rows]
        piece = flat.reshape(*values.shape[:-1], groups, stretch.length, rows)
        pieces.append(xp.swapaxes(piece, -1, -2))
    joined = pieces[0] if len(pieces) == 1 else xp.concatenate(pieces, axis=-1)
    return (
        xp.ascontiguousarray(joined.reshape(*values.shape[:-1], *shape))
        if xp is np
        else (joined.reshape(*values.shape[:-1], *shape))
    )


def _into_stretches(
    whole: Any, values: Any, columns: BlockColumns, shape: tuple[int, ...], side: Side
) -> Any:
    groups, rows = _stretch_rows(columns, shape)
    batch = whole.shape[:-1]
    values = values.reshape(*batch, groups, rows, columns.width)
    begin = 0
    for stretch in columns.stretches or ():
        piece = values[..., begin : begin + stretch.length].swapaxes(-1, -2)
        flat = piece.reshape(*batch, groups * stretch.length * rows)
        first = stretch.x_value if side == "x" else stretch.mask_value
        whole = _put_slice(whole, first, flat)
        begin += stretch.length
    return whole


def _stretch_rows(columns: BlockColumns, shape: tuple[int, ...]) -> tuple[int, int]:
    """Groups, and rows in each, of a block whose groups are all alike."""
    groups = columns.num_groups
    return groups, int(np.prod(shape[:-1], dtype=np.int64)) // max(groups, 1)


def _put(whole: Any, index: Any, inside: Any, values: Any) -> Any:
    """`whole` with ``whole[..., index] = values`` where `inside`; NumPy writes in place."""
    if library_of(whole) == "numpy":
        if inside is None:
            whole[..., index] = values
        else:
            whole[..., index[inside]] = values[..., inside]
        return whole
    target = index if inside is None else namespace_of(whole).where(inside, index, whole.shape[-1])
    return whole.at[..., target].set(values, mode="drop", unique_indices=inside is None)


def _put_slice(whole: Any, begin: int, values: Any) -> Any:
    if library_of(whole) == "numpy":
        whole[..., begin : begin + values.shape[-1]] = values
        return whole
    return whole.at[..., begin : begin + values.shape[-1]].set(values)


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
