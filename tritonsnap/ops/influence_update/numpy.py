"""`influence_update` in NumPy."""

from __future__ import annotations

from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.arguments import (
    Form,
    Influence,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    give_back,
    read_influence,
    with_own_axes,
)
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_update.compressed import read_immediate
from tritonsnap.ops.influence_update.out import Operands, check_out, shares_memory
from tritonsnap.ops.masked_dsmm.numpy import _with_zero, product
from tritonsnap.plan.blocks import Block, DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.compressed import Compressed, CompressedBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorBlock, Factors
from tritonsnap.plan.packing import Packing

Array = NDArray[Any]


def influence_update(
    d: Array,
    j: Array | tuple[Array, ...],
    immediate: Array | tuple[Array, ...] | Factors | Compressed,
    plan: DsmmPlan,
    *,
    row_scale: Array | None = None,
    precision: str = "ieee",
    form: Form | None = None,
    out: tuple[Array, ...] | None = None,
) -> Array | tuple[Array, ...]:
    """NumPy face of `tritonsnap.influence_update`."""
    check_plan(plan)
    check_precision(precision)
    packing = plan.packing()
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    dynamics = Dynamics(d, form, packing, np)
    added = read_immediate(immediate, plan, packing, given.batch)
    if out is not None:
        operands = Operands(d, form, given, added, row_scale)
        batch = np.broadcast_shapes(*operands.batch_axes)
        check_out(out, given, packing, batch, np.result_type(*operands.arrays))
        _check_memory(tuple(out), operands)
    if isinstance(added, Influence):
        others = with_own_axes(d, form, row_scale)
        if given.flat and added.flat:
            blocks = product(packing, dynamics, given.blocks, row_scale)
            return give_back(given, blocks, packing, *others) + added.values
        blocks = update(packing, dynamics, given.blocks, added.blocks, row_scale, out)
    else:
        others = with_own_axes(d, form, row_scale, added)
        blocks = update(packing, dynamics, given.blocks, added, row_scale, out)
    return give_back(given, blocks, packing, *others)


def update(
    packing: Packing,
    dynamics: Dynamics,
    blocks: tuple[Array, ...],
    immediate: Factors | Compressed | tuple[Array, ...],
    row_scale: Array | None = None,
    out: tuple[Array, ...] | None = None,
) -> tuple[Array, ...]:
    """The blocks of M * (D J) + I, written to `out`, which may be those of J, where it is given.

    An immediate Jacobian of values is given as its blocks.
    """
    if out is not None:
        blocks = tuple(
            np.broadcast_to(x, (*into.shape[: into.ndim - len(block.mask_shape)], *block.x_shape))
            for x, into, block in zip(blocks, out, packing.blocks, strict=True)
        )
    if not isinstance(immediate, (Factors, Compressed)):
        results = product(packing, dynamics, blocks, row_scale, out)
        targets = [None] * len(results) if out is None else out
        return tuple(map(np.add, results, immediate, targets))
    if isinstance(immediate, Compressed):
        *axes, colors, columns = immediate.values.shape
        compressed = immediate.values.reshape(*axes, colors * columns)
        lead = compressed.shape[:-1]
    else:
        *axes, targets, rows = immediate.gains.shape
        gains = immediate.gains.reshape(*axes, targets * rows)
        lead = np.broadcast_shapes(gains.shape[:-1], immediate.sources.shape[:-1])
    results = product(packing, dynamics, blocks, row_scale, out)
    for number, (block, part) in enumerate(
        zip(packing.blocks, immediate.structure.layout(packing), strict=True)
    ):
        result = results[number]
        own = result.shape[: result.ndim - len(block.mask_shape)]
        whole = np.broadcast_shapes(lead, own)
        if own != whole:
            result = np.broadcast_to(result, (*whole, *block.mask_shape)).copy()
            results = (*results[:number], result, *results[number + 1 :])
        if isinstance(immediate, Compressed):
            _add_compressed(result, block, part, compressed)
        else:
            _add(result, block, part, gains, immediate.sources, packing.groups.mask.shape[0])
    return results


