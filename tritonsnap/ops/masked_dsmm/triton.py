"""`masked_dsmm` on a GPU: torch tensors go to the Triton kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tritonsnap.ops.arguments import (
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.canonical import Addend, group_arguments, snap1_arguments, walk_arguments
from tritonsnap.ops.device import DeviceDynamics, batch_rows, block_of, device_packing
from tritonsnap.ops.launch import launch
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing


def masked_dsmm(
    d: Tensor,
    x: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> Tensor | tuple[Tensor, ...]:
    """`tritonsnap.masked_dsmm` on the device of `d`; blocks are those of the target "triton"."""
    check_plan(plan)
    check_precision(precision)
    packing = device_packing(plan, d.device)
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch)
    addend = Addend()
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
        addend = Addend(row_scale=batch_rows(row_scale, 1, given.batch))
    batch = batch_shape(given.batch, d.shape[: -2 if form == "dense" else -1], row_scale)
    dynamics = DeviceDynamics(d, form, packing, batch)
    out = product(packing, dynamics, full_batch(given.blocks[0], batch), addend, precision)
    blocks = (out.reshape(*batch, out.shape[-1]),)
    return packing.unpack(blocks) if given.flat else blocks


def product(
    packing: Packing,
    dynamics: DeviceDynamics,
    x: Tensor,
    addend: Addend,
    precision: str,
    out: Tensor | None = None,
) -> Tensor:
    """M * (D X) and what is added to it, in one launch, or in two for a plan of both regimes.

    Parameters
    ----------
    packing, dynamics
        On the device of `x`.
    x : [batch, padded nnz(x)]
    addend
        What is added.
    precision
        Of dense products of float32.
    out : [batch, padded nnz(mask)], optional
        Where to write; `x` itself if the packing's block is `in_place`.

    Returns
    -------
    [batch, padded nnz(mask)]
    """
    from tritonsnap.ops.influence_update.kernels import SNAP1_UPDATE
    from tritonsnap.ops.masked_dsmm.kernels import GROUP_PRODUCT, WALK_PRODUCT

    block = block_of(packing)
    shape, num_values = packing.dynamics.shape, packing.groups.mask.nnz
    if out is None:
        out = x.new_empty(len(x), block.mask_values)
    size = {"values": num_values, "batch": len(x)}
    if block.elementwise:
        sizes = (shape[0], packing.dynamics.nnz, num_values)
        arguments = snap1_arguments(block, dynamics.values, x, addend, None, sizes)
        launch(SNAP1_UPDATE, {**arguments, "out": out, "gradient": out}, size, x.dtype)
        return out
    if len(block.tiles):
        arguments = walk_arguments(block, dynamics.values, x, addend, shape, num_values)
        launch(WALK_PRODUCT, {**arguments, "out": out}, size, x.dtype)
    if len(block.dense_tiles):
        out[:, num_values:] = 0
        kernel = GROUP_PRODUCT[block.dense_shape.rows, 8 if block.aligned else 1]
        columns = num_values // max(len(block.mask_row), 1)
        size = {"rows": block.dense_shape.rows, "columns": columns, "batch": len(x)}
        arguments = group_arguments(block, dynamics.dense, x, addend, shape)
        # other types have one precision
        precision = precision if x.dtype == torch.float32 else "ieee"
        launch(kernel, {**arguments, "out": out}, size, x.dtype, precision)
    return out


def batch_shape(*parts: tuple[int, ...] | torch.Size | Tensor | None) -> tuple[int, ...]:
    """The batch axes of a result, from axes and from tensors with one axis of their own."""
    shapes = [part.shape[:-1] if isinstance(part, Tensor) else part for part in parts]
    return np.broadcast_shapes(*(shape for shape in shapes if shape is not None))


def full_batch(values: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A contiguous ``[batch, values]``, repeated along batch axes that it lacks."""
    return values.expand(*batch, values.shape[-1]).reshape(-1, values.shape[-1]).contiguous()
