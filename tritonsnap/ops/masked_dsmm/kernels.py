"""M * (D X) + I on values in canonical order: a walk over D's nonzeros, and dense products.

Both kernels serve `masked_dsmm` and `influence_update`: what is added to the product (`mode`)
decides. The arrays of structure are those of `tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.problems import (
    dense_problem,
    dense_reference,
    walk_problem,
    walk_reference,
)
from tritonsnap.plan.canonical import DENSE_SHAPES, TILE, UNIT
from tritonsnap.tuning import Config, Device, Sizes


@triton.jit
def find_runs(run_begin, i_first, i_last, first, BLOCK: tl.constexpr):
    """Which run each of BLOCK numbers from `first` on lies in: those of `first` and last given."""
    o_block = tl.arange(0, BLOCK)  # [BLOCK]
    b_begun = tl.zeros([BLOCK], dtype=tl.int32)  # [BLOCK]
    for i_run in range(i_first + 1, i_last + 1, BLOCK):
        o_run = tl.cast(i_run, tl.int64) + o_block
        b_begin = tl.load(run_begin + o_run, mask=o_run <= i_last, other=0) - first
        b_begun += tl.histogram(b_begin.to(tl.int32), BLOCK, mask=o_run <= i_last)
    return i_first + tl.cumsum(b_begun, 0)


@triton.jit
def immediate(
    i_batch, b_row, b_column, m_value, gains, sources, column_gain, column_source, gain_stride,
    source_stride, num_rows, num_units,
):  # fmt: skip
    """``gains[target, row] * sources[source]`` where the row belongs to the column's unit."""
    b_gain = tl.load(column_gain + b_column, mask=m_value, other=0).to(tl.int32)
    b_source = tl.load(column_source + b_column, mask=m_value, other=0).to(tl.int64)
    b_part = b_row // num_units * num_units
    m_own = m_value & (b_row - b_part == b_gain % num_rows)
    o_gain = i_batch * gain_stride + (b_gain + b_part)
    b_left = tl.load(gains + o_gain, mask=m_own, other=0)
    b_right = tl.load(sources + i_batch * source_stride + b_source, mask=m_own, other=0)
    return b_left, b_right


