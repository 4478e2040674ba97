"""Where packed values lie among the flat ones, and how the ones become the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import library_of, namespace_of
from tritonsnap.plan.blocks import Block, ElementwiseBlock, WalkBlock
from tritonsnap.plan.columns import BlockColumns

Side = Literal["x", "mask"]


@dataclass(frozen=True, eq=False)
class FlatPlaces:
    """How flat and packed values of a NumPy packing correspond, as two gathers.

    Made on first use of flat values, and not part of the structure that packed ops read.

    Attributes
    ----------
    of_block
        For each block the places among the flat values, shaped as the block; nnz at padding.
    of_value : [nnz]
        The place of each flat value among all packed ones; their number where no block has it.
    """

    of_block: tuple[NDArray[np.int64], ...]
    of_value: NDArray[np.int64]

    @classmethod
    def build(
        cls, blocks: Sequence[Block], shapes: Sequence[tuple[int, ...]], side: Side, nnz: int
    ) -> FlatPlaces:
        """Look up the places of all values of `blocks`, which have the given shapes."""
        of_block = []
        for block, shape in zip(blocks, shapes, strict=True):
            index, inside = value_index(block, side, np)
            if index is None:
                index = from_stretches(np, np.arange(nnz), block.columns, shape, side)
            of_block.append(index if inside is None else np.where(inside, index, nnz))
        together = np.concatenate([index.ravel() for index in of_block])
        of_value = np.full(nnz + 1, len(together), np.int64)
        of_value[together] = np.arange(len(together))
        return cls(tuple(of_block), of_value[:nnz])

    def pack(self, values: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Blocks of flat values ``[..., nnz]``."""
        bordered = _with_zero(values)
        return tuple(np.take(bordered, index, axis=-1) for index in self.of_block)

    def unpack(self, blocks: tuple[NDArray[Any], ...], batch: tuple[int, ...]) -> NDArray[Any]:
        """Flat values of blocks."""
        zero = np.zeros((*batch, 1), blocks[0].dtype)
        together = [block.reshape(*batch, math.prod(block.shape[len(batch) :])) for block in blocks]
        return np.take(np.concatenate([*together, zero], axis=-1), self.of_value, axis=-1)


def _with_zero(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1), values.dtype)], axis=-1)


def value_index(block: Block, side: Side, xp: Any) -> tuple[Any, Any]:
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
        begin = xp.asarray(indptr, dtype=start.dtype)  # uint would wrap below
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


def from_stretches(
    xp: Any, values: Any, columns: BlockColumns, shape: tuple[int, ...], side: Side
) -> Any:
    """A block of flat values whose runs are regular: reshaped slices, no index."""
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


def into_stretches(
    whole: Any, values: Any, columns: BlockColumns, shape: tuple[int, ...], side: Side
) -> Any:
    """`whole` with the flat values of a block whose runs are regular."""
    groups, rows = _stretch_rows(columns, shape)
    batch = whole.shape[:-1]
    values = values.reshape(*batch, groups, rows, columns.width)
    begin = 0
    for stretch in columns.stretches or ():
        piece = values[..., begin : begin + stretch.length].swapaxes(-1, -2)
        flat = piece.reshape(*batch, groups * stretch.length * rows)
        first = stretch.x_value if side == "x" else stretch.mask_value
        whole = put_slice(whole, first, flat)
        begin += stretch.length
    return whole


def _stretch_rows(columns: BlockColumns, shape: tuple[int, ...]) -> tuple[int, int]:
    """Groups, and rows in each, of a block whose groups are all alike."""
    groups = columns.num_groups
    return groups, int(np.prod(shape[:-1], dtype=np.int64)) // max(groups, 1)


def end_padded(xp: Any, values: Any, size: int) -> Any:
    """`values` with zeros behind the last axis up to `size`; unchanged where nothing is missing."""
    missing = size - values.shape[-1]
    if not missing:
        return values
    if library_of(values) == "jax":  # a traced array lies on no device
        return xp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
    shape = (*values.shape[:-1], missing)
    zeros = xp.zeros(shape, dtype=values.dtype, device=values.device)
    return xp.concat([values, zeros], axis=-1)


def put(whole: Any, index: Any, inside: Any, values: Any) -> Any:
    """`whole` with ``whole[..., index] = values`` where `inside`; NumPy writes in place."""
    if library_of(whole) == "numpy":
        if inside is None:
            whole[..., index] = values
        else:
            whole[..., index[inside]] = values[..., inside]
        return whole
    target = index if inside is None else namespace_of(whole).where(inside, index, whole.shape[-1])
    return whole.at[..., target].set(values, mode="drop", unique_indices=inside is None)


def put_slice(whole: Any, begin: int, values: Any) -> Any:
    """`whole` with `values` from `begin` on; NumPy writes in place."""
    if library_of(whole) == "numpy":
        whole[..., begin : begin + values.shape[-1]] = values
        return whole
    return whole.at[..., begin : begin + values.shape[-1]].set(values)