def _check_memory(out: tuple[Array, ...], operands: Operands) -> None:
    """Raise unless each output can be written and is J's block, or shares no memory."""
    blocks = operands.j.blocks
    over = all(starmap(_same_memory, zip(out, blocks, strict=True)))
    for number, into in enumerate(out):
        if not (into.flags.c_contiguous and into.flags.writeable):
            raise ValueError(f"`out[{number}]` must be contiguous and writeable")
        others = [*out[:number], *out[number + 1 :]]
        others += [] if over else blocks
        others += [*operands.added, operands.d, *operands.rows]
        if any(np.may_share_memory(into, other) for other in others):
            raise ValueError(shares_memory(number))


def _same_memory(one: Array, other: Array) -> bool:
    where = [(array.ctypes.data, array.shape, array.strides) for array in (one, other)]
    return where[0] == where[1]


def _add_compressed(result: Array, block: Block, part: CompressedBlock, compressed: Array) -> None:
    """Add the flattened compressed immediate Jacobian to a block, in place."""
    if part.whole:
        result += _with_zero(compressed)[..., part.source]
    else:
        place = np.unravel_index(part.place.astype(np.int64), block.mask_shape)
        result[(..., *place)] += compressed[..., part.source]


def _add(
    result: Array, block: Block, factors: FactorBlock, gains: Array, sources: Array, rows: int
) -> None:
    """Add the factored immediate Jacobian to a block, in place."""
    if factors.outer:
        assert isinstance(block, ElementwiseBlock)  # only these have outer factors
        gain = gains[..., factors.target * rows :][..., block.mask_row][..., None]
        begin = 0
        for first, count in factors.stretches:
            piece = sources[..., None, first : first + count]
            result[..., begin : begin + count] += gain * piece
            begin += count
        return
    if factors.pieces and not isinstance(block, ElementwiseBlock):
        _add_pieces(result, block, factors, gains, sources, rows)
        return
    index = factors.target_index * np.int64(rows) + factors.row  # [parts, G, C]
    values = np.take(gains, index, axis=-1)
    values = values * np.take(_with_zero(sources), factors.source_index, axis=-1)[..., None, :, :]
    if isinstance(block, ElementwiseBlock):
        inside = factors.place == 0
        result += np.where(inside, values, 0).sum(axis=-3)
        return
    columns = np.arange(block.columns.width)
    for part in range(len(factors.place)):
        inside, axes = _places(block, factors.place[part].astype(np.int64))
        added = values[..., part, :, :]
        if inside.shape[1] == 1:  # all columns of a group belong to one unit: whole rows
            kept = inside[:, 0]
            result[(..., *(axis[kept, 0] for axis in axes), slice(None))] += added[..., kept, :]
        else:
            kept = inside & (factors.source_index < sources.shape[-1])
            column = np.broadcast_to(columns, kept.shape)[kept]
            result[(..., *(axis[kept] for axis in axes), column)] += added[..., kept]


def _add_pieces(
    result: Array,
    block: WalkBlock | DenseBlock,
    factors: FactorBlock,
    gains: Array,
    sources: Array,
    rows: int,
) -> None:
    """The same where all groups read the same sources: an outer product for each piece."""
    for part, row in enumerate(factors.row):
        inside, axes = _places(block, factors.place[part].astype(np.int64))
        kept = inside[:, 0]
        own_axes = [axis[kept, 0] for axis in axes]
        at = own_axes if len(own_axes) > 1 else [_as_slice(*own_axes)]
        for piece in factors.pieces:
            own = row[kept, 0] + piece.target * np.int64(rows)
            source = sources[..., None, piece.source : piece.source + piece.length]
            columns = slice(piece.column, piece.column + piece.length)
            result[(..., *at, columns)] += np.take(gains, own, axis=-1)[..., None] * source


def _places(
    block: WalkBlock | DenseBlock, place: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], tuple[NDArray[np.int64], ...]]:
    """Where groups have the rows at `place` [G, 1 or C], and the indices of these in the block."""
    if isinstance(block, WalkBlock):
        begin: NDArray[np.int64] = block.mask_indptr.astype(np.int64)
        return place < np.diff(begin)[:, None], (begin[:-1, None] + place,)
    groups: NDArray[np.int64] = np.broadcast_to(np.arange(len(place))[:, None], place.shape)
    return place < block.mask_shape[1], (groups, place)


def _as_slice(index: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Ascending numbers as a slice where they are evenly spaced: it needs no copy."""
    steps = np.diff(index)
    if len(steps) and np.all(steps == steps[0]) and steps[0] > 0:
        return slice(int(index[0]), int(index[-1]) + 1, int(steps[0]))
    return index