@triton.jit
def walk_product(
    tiles,  # [T, 3]: tile, first and last run
    run_value,  # [runs + 1]
    run_x,  # [runs + 1]
    run_column,  # [runs + 1]
    run_group,  # [runs]
    row_begin,  # [groups + 2]
    x_begin,  # [groups + 2]
    mask_row,  # [rows]
    nonzero_begin,  # [rows + 1]
    x_offset,  # [nonzeros]
    position,  # [nonzeros]
    is_dense,  # [groups + 1]
    d,  # [batch, nnz(D)]
    x,  # [batch, x_units * UNIT]
    row_scale,  # [batch, num_rows]
    added,  # [batch, out_units * UNIT], or [batch, num_colors * num_columns] in mode 3
    gains,  # [batch, targets * num_rows]
    sources,  # [batch, sources]
    column_gain,  # [columns]
    column_source,  # [columns]
    color,  # [num_values]: `num_colors` for nothing
    num_whole,
    num_values,
    batch,
    d_stride,
    x_units,
    out_units,
    scale_stride,
    added_stride,
    gain_stride,
    source_stride,
    num_rows,
    num_columns,
    num_units,
    num_colors,
    square,  # X and M share supports
    scaled,  # rows of D are scaled
    mode,  # what is added: 0 nothing, 1 gains * sources, 2 `added`, 3 what `color` reads of it
    out,  # [batch, out_units * UNIT]
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    B: tl.constexpr,
):
    """Compute TILE consecutive values of B batch rows."""
    i_tile, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_batch = i_batch * B + tl.arange(0, B)[:, None]  # [B, 1]
    number = tl.load(tiles + 3 * i_tile).to(tl.int64)
    i_first = tl.load(tiles + 3 * i_tile + 1).to(tl.int64)
    i_last = tl.load(tiles + 3 * i_tile + 2).to(tl.int64)
    o_value = number * TILE + tl.arange(0, TILE)  # [TILE]
    m_value = o_value < num_values

    b_run = find_runs(run_value, i_first, i_last, number * TILE, TILE)  # [TILE]
    b_local = o_value - tl.load(run_value + b_run, mask=m_value, other=0)
    b_group = tl.load(run_group + b_run, mask=m_value, other=0).to(tl.int64)
    b_slot = tl.load(row_begin + b_group, mask=m_value, other=0).to(tl.int64)
    b_size = tl.load(row_begin + b_group + 1, mask=m_value, other=1) - b_slot
    b_column = b_local // b_size  # in the run
    b_slot += b_local - b_column * b_size
    if square:
        b_x = o_value - (b_local - b_column * b_size)
    else:
        b_inner = tl.load(x_begin + b_group, mask=m_value, other=0).to(tl.int64)
        b_inner = tl.load(x_begin + b_group + 1, mask=m_value, other=0) - b_inner
        b_x = tl.load(run_x + b_run, mask=m_value, other=0) + b_column * b_inner

    b_nonzero = tl.load(nonzero_begin + b_slot, mask=m_value, other=0).to(tl.int64)
    b_end = tl.load(nonzero_begin + b_slot + 1, mask=m_value, other=0).to(tl.int64)
    m_batch = o_batch < batch
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([B, TILE], dtype=kind)  # [B, TILE]
    for _ in range(tl.max(b_end - b_nonzero)):
        m_term = b_nonzero < b_end
        b_d = tl.load(position + b_nonzero, mask=m_term, other=0).to(tl.int64)
        b_offset = tl.load(x_offset + b_nonzero, mask=m_term, other=0)
        m_both = m_batch & m_term[None, :]
        b_left = tl.load(d + o_batch * d_stride + b_d[None, :], mask=m_both, other=0)
        o_x = o_batch * x_units * UNIT + (b_x + b_offset)[None, :]
        b_sum += b_left.to(kind) * tl.load(x + o_x, mask=m_both, other=0).to(kind)
        b_nonzero += 1

    m_both = m_batch & m_value[None, :]
    o_out = o_batch * out_units * UNIT + o_value[None, :]
    if (scaled != 0) | (mode == 1):
        b_row = tl.load(mask_row + b_slot, mask=m_value, other=0).to(tl.int64)[None, :]
        if scaled:
            o_scale = o_batch * scale_stride + b_row
            b_sum *= tl.load(row_scale + o_scale, mask=m_both, other=0).to(kind)
        if mode == 1:
            b_column += tl.load(run_column + b_run, mask=m_value, other=0)
            b_gain, b_source = immediate(
                o_batch, b_row, b_column[None, :], m_both, gains, sources, column_gain,
                column_source, gain_stride, source_stride, num_rows, num_units,
            )  # fmt: skip
            b_sum += b_gain.to(kind) * b_source.to(kind)
    if mode == 2:
        b_sum += tl.load(added + o_out, mask=m_both, other=0).to(kind)
    if mode == 3:
        b_color = tl.load(color + o_value, mask=m_value, other=0).to(tl.int64)
        b_column += tl.load(run_column + b_run, mask=m_value, other=0)
        m_added = m_batch & (m_value & (b_color < num_colors))[None, :]
        p_added = added + o_batch * added_stride
        o_added = (b_color * num_columns + b_column)[None, :]
        b_sum += tl.load(p_added + o_added, mask=m_added, other=0).to(kind)
    b_sum = b_sum.to(out.dtype.element_ty)
    m_out = m_batch & (o_value < tl.cast(out_units, tl.int64) * UNIT)[None, :]
    if i_tile < num_whole:
        tl.store(out + o_out, b_sum, mask=m_out)
    else:
        m_walked = tl.load(is_dense + b_group, mask=m_value, other=0) == 0
        tl.store(out + o_out, b_sum, mask=m_out & m_walked[None, :])


