"""`masked_outer` on a GPU: torch tensors go to the Triton kernel."""

from __future__ import annotations

import math

from torch import Tensor

from tritonsnap.ops.arguments import Form
from tritonsnap.ops.canonical_launches import outer_launch, outer_sum_launch
from tritonsnap.ops.device import device_entries, device_packing, device_pairs, full_batch
from tritonsnap.ops.launch import run
from tritonsnap.plan.packing import Packing


def outer(packing: Packing, host: Packing, r: Tensor, x: Tensor) -> Tensor:
    """``R X^T`` at the entries of D, ``[batch, nnz(dynamics)]``.

    Parameters
    ----------
    packing, host
        The packing for Triton on the device of the operands, and on the host.
    r : [batch, padded nnz(mask)]
    x : [batch, padded nnz(x)]
    """
    pairs = device_pairs(host, r.device)
    values = run(outer_launch(packing, pairs, r, x), r.dtype, r)["partial"]
    if (last := outer_sum_launch(pairs, values)) is not None:
        values = run(last, r.dtype, r)["out"]
    return values.to(r.dtype)


def entries_of_outer(
    host: Packing, r: Tensor, x: Tensor, batch: tuple[int, ...], form: Form
) -> Tensor:
    """``R X^T`` as the values of D, ``[*batch, nnz(dynamics)]``, or as a dense matrix."""
    packing = device_packing(host, r.device)
    values = outer(packing, host, full_batch(r, batch), full_batch(x, batch))
    values = values.reshape(*batch, values.shape[-1])
    if form == "values":
        return values
    pattern = host.dynamics
    if pattern.nnz == math.prod(pattern.shape):
        return values.reshape(*batch, *pattern.shape[::-1]).mT
    rows, cols = device_entries(packing, r.device)
    matrix = values.new_zeros(*batch, *pattern.shape)
    matrix[..., rows, cols] = values
    return matrix
