"""`influence_gradient` on a GPU: torch tensors go to the Triton kernels."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.arguments import check_plan, check_rows, read_influence
from tritonsnap.ops.canonical import gradient_arguments
from tritonsnap.ops.device import batch_rows, block_of, device_packing
from tritonsnap.ops.launch import launch
from tritonsnap.ops.masked_dsmm.triton import batch_shape, full_batch
from tritonsnap.plan.dsmm_plan import DsmmPlan


def influence_gradient(
    delta: Tensor,
    j: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """`tritonsnap.influence_gradient` on the device of `delta`; packed, one block ``[..., p]``."""
    from tritonsnap.ops.influence_gradient.kernels import COLUMN_GRADIENT

    check_plan(plan)
    packing = device_packing(plan, delta.device)
    given = read_influence("j", j, packing, "mask")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    batch = batch_shape(given.batch, delta)
    values = full_batch(given.blocks[0], batch)
    num_columns = plan.mask.shape[1]
    gradient = values.new_empty(1 if sum_batch else len(values), num_columns)
    arguments = gradient_arguments(
        block_of(packing), batch_rows(delta, 1, batch), values, num_columns
    )
    mean_rows = plan.mask.nnz / max(num_columns, 1)
    rows = next(rows for rows in (1, 4, 16) if mean_rows <= rows or rows == 16)
    launch(
        COLUMN_GRADIENT[rows, sum_batch],
        {**arguments, "gradient": gradient},
        {"columns": num_columns, "batch": len(values)},
        values.dtype,
    )
    result = gradient[0] if sum_batch else gradient.reshape(*batch, num_columns)
    return (result,) if packed else result