@triton.jit
def group_product(
    tiles,  # [T, 3]: run, first column, first row
    run_value,  # [runs + 1]
    run_x,  # [runs + 1]
    run_column,  # [runs + 1]
    run_group,  # [runs]
    row_begin,  # [groups + 2]
    x_begin,  # [groups + 2]
    mask_row,  # [rows]
    x_row,  # [inner rows]
    d,  # [batch, num_rows, num_inner]
    x,  # [batch, x_units * UNIT]
    row_scale,  # [batch, num_rows]
    added,  # [batch, out_units * UNIT], or [batch, num_colors * num_columns] in mode 3
    gains,  # [batch, targets * num_rows]
    sources,  # [batch, sources]
    column_gain,  # [columns]
    column_source,  # [columns]
    color,  # [values]: `num_colors` for nothing
    d_stride,
    x_units,
    out_units,
    scale_stride,
    added_stride,
    gain_stride,
    source_stride,
    num_rows,
    num_inner,
    num_columns,
    num_units,
    num_targets,
    num_colors,
    scaled,
    mode,
    out,  # [batch, out_units * UNIT]
    UNIT: tl.constexpr,
    IN_PLACE: tl.constexpr,  # X lies in `out`, and `x` is not read
    MOST_ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BS: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute BC of a tile's COLUMNS and BS rows of a run: ``X[C, R] @ D[S, R]^T``."""
    i_part, i_batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_tile = i_part // (COLUMNS // BC)
    i_run = tl.load(tiles + 3 * i_tile).to(tl.int64)
    i_column = tl.load(tiles + 3 * i_tile + 1).to(tl.int64) + i_part % (COLUMNS // BC) * BC
    column = tl.load(run_column + i_run).to(tl.int64)
    run_length = tl.load(run_column + i_run + 1) - column
    if i_column >= run_length:  # a short run fills only some parts of its tile
        return
    i_row = tl.minimum(tl.load(tiles + 3 * i_tile + 2).to(tl.int64), MOST_ROWS).to(tl.int32)
    o_column, o_row = tl.arange(0, BC), i_row // BS * BS + tl.arange(0, BS)  # [BC], [BS]
    i_group = tl.load(run_group + i_run).to(tl.int64)
    slot = tl.load(row_begin + i_group).to(tl.int64)
    inner = tl.load(x_begin + i_group).to(tl.int64)
    # multiples of ALIGN, which the division lets the compiler know; no dense D has more rows
    size = tl.minimum(tl.load(row_begin + i_group + 1) - slot, MOST_ROWS).to(tl.int32)
    size = size // ALIGN * ALIGN
    x_size = tl.minimum(tl.load(x_begin + i_group + 1) - inner, MOST_ROWS).to(tl.int32)
    x_size = x_size // ALIGN * ALIGN
    value = tl.load(run_value + i_run).to(tl.int64) // ALIGN * ALIGN
    x_value = tl.load(run_x + i_run).to(tl.int64) // ALIGN * ALIGN
    m_column = i_column + o_column < run_length
    m_row = o_row < size
    b_row = tl.load(mask_row + slot + o_row, mask=m_row, other=0).to(tl.int64)  # [BS]

    if IN_PLACE:
        x = out
    p_x = x + i_batch * x_units * UNIT + x_value + i_column * x_size
    # what lies outside of the tile reads its first row or column, and is not stored
    o_x = tl.where(m_column, o_column, 0)[:, None] * x_size  # [BC, 1]
    p_d = d + i_batch * d_stride + b_row[:, None] * num_inner  # [BS, 1]
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    b_sum = tl.zeros([BC, BS], dtype=kind)  # [BC, BS]
    for i_inner in range(0, x_size, BK):
        o_inner = i_inner + tl.arange(0, BK)  # [BK]
        m_inner = (o_inner < x_size)[None, :]
        b_inner = tl.load(x_row + inner + o_inner, mask=o_inner < x_size, other=0).to(tl.int64)
        b_x = tl.load(p_x + (o_x + o_inner[None, :]), mask=m_inner, other=0)  # [BC, BK]
        b_d = tl.load(p_d + b_inner[None, :], mask=m_inner, other=0)  # [BS, BK]
        b_sum = tl.dot(b_x, tl.trans(b_d), acc=b_sum, input_precision=PRECISION, out_dtype=kind)

    m_out = m_column[:, None] & m_row[None, :]
    value += i_column * size
    o_out = o_column[:, None] * size + o_row[None, :]  # [BC, BS]
    p_out = i_batch * out_units * UNIT + value
    if scaled:
        b_scale = tl.load(row_scale + i_batch * scale_stride + b_row, mask=m_row, other=0)
        b_sum *= b_scale.to(kind)[None, :]
    if mode == 1:
        p_key, p_index = column_gain + column + i_column, column_source + column + i_column
        b_key = tl.load(p_key + o_column, mask=m_column, other=-1).to(tl.int32)
        b_index = tl.load(p_index + o_column, mask=m_column, other=0).to(tl.int64)
        p_source = sources + i_batch * source_stride + b_index
        b_source = tl.load(p_source, mask=m_column, other=0).to(kind)  # [BC]
        b_unit = b_row.to(tl.int32) % num_units  # [BS]
        for i_target in range(num_targets):
            p_gain = gains + i_batch * gain_stride + tl.cast(i_target, tl.int64) * num_rows
            b_gain = tl.load(p_gain + b_row, mask=m_row, other=0).to(kind)  # [BS]
            b_fed = i_target * num_rows + b_unit
            m_fed = b_key[:, None] == b_fed[None, :]  # [BC, BS]
            b_sum += tl.where(m_fed, b_source[:, None] * b_gain[None, :], 0)
    elif mode == 2:
        b_sum += tl.load(added + p_out + o_out, mask=m_out, other=0).to(kind)
    elif mode == 3:
        b_color = tl.load(color + value + o_out, mask=m_out, other=0).to(tl.int32)  # [BC, BS]
        p_added = added + i_batch * added_stride + column + i_column
        o_added = b_color * tl.cast(num_columns, tl.int64) + o_column[:, None]
        m_added = m_out & (b_color < num_colors)
        b_sum += tl.load(p_added + o_added, mask=m_added, other=0).to(kind)
    tl.debug_barrier()  # all threads have read X before one writes, for `out` may be `x`
    tl.store(out + p_out + o_out, b_sum.to(out.dtype.element_ty), mask=m_out)


MOST_ROWS = 1 << 20
"""More rows than a dense D can have: offsets in a tile stay below 2^31."""
FLOATS = ("fp64", "fp32", "fp16", "bf16")
_TYPES = {
    "*i32": """tiles column_tiles run_value run_x run_column run_group row_begin x_begin mask_row
        nonzero_begin x_offset position is_dense column_gain column_source color x_row
        pair_group pair_row pair_inner run_begin group_run pieces kept entry_begin entry_partial""",
    "i64": """num_entries num_partial num_values num_columns d_stride delta_stride units x_units
        r_units out_units scale_stride added_stride gain_stride source_stride""",
    "*T": "d x j r row_scale added gains sources delta out gradient",
    "*A": "partial",
}


def signature_of(function: triton.JITFunction) -> dict[str, str]:
    """The types of a kernel's run-time arguments, which the kernels here name alike."""
    types = {name: kind for kind, names in _TYPES.items() for name in names.split()}
    return {name: types.get(name, "i32") for name in function.arg_names if not name.isupper()}


def _walk_grid(arguments: Arguments) -> Grid:
    return len(arguments["tiles"]), triton.cdiv(arguments["batch"], arguments["B"])


def _walk_default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    rows = min(sizes["batch"], 2 if dtype == "fp64" else 4)
    return {"B": rows, "num_warps": 2 if rows == 1 and dtype != "fp64" else 4}


WALK_PRODUCT = Kernel(
    walk_product,
    signature=signature_of(walk_product),
    dtypes=FLOATS,
    configs=config_space(B=(1, 2, 4), num_warps=(2, 4)),
    heuristic=_walk_default,
    grid=_walk_grid,
    problem=walk_problem,
    reference=walk_reference,
    small=tuple(
        {"values": values, "batch": batch}
        for values, batch in ((1, 1), (35, 3), (300, 1), (1202, 2), (2005, 5))
    ),
    large=tuple({"values": 2**log, "batch": batch} for log in (14, 18) for batch in (1, 8)),
    constants={"UNIT": UNIT, "TILE": TILE},
)


def _dense_default(rows: int, columns: int, dtype: str, precision: str, device: Device) -> Config:
    if device.is_hip:  # masks lie in scalar registers: at most 8 values a thread
        columns = 64 if rows == 16 else 32 if rows == 32 else 16
        return {"BC": columns, "BK": 16, "num_warps": 4 if rows <= 128 else 8, "num_stages": 1}
    wide = dtype == "fp64"
    width = 128 if rows == 64 and columns >= 128 else 64
    if rows == 256:
        width = 16 if wide else 32
    # staging the operands of a full tile ahead spills
    full = rows == 128 or (width == 128 and device.arch.startswith("sm_8"))
    return {
        "BC": width,
        "BK": 32 if rows == 256 and dtype in ("fp16", "bf16") else 16,
        "num_warps": 4 if rows <= 32 and not wide and (rows, precision) != (32, "tf32") else 8,
        "num_stages": 1 if full and (dtype, precision) == ("fp32", "ieee") else 2,
    }


def _declare_dense(columns: int, rows: int, align: int) -> Kernel:
    return Kernel(
        group_product,
        name=f"group_product_{rows}" + ("_aligned" if align > 1 else ""),
        signature=signature_of(group_product),
        dtypes=FLOATS,
        configs=config_space(
            BC=tuple(columns // part for part in (4, 2, 1)),
            BK=(16, 32),
            num_warps=(4, 8, 16),
            num_stages=(1, 2, 3),
        ),
        heuristic=lambda sizes, dtype, precision, device: _dense_default(
            rows, sizes["columns"], dtype, precision, device
        ),
        grid=lambda arguments: (
            len(arguments["tiles"]) * (columns // arguments["BC"]),
            len(arguments["x"]),
        ),
        problem=lambda rows, columns, batch: dense_problem(rows, columns, batch, align),
        reference=dense_reference,
        small=tuple(
            {"rows": size, "columns": width, "batch": batch}
            for size, width, batch in (
                (rows, 35, 2),
                *([(rows, 130, 1)] if columns > 64 else []),
                (rows - max(align, 4), 17, 1),
                (rows - max(align, 4), 18, 1),
            )
        ),
        large=({"rows": rows, "columns": 1024, "batch": 8},),
        constants={
            "UNIT": UNIT,
            "IN_PLACE": False,
            "MOST_ROWS": MOST_ROWS,
            "ALIGN": align,
            "COLUMNS": columns,
            "BS": rows,
        },
        precisions=("ieee", "tf32x3", "tf32"),
        shared_bytes=lambda config, dtype: (
            (config["BC"] + rows)
            * config["BK"]
            * config["num_stages"]
            * (8 if dtype == "fp64" else 4)
        ),
        wide_loads=align > 1,
        wide_stores=align > 1,
        dots=True,
        max_registers=255,
    )


GROUP_PRODUCT = {
    (shape.rows, align): _declare_dense(*shape, align)
    for shape in DENSE_SHAPES
    for align in ((1, 8) if shape.rows >= 64 else (1,))
}
"""By rows of the tile, and what sizes and offsets are multiples of."""
