"""R X^T at the entries of D, for values in canonical order.

The structure is that of `tritonsnap.plan.outer_pairs.OuterPairs` and
`tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.kernel import Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, MOST_ROWS, signature_of
from tritonsnap.ops.masked_outer.problems import (
    sum_problem,
    sum_reference,
    tile_problem,
    tile_reference,
    walk_problem,
    walk_reference,
)
from tritonsnap.plan.canonical import UNIT
from tritonsnap.plan.outer_pairs import COLUMNS, OUTER_TILE
from tritonsnap.tuning import Config, Device, Sizes


@triton.jit
def outer_walk(
    pair_group,  # [pairs]
    pair_row,  # [pairs]
    pair_inner,  # [pairs]
    run_begin,  # [groups + 1]
    group_run,  # [runs]
    run_column,  # [runs + 1]
    run_value,  # [runs + 1]
    run_x,  # [runs + 1]
    row_begin,  # [groups + 2]
    x_begin,  # [groups + 2]
    r,  # [batch, r_units * UNIT]
    x,  # [batch, x_units * UNIT]
    num_partial,
    batch,
    r_units,
    x_units,
    square,  # X and M share supports
    partial,  # [batch, num_partial]
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    B: tl.constexpr,
):
    """Sum products of BLOCK pairs of rows of B batch rows over the columns of their groups."""
    i_block, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_batch = i_batch * B + tl.arange(0, B)[:, None, None]  # [B, 1, 1]
    o_pair = i_block * BLOCK + tl.arange(0, BLOCK)[:, None]  # [BLOCK, 1]
    o_column = tl.arange(0, COLUMNS)[None, :]  # [1, COLUMNS]
    m_pair, m_batch = o_pair < num_partial, o_batch < batch
    b_group = tl.load(pair_group + o_pair, mask=m_pair, other=0).to(tl.int64)
    b_row = tl.load(pair_row + o_pair, mask=m_pair, other=0).to(tl.int64)
    b_inner = tl.load(pair_inner + o_pair, mask=m_pair, other=0).to(tl.int64)
    b_size = tl.load(row_begin + b_group + 1, mask=m_pair, other=0).to(tl.int64)
    b_size -= tl.load(row_begin + b_group, mask=m_pair, other=0)
    b_x_size = b_size
    if square == 0:
        b_x_size = tl.load(x_begin + b_group + 1, mask=m_pair, other=0).to(tl.int64)
        b_x_size -= tl.load(x_begin + b_group, mask=m_pair, other=0)
    b_run = tl.load(run_begin + b_group, mask=m_pair, other=0).to(tl.int64)
    b_last = tl.load(run_begin + b_group + 1, mask=m_pair, other=0).to(tl.int64)
    kind = tl.float64 if partial.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([B, BLOCK, COLUMNS], dtype=kind)  # [B, BLOCK, COLUMNS]
    for _ in range(tl.max(b_last - b_run)):
        m_run = b_run < b_last
        b_own = tl.load(group_run + b_run, mask=m_run, other=0).to(tl.int64)
        b_columns = tl.load(run_column + b_own + 1, mask=m_run, other=0).to(tl.int64)
        b_columns -= tl.load(run_column + b_own, mask=m_run, other=0)
        b_r = tl.load(run_value + b_own, mask=m_run, other=0).to(tl.int64)
        b_x = b_r + b_inner
        if square == 0:
            b_x = tl.load(run_x + b_own, mask=m_run, other=0).to(tl.int64) + b_inner
        b_r += b_row + o_column * b_size  # [BLOCK, COLUMNS]
        b_x += o_column * b_x_size
        for i_column in range(0, tl.max(b_columns), COLUMNS):
            m_both = m_batch & (i_column + o_column < b_columns)[None, :, :]
            o_r = o_batch * r_units * UNIT + b_r[None, :, :]
            o_x = o_batch * x_units * UNIT + b_x[None, :, :]
            b_left = tl.load(r + o_r, mask=m_both, other=0).to(kind)
            b_sum += b_left * tl.load(x + o_x, mask=m_both, other=0).to(kind)
            b_r += b_size * COLUMNS
            b_x += b_x_size * COLUMNS
        b_run += 1
    b_sum = tl.sum(b_sum, axis=2, keep_dims=True).to(partial.dtype.element_ty)  # [B, BLOCK, 1]
    o_out = o_batch * num_partial + o_pair[None, :, :]
    tl.store(partial + o_out, b_sum, mask=m_batch & m_pair[None, :, :])


@triton.jit
def _places(rows, first, size, begin, local, SIZE: tl.constexpr):
    """For SIZE rows of a tile, which of a support each is behind `first`, if it is in it.

    The tile's rows are those of the support from `first` on if `local`, else those of D from
    `begin` on.
    """
    o_next = tl.arange(0, SIZE)  # [SIZE]
    m_next = first + o_next < size
    b_place, m_place = o_next, m_next
    if local == 0:
        b_row = tl.load(rows + first + o_next, mask=m_next, other=0).to(tl.int64) - begin
        b_number = tl.histogram(b_row.to(tl.int32), SIZE, mask=m_next & (b_row < SIZE))
        b_place, m_place = tl.cumsum(b_number, 0) - b_number, b_number > 0
    return tl.minimum(b_place, SIZE), m_place


@triton.jit
def outer_tiles(
    tiles,  # [T, 8]: pieces' begin and end, first row and inner row, numbers of both, place, step
    pieces,  # [pieces, 3]: run, first row and inner row
    kept,  # [K, 3, SIZE]: place of the first product, and bits of each half of the rows
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
    num_partial,
    batch,
    r_units,
    x_units,
    local,  # rows of tiles are numbered within a group
    partial,  # [batch, num_partial]
    UNIT: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum products of a tile's rows of one batch row over the columns of all its runs."""
    i_tile, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_row = tl.load(tiles + 8 * i_tile + 2).to(tl.int64)
    i_inner = tl.load(tiles + 8 * i_tile + 3).to(tl.int64)
    o_column = tl.arange(0, BC)  # [BC]
    kind = tl.float64 if partial.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([SIZE, SIZE], dtype=kind)  # [SIZE, SIZE]
    first_piece = tl.load(tiles + 8 * i_tile).to(tl.int64)
    last_piece = tl.load(tiles + 8 * i_tile + 1).to(tl.int64)
    for i in range(first_piece, last_piece):
        p_piece = pieces + 3 * tl.cast(i, tl.int64)
        i_run = tl.load(p_piece).to(tl.int64)
        i_group = tl.load(run_group + i_run).to(tl.int64)
        slot, inner = (
            tl.load(row_begin + i_group).to(tl.int64),
            tl.load(x_begin + i_group).to(tl.int64),
        )
        size = tl.minimum(tl.load(row_begin + i_group + 1) - slot, MOST_ROWS).to(tl.int32)
        x_size = tl.minimum(tl.load(x_begin + i_group + 1) - inner, MOST_ROWS).to(tl.int32)
        first, x_first = tl.load(p_piece + 1).to(tl.int64), tl.load(p_piece + 2).to(tl.int64)
        b_place, m_place = _places(mask_row + slot, first, size, i_row, local, SIZE)  # [SIZE]
        b_x_place, m_x_place = _places(x_row + inner, x_first, x_size, i_inner, local, SIZE)
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
    o_inner, o_row = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    rows, inners = tl.load(tiles + 8 * i_tile + 4), tl.load(tiles + 8 * i_tile + 5)
    place = tl.load(tiles + 8 * i_tile + 6).to(tl.int64) & 0xFFFFFFFF  # stored without a sign
    step = tl.load(tiles + 8 * i_tile + 7).to(tl.int64) & 0xFFFFFFFF
    listed, begin = tl.where(step == 0, inners, 0), tl.where(step == 0, 0, place)
    p_kept, m_kept = kept + place * (3 * SIZE) + o_inner, o_inner < listed  # [SIZE, 1]
    b_first = tl.load(p_kept, mask=m_kept, other=0).to(tl.int64) & 0xFFFFFFFF
    b_first += begin + o_inner * step
    b_left = tl.load(p_kept + SIZE, mask=m_kept, other=-1)
    b_right = tl.load(p_kept + 2 * SIZE, mask=m_kept, other=-1)
    m_tile = (o_inner < inners) & (o_row < rows)  # [SIZE, SIZE]
    b_kept = tl.where(m_tile, tl.where(o_row < 32, b_left, b_right) >> o_row % 32 & 1, 0)
    o_out = b_first + tl.cumsum(b_kept, 1) - b_kept  # [SIZE, SIZE]
    p_out = partial + i_batch * num_partial
    tl.store(p_out + o_out, b_sum.to(partial.dtype.element_ty), mask=b_kept != 0)


