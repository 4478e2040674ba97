"""delta^T J on values in canonical order, with the sum over the batch inside.

The structure is that of `tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.influence_gradient.problems import gradient_problem, gradient_reference
from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, find_runs, signature_of
from tritonsnap.plan.canonical import COLUMN_TILE, UNIT


@triton.jit
def column_gradient(
    column_tiles,  # [T, 2]: first and last run
    run_column,  # [runs + 1]
    run_value,  # [runs + 1]
    run_group,  # [runs]
    row_begin,  # [groups + 2]
    mask_row,  # [rows]
    delta,  # [batch, rows]
    j,  # [batch, units * UNIT]
    num_columns,
    batch,
    delta_stride,
    units,
    gradient,  # [batch or 1, columns]
    UNIT: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    SUM: tl.constexpr,
):
    """Compute the gradient of BC columns, summed over the batch or of one batch row."""
    i_tile = tl.program_id(0).to(tl.int64)
    i_first = tl.load(column_tiles + 2 * i_tile).to(tl.int64)
    i_last = tl.load(column_tiles + 2 * i_tile + 1).to(tl.int64)
    o_column = i_tile * BC + tl.arange(0, BC)  # [BC]
    m_column = o_column < num_columns
    b_run = find_runs(run_column, i_first, i_last, i_tile * BC, BC)  # [BC]
    b_group = tl.load(run_group + b_run, mask=m_column, other=0).to(tl.int64)
    b_slot = tl.load(row_begin + b_group, mask=m_column, other=0).to(tl.int64)
    b_size = tl.load(row_begin + b_group + 1, mask=m_column, other=0) - b_slot
    b_local = o_column - tl.load(run_column + b_run, mask=m_column, other=0)
    b_value = tl.load(run_value + b_run, mask=m_column, other=0) + b_local * b_size

    kind = tl.float64 if gradient.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([BC, BS], dtype=kind)  # [BC, BS]
    first_row = 0 if SUM else tl.program_id(1).to(tl.int64)
    last_row = batch if SUM else first_row + 1
    for i_start in range(0, tl.max(b_size), BS):
        o_row = tl.cast(i_start, tl.int64) + tl.arange(0, BS)[None, :]  # [1, BS]
        m_row = o_row < b_size[:, None]  # [BC, BS]
        b_row = tl.load(mask_row + b_slot[:, None] + o_row, mask=m_row, other=0).to(tl.int64)
        for i_row in range(first_row, last_row):
            i_batch = tl.cast(i_row, tl.int64)
            p_j = j + i_batch * units * UNIT
            b_delta = tl.load(delta + i_batch * delta_stride + b_row, mask=m_row, other=0)
            b_j = tl.load(p_j + b_value[:, None] + o_row, mask=m_row, other=0)
            b_sum += b_delta.to(kind) * b_j.to(kind)
    b_out = tl.sum(b_sum, axis=1).to(gradient.dtype.element_ty)
    i_out = 0 if SUM else tl.program_id(1).to(tl.int64)
    tl.store(gradient + i_out * num_columns + o_column, b_out, mask=m_column)


def _declare(rows: int, is_sum: bool) -> Kernel:
    def grid(arguments: Arguments) -> Grid:
        return len(arguments["column_tiles"]), 1 if is_sum else arguments["batch"]

    return Kernel(
        column_gradient,
        name=f"column_gradient_{rows}" + ("_sum" if is_sum else ""),
        signature=signature_of(column_gradient),
        dtypes=FLOATS,
        configs=config_space(num_warps=(2, 4, 8)),
        heuristic=lambda sizes, dtype, precision, device: {"num_warps": 4},
        grid=grid,
        problem=lambda columns, batch: gradient_problem(columns, batch, rows, is_sum),
        reference=lambda **arguments: gradient_reference(is_sum, **arguments),
        max_registers=160,
        small=tuple(
            {"columns": columns, "batch": batch} for columns, batch in ((1, 1), (70, 3), (301, 2))
        ),
        large=({"columns": 1 << 14, "batch": 8},),
        constants={"UNIT": UNIT, "BC": COLUMN_TILE, "BS": rows, "SUM": is_sum},
    )


COLUMN_GRADIENT = {
    (rows, is_sum): _declare(rows, is_sum) for rows in (1, 4, 16) for is_sum in (False, True)
}
"""By rows that a column is read in at once, and whether the batch is summed."""
