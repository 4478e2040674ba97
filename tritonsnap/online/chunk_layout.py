"""How the influence lies in memory during a sequence of chunks: by groups, in the order of pieces.

Blocks whose groups have several rows are taken apart once, and put together at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import index_like, take, take_or_zero
from tritonsnap.online.chunk_groups import Groups, Merged
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.plan.packing import Packing


class Layout(NamedTuple):
    """Values of an influence, or one for each of its columns.

    Attributes
    ----------
    blocks
        The blocks as they are packed; None for those that are taken apart.
    groups : tuple of tuples of [batch, G, S, U * count], or of [G, U * count]
        For each of `Chunking.groups` the columns of each piece.
    """

    blocks: tuple[Any, ...]
    groups: tuple[tuple[Any, ...], ...]


def take_apart(chunking: Chunking, influence: Sequence[Any]) -> Layout:
    """The influence by groups."""
    joined = {one.numbers: _joined(one, influence) for one in chunking.groups}
    groups = tuple(_by_pieces(one, joined[one.numbers]) for one in chunking.groups)
    apart = {merged.number for merged in chunking.merged}
    blocks = (None if n in apart else block for n, block in enumerate(influence))
    return Layout(tuple(blocks), groups)


def no_columns(influence: Layout, packing: Packing, like: Any) -> Layout:
    """A zero for each column."""
    xp = namespace_of(like)
    blocks = (
        None if block is None else xp.zeros(shape, dtype=like.dtype)
        for block, shape in zip(influence.blocks, packing.column_shapes(), strict=True)
    )
    groups = (
        tuple(xp.zeros((part.shape[1], part.shape[3]), dtype=like.dtype) for part in parts)
        for parts in influence.groups
    )
    return Layout(tuple(blocks), tuple(groups))


def put_together(
    chunking: Chunking, packing: Packing, influence: Layout, columns: Layout
) -> tuple[list[Any], list[Any]]:
    """The blocks of the influence, and of the values for each of its columns."""
    blocks, totals = list(influence.blocks), list(columns.blocks)
    parts: dict[int, tuple[list[Any], list[Any]]] = {}
    for one, rows, of_columns in zip(
        chunking.groups, influence.groups, columns.groups, strict=True
    ):
        found = _in_order(one, rows)
        found = found.reshape(found.shape[0], -1, found.shape[-1])
        total = _in_order(one, tuple(part[None, :, None] for part in of_columns))[0, :, 0]
        for number in one.numbers:
            known = parts.setdefault(number, ([], []))
            known[0].append(found)
            known[1].append(total)
    for merged in chunking.merged:
        at = merged.number
        block = packing.blocks[at]
        rows, groups = (_concat(found, -2) for found in parts[at])
        blocks[at], totals[at] = _merge(merged, rows, groups, block.mask_shape)
    return blocks, totals


def _joined(one: Groups, influence: Sequence[Any]) -> Any:
    """[batch, rows, C]: the rows of all blocks that groups are from, one behind the other."""
    width = one.shape[-1]
    found = []
    for number in one.numbers:
        block = influence[number]
        xp = namespace_of(block)
        block = block.reshape(block.shape[0], -1, block.shape[-1])
        missing = width - block.shape[-1]
        if missing:
            zeros = xp.zeros((*block.shape[:-1], missing), dtype=block.dtype)
            block = xp.concat([block, zeros], axis=-1)
        found.append(block)
    return _concat(found, 1)


def _by_pieces(one: Groups, influence: Any) -> tuple[Any, ...]:
    """[batch, G, S, U * count] for each piece, of joined blocks."""
    num_groups, size, num_units, width = one.shape
    if one.influence_rows is not None:
        influence = take_or_zero(influence, one.influence_rows.reshape(-1), axis=-2)
    influence = influence.reshape(influence.shape[0], num_groups, size, width)
    if one.inverse is not None:
        influence = reordered(influence, one.inverse)
    parts, begin = [], 0
    for piece in one.pieces:
        end = begin + num_units * piece.count
        parts.append(influence[..., begin:end])
        begin = end
    return tuple(parts)


def _in_order(one: Groups, parts: tuple[Any, ...]) -> Any:
    """[batch, G, S, C] of the columns of each piece."""
    values = _concat(list(parts), -1)
    return values if one.order is None else reordered(values, one.order)


def _merge(merged: Merged, rows: Any, groups: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A block of the influence, and one value for each of its columns, of those of its groups."""
    if merged.rows is not None:
        rows = take_or_zero(rows, merged.rows, axis=-2)
    if merged.groups is not None:
        groups = take(groups, merged.groups, axis=-2)
    width = shape[-1]
    return rows[..., :width].reshape(rows.shape[0], *shape), groups[..., :width]


def _concat(parts: list[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else namespace_of(parts[0]).concat(parts, axis=axis)


def reordered(values: Any, order: Any) -> Any:
    """[batch, G, S, C]: the columns `order` [G, C] of `values` [batch, G, S, L], zero at L."""
    if order.shape[1] == 0:
        return values[..., :0]
    xp = namespace_of(values)
    zero = xp.zeros((*values.shape[:3], 1), dtype=values.dtype)
    return columns_at(xp.concat([values, zero], axis=-1), order)


def columns_at(values: Any, order: Any) -> Any:
    """[batch, G, S, C]: the columns `order` [G, C], all there, of `values` [batch, G, S, L]."""
    xp = namespace_of(values)
    batch, num_groups, size, length = values.shape
    row = xp.arange(num_groups * size).reshape(num_groups, size, 1) * length
    return take(values.reshape(batch, -1), row + index_like(values, order)[:, None, :])
