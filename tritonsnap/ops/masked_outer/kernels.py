"""R X^T at the entries of D, for values in canonical order.

The structure is that of `tritonsnap.plan.outer_pairs.OuterPairs` and
`tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, signature_of
from tritonsnap.ops.masked_outer.problems import outer_problem, outer_reference
from tritonsnap.plan.canonical import UNIT


@triton.jit
def outer_walk(
    pair_begin,  # [entries + 1]
    pair_run,  # [pairs]
    pair_row,  # [pairs]
    pair_inner,  # [pairs]
    run_column,  # [runs + 1]
    run_value,  # [runs + 1]
    run_x,  # [runs + 1]
    run_group,  # [runs]
    row_begin,  # [groups + 2]
    x_begin,  # [groups + 2]
    r,  # [batch, r_units * UNIT]
    x,  # [batch, x_units * UNIT]
    num_entries,
    batch,
    r_units,
    x_units,
    out,  # [batch, num_entries]
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum BLOCK entries of one batch row over the columns of all their runs."""
    i_batch = tl.program_id(1).to(tl.int64)
    o_entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    m_entry = o_entry < num_entries
    b_pair = tl.load(pair_begin + o_entry, mask=m_entry, other=0).to(tl.int64)
    b_last = tl.load(pair_begin + o_entry + 1, mask=m_entry, other=0).to(tl.int64)
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([BLOCK], dtype=kind)  # [BLOCK]
    for _ in range(tl.max(b_last - b_pair)):
        m_pair = b_pair < b_last
        b_run = tl.load(pair_run + b_pair, mask=m_pair, other=0).to(tl.int64)
        b_group = tl.load(run_group + b_run, mask=m_pair, other=0).to(tl.int64)
        b_size = tl.load(row_begin + b_group + 1, mask=m_pair, other=0).to(tl.int64)
        b_size -= tl.load(row_begin + b_group, mask=m_pair, other=0)
        b_inner = tl.load(x_begin + b_group + 1, mask=m_pair, other=0).to(tl.int64)
        b_inner -= tl.load(x_begin + b_group, mask=m_pair, other=0)
        b_columns = tl.load(run_column + b_run + 1, mask=m_pair, other=0).to(tl.int64)
        b_columns -= tl.load(run_column + b_run, mask=m_pair, other=0)
        b_r = tl.load(run_value + b_run, mask=m_pair, other=0).to(tl.int64)
        b_r += i_batch * r_units * UNIT + tl.load(pair_row + b_pair, mask=m_pair, other=0)
        b_x = tl.load(run_x + b_run, mask=m_pair, other=0).to(tl.int64)
        b_x += i_batch * x_units * UNIT + tl.load(pair_inner + b_pair, mask=m_pair, other=0)
        for i_column in range(tl.max(b_columns)):
            m_column = i_column < b_columns
            b_left = tl.load(r + b_r, mask=m_column, other=0).to(kind)
            b_sum += b_left * tl.load(x + b_x, mask=m_column, other=0).to(kind)
            b_r += b_size
            b_x += b_inner
        b_pair += 1
    tl.store(out + i_batch * num_entries + o_entry, b_sum.to(out.dtype.element_ty), mask=m_entry)


def _grid(arguments: Arguments) -> Grid:
    return triton.cdiv(arguments["num_entries"], arguments["BLOCK"]), arguments["batch"]


OUTER_WALK = Kernel(
    outer_walk,
    signature=signature_of(outer_walk),
    dtypes=FLOATS,
    configs=config_space(BLOCK=(64, 128, 256), num_warps=(2, 4)),
    heuristic=lambda sizes, dtype, precision, device: {"BLOCK": 128, "num_warps": 4},
    grid=_grid,
    problem=outer_problem,
    reference=outer_reference,
    small=tuple(
        {"entries": entries, "batch": batch} for entries, batch in ((1, 1), (60, 3), (400, 2))
    ),
    large=({"entries": 1 << 13, "batch": 8},),
    constants={"UNIT": UNIT},
)
