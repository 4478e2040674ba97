"""`masked_outer` on a GPU: torch tensors go to the Triton kernel."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.canonical import outer_arguments
from tritonsnap.ops.device import block_of, device_pairs
from tritonsnap.ops.launch import launch
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
    from tritonsnap.ops.masked_outer.kernels import OUTER_WALK

    num_entries = packing.dynamics.nnz
    out = r.new_empty(len(r), num_entries)
    pairs = device_pairs(host, r.device)
    arguments = outer_arguments(block_of(packing), pairs, r, x, num_entries)
    sizes = {"entries": num_entries, "batch": len(r)}
    launch(OUTER_WALK, {**arguments, "out": out}, sizes, r.dtype)
    return out
