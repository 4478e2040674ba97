"""`coo_to_csr` in PyTorch: an operator with a CPU kernel, Triton kernels, vmap and a fake."""

from __future__ import annotations

import torch
from torch import Tensor

from tritonsnap.ops.coo_to_csr.checks import check_arguments, pointer_bits
from tritonsnap.ops.coo_to_csr.launches import (
    count_launch,
    finish_launch,
    scan_launch,
    search_launch,
)
from tritonsnap.ops.coo_to_csr.numpy import coo_to_csr as coo_to_csr_numpy
from tritonsnap.ops.launch import launch, run


def coo_to_csr(rows: Tensor, num_rows: int, *, indices_are_sorted: bool = False) -> Tensor:
    """Compress row indices to row pointers; see `tritonsnap.coo_to_csr`."""
    check_arguments(rows, num_rows)
    pointers: Tensor = _coo_to_csr(rows, num_rows, indices_are_sorted)
    return pointers


@torch.library.custom_op("tritonsnap::coo_to_csr", mutates_args=(), device_types="cpu")
def _coo_to_csr(rows: Tensor, num_rows: int, indices_are_sorted: bool) -> Tensor:
    pointers = coo_to_csr_numpy(rows.numpy(), num_rows, indices_are_sorted=indices_are_sorted)
    return torch.from_numpy(pointers)


@_coo_to_csr.register_kernel("cuda")
def _(rows: Tensor, num_rows: int, indices_are_sorted: bool) -> Tensor:
    pointers = row_pointers(rows, num_rows, indices_are_sorted)
    # each of the kernels leaves out what is not in a row
    torch._assert_async(
        pointers[-1] - pointers[0] == rows.numel(), f"`rows` must be in [0, {num_rows})"
    )
    return pointers


def row_pointers(rows: Tensor, num_rows: int, indices_are_sorted: bool) -> Tensor:
    """Launch the Triton kernels; rows out of range are counted in no pointer's difference."""
    rows = rows.contiguous()
    dtype = _pointer_dtype(rows)
    if rows.numel() == 0 or num_rows == 0:
        return rows.new_zeros(num_rows + 1, dtype=dtype)
    if indices_are_sorted:
        one = search_launch(rows, num_rows)
        pointers = rows.new_empty(num_rows + 1, dtype=dtype)
        launch(one.kernel, {**one.arguments, "pointers": pointers}, one.sizes, rows.dtype)
        return pointers
    counts = run(count_launch(rows, num_rows), rows.dtype, rows)["counts"]
    scanned = run(scan_launch(counts), dtype, rows)
    return run(finish_launch(scanned["sums"], scanned["totals"]), dtype, rows)["pointers"]


@_coo_to_csr.register_fake
def _(rows: Tensor, num_rows: int, indices_are_sorted: bool) -> Tensor:
    return rows.new_empty(num_rows + 1, dtype=_pointer_dtype(rows))


@_coo_to_csr.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], rows: Tensor, num_rows: int, is_sorted: bool
) -> tuple[Tensor, int]:
    assert in_dims[0] is not None  # the only tensor
    batch = rows.movedim(in_dims[0], 0).contiguous()
    return torch.stack([_coo_to_csr(row, num_rows, is_sorted) for row in batch]), 0


def _pointer_dtype(rows: Tensor) -> torch.dtype:
    bits = pointer_bits(str(rows.dtype), rows.numel())
    return torch.int32 if bits == 32 else torch.int64
