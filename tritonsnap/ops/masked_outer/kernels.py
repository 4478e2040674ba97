"""R X^T at the entries of D, for values in canonical order.

The structure is that of `tritonsnap.plan.outer_pairs.OuterPairs` and
`tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, MOST_ROWS, signature_of
from tritonsnap.ops.masked_outer.problems import (
    outer_problem,
    outer_reference,
    tile_problem,
    tile_reference,
)
from tritonsnap.plan.canonical import UNIT
from tritonsnap.plan.outer_pairs import OUTER_TILE
from tritonsnap.tuning import Config, Device, Sizes


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


@triton.jit
def _places(rows, first, size, begin, SIZE: tl.constexpr):
    """For SIZE rows from `begin` on, which of a support each is behind `first`, if it is in it."""
    o_next = tl.arange(0, SIZE)  # [SIZE]
    m_next = first + o_next < size
    b_row = tl.load(rows + first + o_next, mask=m_next, other=0).to(tl.int64) - begin
    b_number = tl.histogram(b_row.to(tl.int32), SIZE, mask=m_next & (b_row < SIZE))
    return tl.minimum(tl.cumsum(b_number, 0) - b_number, SIZE), b_number > 0


@triton.jit
def outer_tiles(
    pair_begin,  # [tiles + 1]
    pair_run,  # [pairs]
    pair_row,  # [pairs]
    pair_inner,  # [pairs]
    run_column,  # [runs + 1]
    run_value,  # [runs + 1]
    run_x,  # [runs + 1]
    run_group,  # [runs]
    row_begin,  # [groups + 2]
    x_begin,  # [groups + 2]
    mask_row,  # [rows]
    x_row,  # [inner rows]
    r,  # [batch, r_units * UNIT]
    x,  # [batch, x_units * UNIT]
    num_rows,
    num_inner,
    batch,
    r_units,
    x_units,
    out,  # [batch, num_inner, num_rows]
    UNIT: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum a tile of D of one batch row over the columns of all runs with rows in it."""
    i_tile, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    down = tl.cdiv(num_rows, SIZE)
    i_row, i_inner = i_tile % down * SIZE, i_tile // down * SIZE
    o_column = tl.arange(0, BC)  # [BC]
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([SIZE, SIZE], dtype=kind)  # [SIZE, SIZE]
    first_pair = tl.load(pair_begin + i_tile).to(tl.int64)
    last_pair = tl.load(pair_begin + i_tile + 1).to(tl.int64)
    for i in range(first_pair, last_pair):
        i_pair = tl.cast(i, tl.int64)
        i_run = tl.load(pair_run + i_pair).to(tl.int64)
        i_group = tl.load(run_group + i_run).to(tl.int64)
        slot, inner = (
            tl.load(row_begin + i_group).to(tl.int64),
            tl.load(x_begin + i_group).to(tl.int64),
        )
        size = tl.minimum(tl.load(row_begin + i_group + 1) - slot, MOST_ROWS).to(tl.int32)
        x_size = tl.minimum(tl.load(x_begin + i_group + 1) - inner, MOST_ROWS).to(tl.int32)
        first, x_first = (
            tl.load(pair_row + i_pair).to(tl.int64),
            tl.load(pair_inner + i_pair).to(tl.int64),
        )
        b_place, m_place = _places(mask_row + slot, first, size, i_row, SIZE)  # [SIZE]
        b_x_place, m_x_place = _places(x_row + inner, x_first, x_size, i_inner, SIZE)  # [SIZE]
        column, last_column = tl.load(run_column + i_run), tl.load(run_column + i_run + 1)
        p_r = r + i_batch * r_units * UNIT + tl.load(run_value + i_run).to(tl.int64) + first
        p_x = x + i_batch * x_units * UNIT + tl.load(run_x + i_run).to(tl.int64) + x_first
        o_r, o_x = o_column[:, None] * size, o_column[:, None] * x_size  # [BC, 1]
        for i_column in range(0, last_column - column, BC):
            m_column = (i_column + o_column < last_column - column)[:, None]  # [BC, 1]
            b_r = tl.load(p_r + (o_r + b_place[None, :]), mask=m_column & m_place[None, :], other=0)
            m_x = m_column & m_x_place[None, :]
            b_x = tl.load(p_x + (o_x + b_x_place[None, :]), mask=m_x, other=0)  # [BC, SIZE]
            b_sum = tl.dot(tl.trans(b_x), b_r, acc=b_sum, input_precision=PRECISION, out_dtype=kind)
            p_r += tl.cast(size, tl.int64) * BC
            p_x += tl.cast(x_size, tl.int64) * BC
    o_inner, o_row = i_inner + tl.arange(0, SIZE)[:, None], i_row + tl.arange(0, SIZE)[None, :]
    p_out = out + i_batch * num_rows * num_inner
    m_out = (o_inner < num_inner) & (o_row < num_rows)
    tl.store(p_out + o_inner * num_rows + o_row, b_sum.to(out.dtype.element_ty), mask=m_out)


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


def _tile_grid(arguments: Arguments) -> Grid:
    down, across = (triton.cdiv(arguments[name], OUTER_TILE) for name in ("num_rows", "num_inner"))
    return down * across, arguments["batch"]


def _tile_default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    columns = 32 if dtype in ("fp16", "bf16") else 16
    return {"BC": columns, "num_warps": 8 if dtype == "fp32" else 4, "num_stages": 1}


OUTER_TILES = Kernel(
    outer_tiles,
    signature=signature_of(outer_tiles),
    dtypes=FLOATS,
    configs=config_space(BC=(16, 32, 64), num_warps=(4, 8), num_stages=(1, 2, 3)),
    heuristic=_tile_default,
    grid=_tile_grid,
    problem=tile_problem,
    reference=tile_reference,
    small=tuple(
        {"rows": rows, "inner": inner, "batch": batch}
        for rows, inner, batch in ((1, 3, 1), (70, 64, 2), (64, 130, 1))
    ),
    large=({"rows": 1024, "inner": 1024, "batch": 8},),
    constants={"UNIT": UNIT, "MOST_ROWS": MOST_ROWS, "SIZE": OUTER_TILE},
    dots=True,
    max_registers=255,
)
