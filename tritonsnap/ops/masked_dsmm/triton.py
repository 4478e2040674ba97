"""`masked_dsmm` on a GPU: torch tensors go to the Triton kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.canonical import Addend, block_of
from tritonsnap.ops.canonical_launches import product_launches
from tritonsnap.ops.device import DeviceDynamics, batch_rows, device_packing, full_batch
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
    packing = device_packing(plan.packing("triton"), d.device)
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    batch = batch_shape(given.batch, d.shape[: -2 if form == "dense" else -1], row_scale)
    host = plan.packing("triton")
    blocks = (scaled_product(host, d, form, given.blocks[0], row_scale, batch, precision),)
    return packing.unpack(blocks) if given.flat else blocks


def scaled_product(
    host: Packing,
    d: Tensor,
    form: Form,
    x: Tensor,
    row_scale: Tensor | None,
    batch: tuple[int, ...],
    precision: str,
) -> Tensor:
    """The block of M * (diag(row_scale) D X), ``[*batch, padded nnz(mask)]``."""
    packing = device_packing(host, d.device)
    scale = None if row_scale is None else batch_rows(row_scale, 1, batch)
    dynamics = DeviceDynamics(d, form, packing, batch)
    addend = Addend() if scale is None else Addend(row_scale=scale)
    out = product(packing, dynamics, full_batch(x, batch), addend, precision)
    return out.reshape(*batch, out.shape[-1])


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
        Where to write; may be `x` where the packing is `in_place`.

    Returns
    -------
    [batch, padded nnz(mask)]
    """
    block = block_of(packing)
    if out is None:
        out = x.new_empty(len(x), block.mask_values)
    if not block.elementwise and len(block.dense_tiles):
        out[:, packing.groups.mask.nnz :] = 0
    for one in product_launches(packing, dynamics, x, addend, precision):
        arguments = one.arguments | dict.fromkeys(one.outputs, out)
        launch(one.kernel, arguments, one.sizes, x.dtype, one.precision)
    return out


def batch_shape(*parts: tuple[int, ...] | torch.Size | Tensor | None) -> tuple[int, ...]:
    """The batch axes of a result, from axes and from tensors with one axis of their own."""
    shapes = [part.shape[:-1] if isinstance(part, Tensor) else part for part in parts]
    return np.broadcast_shapes(*(shape for shape in shapes if shape is not None))
