"""`kan_step` in PyTorch: Triton kernels on a GPU; dense hat vectors elsewhere and for autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from tritonsnap.ops.kan_step import hats
from tritonsnap.ops.kan_step.launches import (
    gram_launch,
    inner_change_launch,
    inner_sums_launch,
    outer_change_launch,
    outer_values_launch,
)
from tritonsnap.ops.launch import run


def inner_sums(positions: Tensor, inner: Tensor) -> Tensor:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    if not _runs_kernels(positions, inner):
        return hats.inner_sums(positions, inner)
    one = inner_sums_launch(positions.contiguous(), inner.contiguous())
    return run(one, inner.dtype, inner)["sums"]


def inner_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    if not _runs_kernels(positions, weights):
        return hats.inner_change(positions, weights, knots)
    one = inner_change_launch(positions.contiguous(), weights.contiguous(), knots)
    return run(one, weights.dtype, weights)["change"]


def outer_values(positions: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    if not _runs_kernels(positions, outer):
        return hats.outer_values(positions, outer)
    found = run(outer_values_launch(positions.contiguous(), outer.contiguous()), outer.dtype, outer)
    return found["sums"], found["rises"]


def outer_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    if not _runs_kernels(positions, weights):
        return hats.outer_change(positions, weights, knots)
    one = outer_change_launch(positions.contiguous(), weights.contiguous(), knots)
    return run(one, weights.dtype, weights)["change"]


def gram(
    inner_positions: Tensor,
    outer_positions: Tensor,
    slopes: Tensor,
    *,
    inner_knots: int,
    outer_knots: int,
    inner_gain: float,
    outer_gain: float,
) -> Tensor:
    """Multiply the Jacobian with its transpose; see `tritonsnap.ops.kan_step.gram`."""
    operands = inner_positions, outer_positions, slopes
    knots = {"inner_knots": inner_knots, "outer_knots": outer_knots}
    if not _runs_kernels(*operands):
        return hats.gram(*operands, **knots, inner_gain=inner_gain, outer_gain=outer_gain)
    gains = slopes.new_tensor([inner_gain, outer_gain])
    inner, outer, own = (operand.contiguous() for operand in operands)
    one = gram_launch(inner, outer, own, gains, **knots)
    return run(one, slopes.dtype, slopes)["gram"]


def _runs_kernels(*tensors: Tensor) -> bool:
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return tensors[0].is_cuda and not gradient
