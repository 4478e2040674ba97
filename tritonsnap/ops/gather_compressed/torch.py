"""`gather_compressed` in torch: Triton kernels on a GPU, an index_select on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tritonsnap.ops.gather_compressed.checks import check_arguments
from tritonsnap.ops.gather_compressed.launches import gather_launch
from tritonsnap.ops.launch import run
from tritonsnap.sparsity.compression import Projection, Runs


def gather_compressed(compressed: Tensor, projection: Projection) -> Tensor:
    """See `tritonsnap.ops.gather_compressed.gather_compressed`."""
    check_arguments(compressed, projection)
    if projection.compression.is_flat:
        return compressed.flatten(-2)

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(array, device=compressed.device)

    index = tensor(projection.index)
    if compressed.is_cuda and not compressed.is_complex():
        runs = [] if projection.runs is None else [tensor(array) for array in projection.runs]
        return _Gather.apply(compressed, index, runs)
    if projection.compression.has_gaps:
        return _select(compressed, index)
    return compressed.flatten(-2).index_select(-1, index)


def _select(compressed: Tensor, index: Tensor) -> Tensor:
    # -1 means zero: put one in front.
    padded = torch.nn.functional.pad(compressed.flatten(-2), (1, 0))
    return padded.index_select(-1, index + 1)


class _Gather(torch.autograd.Function):
    """The operator with its derivatives; forward mode is what custom operators lack."""

    @staticmethod
    def forward(compressed: Tensor, index: Tensor, runs: list[Tensor]) -> Tensor:
        gathered: Tensor = _gather_compressed(compressed, index, runs)
        return gathered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        compressed, index, ctx.runs = inputs
        ctx.shape = compressed.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        *batch, colors, columns = ctx.shape
        # Every place has one value, except the one in front, which is thrown away.
        zeros = gradient.new_zeros(*batch, colors * columns + 1)
        scattered = zeros.index_copy(-1, index.long() + 1, gradient)[..., 1:]
        return scattered.reshape(ctx.shape), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Gather.apply(tangent, *ctx.saved_tensors, ctx.runs)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], compressed: Tensor, index: Tensor, runs: list[Tensor]
    ) -> tuple[Tensor, int]:
        moved = compressed.movedim(in_dims[0], 0)  # nothing else is mapped
        return _Gather.apply(moved, index, runs), 0


@torch.library.custom_op("tritonsnap::gather_compressed", mutates_args=(), device_types="cpu")
def _gather_compressed(compressed: Tensor, index: Tensor, runs: list[Tensor]) -> Tensor:
    return _select(compressed, index)


@_gather_compressed.register_kernel("cuda")
def launch_kernels(compressed: Tensor, index: Tensor, runs: list[Tensor]) -> Tensor:
    """Launch the kernel for runs where there are any, else that for an index."""
    *batch, colors, columns = compressed.shape
    flat = compressed.reshape(math.prod(batch), colors * columns).contiguous()
    one = gather_launch(flat, index, Runs(*runs) if runs else None, columns)
    values = run(one, flat.dtype, flat)["values"]
    return values.reshape(*batch, len(index))


@_gather_compressed.register_fake
def _(compressed: Tensor, index: Tensor, runs: list[Tensor]) -> Tensor:
    return compressed.new_empty(*compressed.shape[:-2], len(index))