@triton.jit
def outer_sum(
    entry_begin,  # [num_entries + 1]
    entry_partial,  # [num_partial]
    partial,  # [batch, num_partial]
    num_entries,
    num_partial,
    batch,
    out,  # [batch, num_entries]
    BLOCK: tl.constexpr,
    B: tl.constexpr,
):
    """Add the partial sums of BLOCK entries of D of B batch rows."""
    i_block, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_batch = i_batch * B + tl.arange(0, B)[:, None]  # [B, 1]
    o_entry = i_block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    m_entry, m_batch = o_entry < num_entries, o_batch < batch
    b_next = tl.load(entry_begin + o_entry, mask=m_entry, other=0).to(tl.int64)
    b_last = tl.load(entry_begin + o_entry + 1, mask=m_entry, other=0).to(tl.int64)
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([B, BLOCK], dtype=kind)  # [B, BLOCK]
    for _ in range(tl.max(b_last - b_next)):
        m_next = b_next < b_last
        b_place = tl.load(entry_partial + b_next, mask=m_next, other=0).to(tl.int64)
        o_partial = o_batch * num_partial + b_place[None, :]
        b_sum += tl.load(partial + o_partial, mask=m_batch & m_next[None, :], other=0).to(kind)
        b_next += 1
    o_out = o_batch * num_entries + o_entry[None, :]
    tl.store(out + o_out, b_sum.to(out.dtype.element_ty), mask=m_batch & m_entry[None, :])


