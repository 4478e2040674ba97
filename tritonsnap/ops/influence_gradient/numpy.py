"""`influence_gradient` in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.arguments import check_plan, check_rows, read_influence, without_values
from tritonsnap.ops.masked_dsmm.numpy import _padded_rows
from tritonsnap.plan.blocks import ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing

Array = NDArray[Any]


def influence_gradient(
    delta: Array,
    j: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Array | tuple[Array, ...]:
    """NumPy face of `tritonsnap.influence_gradient`."""
    check_plan(plan)
    packing = plan.packing()
    given = read_influence("j", j, packing, "mask")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    blocks = gradient(packing, delta, given.blocks, sum_batch)
    if packed:
        return blocks
    if blocks:
        return packing.unpack_columns(blocks)
    none = without_values((delta, 1), *((j, 1) for j in given.arrays))
    return packing.unpack_columns((), like=none.sum() if sum_batch else none.sum(-1))


def gradient(
    packing: Packing, delta: Array, blocks: tuple[Array, ...], sum_batch: bool
) -> tuple[Array, ...]:
    """delta^T J of each block, ``[..., G, C]``, summed over all batch axes on request."""
    results = []
    for block, j in zip(packing.blocks, blocks, strict=True):
        lead = np.broadcast_shapes(delta.shape[:-1], j.shape[: j.ndim - len(block.mask_shape)])
        if isinstance(block, ElementwiseBlock):
            rows = delta if block.all_rows else delta[..., block.mask_row]
            if sum_batch:
                rows = np.broadcast_to(rows, (*lead, rows.shape[-1])).reshape(-1, rows.shape[-1])
                j = np.broadcast_to(j, (*lead, *block.mask_shape)).reshape(-1, *block.mask_shape)
                results.append(np.einsum("bg,bgc->gc", rows, j))
                continue
            result = rows[..., None] * j
        elif isinstance(block, WalkBlock):
            weighted = delta[..., block.mask_row, None] * j
            result = _sum_groups(weighted, block.mask_indptr.astype(np.int64))
        else:
            rows = _padded_rows(block, delta)[..., None, :]
            result = np.matmul(rows, j)[..., 0, :]
        if sum_batch:
            result = result.sum(axis=tuple(range(len(lead))))
        results.append(result)
    return tuple(results)


def _sum_groups(rows: Array, indptr: NDArray[np.int64]) -> Array:
    """Sum the rows of each group; a transposed plan has groups without any."""
    filled = indptr[1:] > indptr[:-1]
    if filled.all():
        return np.add.reduceat(rows, indptr[:-1], axis=-2)
    sums = np.zeros((*rows.shape[:-2], len(filled), rows.shape[-1]), rows.dtype)
    if filled.any():
        sums[..., filled, :] = np.add.reduceat(rows, indptr[:-1][filled], axis=-2)
    return sums
