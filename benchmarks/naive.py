"""M * (D X) as snapjax computes it: one thread per nonzero of M, walking a column of X.

The baseline of the density sweep and of the traffic model; nothing in tritonsnap uses it. Each
thread loads the row and the column of its nonzero and the column's pointers, and then sums
D[row, k] * X[k, column] over the nonzeros k of the column. Here a thread is a lane of a Triton
tile, so the lanes of a program take as many steps as the longest of their columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tritonsnap.sparsity import SparsityPattern
from tritonsnap.sparsity.indices import index_dtype

BLOCK = 128


@triton.jit
def naive_dsmm_kernel(
    p_out,  # [batch, nnz]
    p_d,  # [batch, inner, inner]
    p_x,  # [batch, x_nnz]
    p_rows,  # [nnz]
    p_cols,  # [nnz]
    p_x_indptr,  # [columns + 1]
    p_x_rows,  # [x_nnz]
    nnz,
    x_nnz,
    rows,
    inner,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK values of one batch row."""
    i_batch = tl.program_id(1).to(tl.int64)
    o_out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    m_out = o_out < nnz
    b_row = tl.load(p_rows + o_out, mask=m_out, other=0).to(tl.int64)
    b_col = tl.load(p_cols + o_out, mask=m_out, other=0)
    b_start = tl.load(p_x_indptr + b_col, mask=m_out, other=0)
    b_stop = tl.load(p_x_indptr + b_col + 1, mask=m_out, other=0)
    p_d_row = p_d + i_batch * rows * inner + b_row * inner
    b_sum = tl.zeros([BLOCK], dtype=p_out.dtype.element_ty)
    for step in range(tl.max(b_stop - b_start)):
        o_x = b_start + step
        m_x = o_x < b_stop
        b_k = tl.load(p_x_rows + o_x, mask=m_x, other=0)
        b_d = tl.load(p_d_row + b_k, mask=m_x, other=0.0)
        b_sum += b_d * tl.load(p_x + i_batch * x_nnz + o_x, mask=m_x, other=0.0)
    tl.store(p_out + i_batch * nnz + o_out, b_sum, mask=m_out)


class NaiveDsmm:
    """M * (D X) by one thread per nonzero.

    Parameters
    ----------
    x, mask
        Patterns of X ``[inner, columns]`` and M ``[rows, columns]``.
    device
        Where the index arrays, and so all operands, live.
    """

    def __init__(
        self, x: SparsityPattern, mask: SparsityPattern, device: torch.device | str = "cpu"
    ) -> None:
        if x.shape[1] != mask.shape[1]:
            raise ValueError(
                f"`x` and `mask` must have as many columns, got shapes {x.shape} and {mask.shape}"
            )
        self.x, self.mask = x, mask
        self.rows = torch.tensor(mask.rows, device=device)
        self.cols = torch.tensor(mask.cols, device=device)
        self.x_rows = torch.tensor(x.rows, device=device)
        self.x_indptr = torch.tensor(x.indptr.astype(index_dtype(x.nnz + 1)), device=device)

    def __call__(self, d: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Compute the product.

        Parameters
        ----------
        d : float32 or float64 [batch, rows, inner]
            Contiguous.
        x : [batch, nnz(X)]
            Contiguous, of the same dtype.

        Returns
        -------
        [batch, nnz(M)]
            The values at the nonzeros of M.
        """
        batch = len(d)
        _check("d", d, (batch, self.mask.shape[0], self.x.shape[0]), d.dtype)
        _check("x", x, (batch, self.x.nnz), d.dtype)
        out = torch.empty((batch, self.mask.nnz), dtype=d.dtype, device=d.device)
        grid = (triton.cdiv(self.mask.nnz, BLOCK), batch)
        naive_dsmm_kernel[grid](
            out,
            d,
            x,
            self.rows,
            self.cols,
            self.x_indptr,
            self.x_rows,
            self.mask.nnz,
            self.x.nnz,
            *d.shape[1:],
            BLOCK=BLOCK,
            num_warps=BLOCK // 32,
        )
        return out

    @property
    def flops(self) -> int:
        """Operations for one batch row: a multiply-add for each nonzero of each walked column."""
        sizes = self.x.indptr[1:] - self.x.indptr[:-1]
        return 2 * int(sizes[self.mask.cols].sum())


def _check(name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"`{name}` must be float32 or float64, got {dtype}")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(
            f"`{name}` must be contiguous, {dtype} and of shape {shape}, "
            f"got {tensor.dtype} and {tuple(tensor.shape)}"
        )