def _sum_default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    block = 128 if max(sizes.values()) < 1 << 15 else 256
    return {"BLOCK": block, "B": min(sizes["batch"], 2 if dtype == "fp64" else 4), "num_warps": 4}


def _declare_walk(columns: int) -> Kernel:
    def default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
        config = _sum_default(sizes, dtype, precision, device)
        return config if columns == 1 else {**config, "BLOCK": 256 // columns}

    return Kernel(
        outer_walk,
        name=f"outer_walk_{columns}",
        signature=signature_of(outer_walk),
        dtypes=FLOATS,
        configs=config_space(
            BLOCK=tuple(lanes // columns for lanes in (64, 128, 256)),
            B=(1, 2, 4),
            num_warps=(2, 4),
        ),
        heuristic=default,
        grid=lambda arguments: (
            triton.cdiv(arguments["num_partial"], arguments["BLOCK"]),
            triton.cdiv(arguments["batch"], arguments["B"]),
        ),
        problem=walk_problem,
        reference=walk_reference,
        small=tuple(
            {"pairs": pairs, "batch": batch} for pairs, batch in ((3, 1), (90, 3), (800, 2))
        ),
        large=({"pairs": 1 << 14, "batch": 8},),
        constants={"UNIT": UNIT, "COLUMNS": columns},
    )


OUTER_WALK = {columns: _declare_walk(columns) for columns in (1, COLUMNS)}
"""By how many columns are taken at once."""


def _tile_default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BC": 32 if dtype in ("fp16", "bf16") else 16, "num_warps": 8, "num_stages": 1}


OUTER_TILES = Kernel(
    outer_tiles,
    signature=signature_of(outer_tiles),
    dtypes=FLOATS,
    configs=config_space(BC=(16, 32, 64), num_warps=(4, 8), num_stages=(1, 2, 3)),
    heuristic=_tile_default,
    grid=lambda arguments: (len(arguments["tiles"]), arguments["batch"]),
    problem=tile_problem,
    reference=tile_reference,
    small=tuple(
        {"tiles": tiles, "batch": batch} for tiles, batch in ((1, 1), (4, 2), (6, 1), (9, 3))
    ),
    large=({"tiles": 256, "batch": 8},),
    constants={"UNIT": UNIT, "MOST_ROWS": MOST_ROWS, "SIZE": OUTER_TILE},
    dots=True,
    max_registers=255,
)

OUTER_SUM = Kernel(
    outer_sum,
    signature=signature_of(outer_sum),
    dtypes=FLOATS,
    configs=config_space(BLOCK=(64, 128, 256), B=(1, 2, 4), num_warps=(2, 4)),
    heuristic=_sum_default,
    grid=lambda arguments: (
        triton.cdiv(arguments["num_entries"], arguments["BLOCK"]),
        triton.cdiv(arguments["batch"], arguments["B"]),
    ),
    problem=sum_problem,
    reference=sum_reference,
    small=tuple({"entries": entries, "batch": batch} for entries, batch in ((1, 1), (300, 3))),
    large=({"entries": 1 << 14, "batch": 8},),
)
