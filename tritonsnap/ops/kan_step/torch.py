"""`kan_step` in PyTorch: Triton kernels on a GPU; dense hat vectors elsewhere and for autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from tritonsnap.ops.kan_step import hats
from tritonsnap.ops.launch import launch


def inner_sums(positions: Tensor, inner: Tensor) -> Tensor:
    """Sum the inner functions over the inputs; see `tritonsnap.ops.kan_step.inner_sums`."""
    if not _runs_kernels(positions, inner):
        return hats.inner_sums(positions, inner)
    return launch_inner_sums(positions, inner)


def inner_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.inner_change`."""
    if not _runs_kernels(positions, weights):
        return hats.inner_change(positions, weights, knots)
    return launch_inner_change(positions, weights, knots)


def outer_values(positions: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluate the outer functions; see `tritonsnap.ops.kan_step.outer_values`."""
    if not _runs_kernels(positions, outer):
        return hats.outer_values(positions, outer)
    return launch_outer_values(positions, outer)


def outer_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Sum weighted hat vectors; see `tritonsnap.ops.kan_step.outer_change`."""
    if not _runs_kernels(positions, weights):
        return hats.outer_change(positions, weights, knots)
    return launch_outer_change(positions, weights, knots)


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
    runs = _runs_kernels(inner_positions, outer_positions, slopes)
    form = launch_gram if runs else hats.gram
    return form(
        inner_positions,
        outer_positions,
        slopes,
        inner_knots=inner_knots,
        outer_knots=outer_knots,
        inner_gain=inner_gain,
        outer_gain=outer_gain,
    )


def launch_inner_sums(positions: Tensor, inner: Tensor) -> Tensor:
    """Launch the kernel of `inner_sums`."""
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_SUMS

    inputs, knots, addends = inner.shape
    sizes = {"records": len(positions), "inputs": inputs, "knots": knots, "addends": addends}
    sums = positions.new_empty(len(positions), addends)
    arguments = {
        "positions": positions.contiguous(),
        "inner": inner.contiguous(),
        **sizes,
        "sums": sums,
    }
    launch(KAN_INNER_SUMS, arguments, sizes, positions.dtype)
    return sums


def launch_inner_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Launch the kernel of `inner_change`."""
    from tritonsnap.ops.kan_step.kernels import KAN_INNER_CHANGE

    records, inputs = positions.shape
    addends = weights.shape[1]
    sizes = {"records": records, "inputs": inputs, "knots": knots, "addends": addends}
    change = positions.new_empty(inputs, knots, addends)
    arguments = {
        "positions": positions.contiguous(),
        "weights": weights.contiguous(),
        **sizes,
        "change": change,
    }
    launch(KAN_INNER_CHANGE, arguments, sizes, positions.dtype)
    return change


def launch_outer_values(positions: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Launch the kernel of `outer_values`."""
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_VALUES

    targets, knots, addends = outer.shape
    records = len(positions)
    numbers = {"records": records, "knots": knots, "addends": addends}
    sums = positions.new_empty(targets, records)
    rises = positions.new_empty(targets, records, addends)
    arguments = {
        "positions": positions.contiguous(),
        "outer": outer.contiguous(),
        **numbers,
        "sums": sums,
        "rises": rises,
    }
    launch(KAN_OUTER_VALUES, arguments, {**numbers, "targets": targets}, positions.dtype)
    return sums, rises


def launch_outer_change(positions: Tensor, weights: Tensor, knots: int) -> Tensor:
    """Launch the kernel of `outer_change`."""
    from tritonsnap.ops.kan_step.kernels import KAN_OUTER_CHANGE

    records, addends = positions.shape
    numbers = {"records": records, "knots": knots, "addends": addends}
    change = positions.new_empty(len(weights), knots, addends)
    arguments = {
        "positions": positions.contiguous(),
        "weights": weights.contiguous(),
        **numbers,
        "change": change,
    }
    launch(KAN_OUTER_CHANGE, arguments, {**numbers, "targets": len(weights)}, positions.dtype)
    return change


def launch_gram(
    inner_positions: Tensor,
    outer_positions: Tensor,
    slopes: Tensor,
    *,
    inner_knots: int,
    outer_knots: int,
    inner_gain: float,
    outer_gain: float,
) -> Tensor:
    """Launch the kernel of `gram`."""
    from tritonsnap.ops.kan_step.kernels import KAN_GRAM

    targets, records, addends = slopes.shape
    rows = targets * records
    form = slopes.new_empty(rows, rows)
    sizes = {
        "records": records,
        "targets": targets,
        "inputs": inner_positions.shape[1],
        "addends": addends,
        "inner_knots": inner_knots,
        "outer_knots": outer_knots,
    }
    arguments = {
        "inner_positions": inner_positions.contiguous(),
        "outer_positions": outer_positions.contiguous(),
        "slopes": slopes.contiguous(),
        "gains": slopes.new_tensor([inner_gain, outer_gain]),
        **sizes,
        "gram": form,
    }
    launch(KAN_GRAM, arguments, sizes, slopes.dtype)
    return form


def _runs_kernels(*tensors: Tensor) -> bool:
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return tensors[0].is_cuda and not gradient
