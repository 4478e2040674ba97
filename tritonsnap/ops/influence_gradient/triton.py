"""`influence_gradient` on a GPU: torch tensors go to the Triton kernels."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.arguments import check_plan, check_rows, read_influence
from tritonsnap.ops.canonical_launches import gradient_launch
from tritonsnap.ops.device import batch_rows, device_packing, full_batch
from tritonsnap.ops.launch import run
from tritonsnap.ops.masked_dsmm.triton import batch_shape
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing


def influence_gradient(
    delta: Tensor,
    j: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """`tritonsnap.influence_gradient` on the device of `delta`; packed, one block ``[..., p]``."""
    check_plan(plan)
    packing = device_packing(plan.packing("triton"), delta.device)
    given = read_influence("j", j, packing, "mask")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    batch = batch_shape(given.batch, delta)
    host = plan.packing("triton")
    result = column_gradient(host, delta, given.blocks[0], batch, sum_batch)
    return (result,) if packed else result


def column_gradient(
    host: Packing, delta: Tensor, j: Tensor, batch: tuple[int, ...], sum_batch: bool
) -> Tensor:
    """delta^T J, ``[*batch, p]``, or ``[p]`` summed over the batch."""
    packing = device_packing(host, delta.device)
    one = gradient_launch(packing, batch_rows(delta, 1, batch), full_batch(j, batch), sum_batch)
    gradient = run(one, j.dtype, j)["gradient"]
    return gradient[0] if sum_batch else gradient.reshape(*batch, gradient.shape[-1])
