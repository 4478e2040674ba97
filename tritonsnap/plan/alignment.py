"""A partition as packings that differ in the contents of their arrays only: one program for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.assignment import build_block
from tritonsnap.plan.blocks import (
    Block,
    DenseBlock,
    ElementwiseBlock,
    RowClass,
    WalkBlock,
    class_lengths,
)
from tritonsnap.plan.columns import BlockColumns
from tritonsnap.plan.compact import compact
from tritonsnap.plan.cost import group_costs
from tritonsnap.plan.factors import FactorBlock, FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.partition import Partition

Index = NDArray[np.integer]


def align_packings(packing: Packing, partition: Partition) -> list[Packing]:
    """The packing of each device's columns, every block padded to its largest size anywhere.

    Columns keep the numbers that they have in the whole plan, and D its entries.

    Parameters
    ----------
    packing
        The packing that `partition` was built from, with `even`.
    """
    groups, dynamics = partition.groups, packing.dynamics
    costs = group_costs(groups, dynamics, packing.target)
    shards: list[list[Block]] = [[] for _ in range(partition.num_devices)]
    for number, whole in enumerate(packing.blocks):
        members = [
            np.flatnonzero((partition.block == number) & (partition.device == device))
            for device in range(partition.num_devices)
        ]
        blocks = [build_block(whole.regime, groups, m, dynamics, packing.target) for m in members]
        columns = [BlockColumns.collect(groups, m) for m in members]
        for shard, block in zip(shards, _align_blocks(blocks, columns, packing), strict=True):
            shard.append(block)
    return [
        replace(packing, groups=groups, costs=costs, blocks=tuple(shard), _flat={}, calls={})
        for shard in shards
    ]


def align_factors(
    structure: FactorStructure, packings: Sequence[Packing]
) -> list[tuple[FactorBlock, ...]]:
    """The factors of the blocks of aligned packings, aligned as they are."""
    layouts: list[list[FactorBlock]] = [[] for _ in packings]
    for number in range(len(packings[0].blocks)):
        found = [structure.lay_out(p.blocks[number], p) for p in packings]
        if len({(block.outer, block.target, block.stretches) for block in found}) > 1:
            found = [structure.lay_out(p.blocks[number], p, outer=False) for p in packings]
        width = max(block.row.shape[-1] for block in found)
        arrays = [
            _alike([block.target_index for block in found]),
            _alike([block.source_index for block in found]),
            *(
                _alike([_widened(getattr(block, name), width) for block in found])
                for name in ("row", "place")
            ),
        ]
        for layout, block, own in zip(layouts, found, zip(*arrays, strict=True), strict=True):
            layout.append(replace(block, **dict(zip(FactorBlock.ARRAYS, own, strict=True))))
    return [tuple(layout) for layout in layouts]


def _align_blocks(
    blocks: list[Any], columns: list[BlockColumns], packing: Packing
) -> Sequence[Block]:
    if isinstance(blocks[0], ElementwiseBlock):
        return _align_elementwise(blocks, columns, packing.dynamics.nnz)
    if isinstance(blocks[0], DenseBlock):
        return _align_dense(blocks, columns, *packing.dynamics.shape)
    return _align_walks(blocks, columns, packing.dynamics.nnz)


def _align_elementwise(
    blocks: list[ElementwiseBlock], columns: list[BlockColumns], nnz: int
) -> list[ElementwiseBlock]:
    sizes = {len(block.groups) for block in blocks}
    arrays = zip(
        _align_columns(columns, max(sizes)),
        _alike([block.position for block in blocks], nnz),
        _alike([block.mask_row for block in blocks]),
        _alike([block.x_row for block in blocks]),
        strict=True,
    )
    ordered = all(block.ordered for block in blocks)
    complete = len(sizes) == 1 and all(block.complete for block in blocks)
    all_rows = all(block.all_rows for block in blocks)
    return [
        ElementwiseBlock(block.groups, *own, ordered, complete, all_rows)
        for block, own in zip(blocks, arrays, strict=True)
    ]


def _align_dense(
    blocks: list[DenseBlock], columns: list[BlockColumns], num_rows: int, num_inner: int
) -> list[DenseBlock]:
    mask_supports = _alike([block.mask_support for block in blocks], num_rows)
    x_supports = _alike([block.x_support for block in blocks], num_inner)
    padded = any(
        bool(np.any(support == end))
        for supports, end in ((mask_supports, num_rows), (x_supports, num_inner))
        for support in supports
    )
    whole = all(block.whole for block in blocks)
    aligned = _align_columns(columns, len(mask_supports[0]))
    return [
        DenseBlock(block.groups, *own, padded, whole)
        for block, own in zip(
            blocks, zip(aligned, mask_supports, x_supports, strict=True), strict=True
        )
    ]


def _align_walks(blocks: list[WalkBlock], columns: list[BlockColumns], nnz: int) -> list[WalkBlock]:
    """Padding rows belong to one more group, without columns."""
    num_rows = max(len(block.mask_row) for block in blocks)
    num_x_rows = max(block.num_x_rows for block in blocks)
    sizes = {(len(b.groups), len(b.mask_row), b.num_x_rows) for b in blocks}
    num_groups = max(len(block.groups) for block in blocks) + (len(sizes) > 1)
    mask_indptr = [_padded_pointers(block.mask_indptr, num_groups, num_rows) for block in blocks]
    x_indptr = [_padded_pointers(block.x_indptr, num_groups, num_x_rows) for block in blocks]
    most_rows = max(int(np.diff(indptr).max(initial=0)) for indptr in mask_indptr)
    nonzeros = max(block.nonzeros for block in blocks)
    classes, places = _align_classes(blocks, num_rows, nnz)
    arrays = zip(
        blocks,
        _align_columns(columns, num_groups),
        _alike([block.mask_row for block in blocks]),
        _alike(mask_indptr),
        _alike(x_indptr),
        classes,
        _alike(places),
        strict=True,
    )
    return [
        replace(
            block,
            columns=own,
            mask_row=mask_row,
            mask_indptr=mask_pointers,
            x_indptr=x_pointers,
            num_x_rows=num_x_rows,
            most_rows=most_rows,
            nonzeros=nonzeros,
            classes=row_classes,
            place=place,
        )
        for block, own, mask_row, mask_pointers, x_pointers, row_classes, place in arrays
    ]


def _align_classes(
    blocks: list[WalkBlock], num_rows: int, nnz: int
) -> tuple[list[tuple[RowClass, ...]], list[Index]]:
    """The classes of rows of every block, and where each row lies among them."""
    by_length = [
        {int(class_lengths(np.array([one.position.shape[0]]))[0]): one for one in block.classes}
        for block in blocks
    ]
    lengths = sorted(set().union(*by_length))
    missing = RowClass(np.empty((0, 0), np.int64), np.empty((0, 0), np.int64))
    classes: list[list[RowClass]] = [[] for _ in blocks]
    places = [np.full(num_rows, -1) for _ in blocks]
    olds = [0] * len(blocks)
    free = [0] * len(blocks)  # a slot of padding, where there is one
    begin = 0
    for length in lengths:
        given = [own.get(length, missing) for own in by_length]
        positions = _alike([one.position for one in given], nnz)
        x_indices = _alike([one.x_index for one in given])
        for number, (block, one) in enumerate(zip(blocks, given, strict=True)):
            size = one.position.shape[1]
            inside = (block.place >= olds[number]) & (block.place < olds[number] + size)
            rows = np.flatnonzero(inside)
            places[number][rows] = block.place[rows].astype(np.int64) - olds[number] + begin
            olds[number] += size
            if size < positions[number].shape[1]:
                free[number] = begin + size
            classes[number].append(RowClass(positions[number], x_indices[number]))
        begin += positions[0].shape[1]
    full = [np.where(p < 0, slot, p) for p, slot in zip(places, free, strict=True)]
    return [tuple(own) for own in classes], full


def _align_columns(columns: list[BlockColumns], num_groups: int) -> list[BlockColumns]:
    arrays = [
        _alike([getattr(own, name) for own in columns], size=num_groups)
        for name in BlockColumns.ARRAYS
    ]
    return [
        BlockColumns(
            num_columns=columns[0].num_columns,
            num_groups=num_groups,
            width=max(own.width for own in columns),
            single=all(own.single for own in columns),
            stretches=None,
            **dict(zip(BlockColumns.ARRAYS, own_arrays, strict=True)),
        )
        for own_arrays in zip(*arrays, strict=True)
    ]


def _alike(arrays: list[Index], fill: int = 0, size: int = 0) -> list[Index]:
    """Arrays padded with `fill` at their ends to one shape (at least `size` long), in one dtype."""
    shape = [max(lengths) for lengths in zip(*(array.shape for array in arrays), strict=True)]
    shape[0] = max(shape[0], size)
    together = np.full((len(arrays), *shape), fill, np.int64)
    for padded, array in zip(together, arrays, strict=True):
        padded[tuple(slice(length) for length in array.shape)] = array
    return list(compact(together))


def _widened(array: Index, width: int) -> Index:
    """[parts, G, 1 or `width`] as [parts, G, `width`]; nothing stays nothing."""
    return array if array.ndim == 1 else np.broadcast_to(array, (*array.shape[:-1], width))


def _padded_pointers(indptr: Index, num_groups: int, end: int) -> Index:
    """Pointers of more groups, of which only the last has any rows."""
    padded = np.full(num_groups + 1, indptr[-1], np.int64)
    padded[: len(indptr)] = indptr
    padded[-1] = end
    return padded
