"""One step of a SnAp-1 influence: every column has one row, so values and columns are one.

The structure is that of an elementwise `tritonsnap.plan.canonical.CanonicalBlock`. `out` may be
`x`: whoever writes a value has read it, and nobody else does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.influence_update.problems import snap1_problem, snap1_reference
from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, find_runs, signature_of
from tritonsnap.plan.canonical import TILE, UNIT
from tritonsnap.tuning import Config, Device, Sizes


@triton.jit
def snap1_step(
    tiles,  # [T, 3]: tile, first and last run
    run_value,  # [runs + 1]
    run_group,  # [runs]
    mask_row,  # [groups]
    position,  # [groups]
    d,  # [batch, num_entries]
    x,  # [batch, units * UNIT]
    row_scale,  # [batch, num_rows]
    added,  # [batch, units * UNIT], or [batch, num_colors * num_values] in mode 3
    gains,  # [batch, targets * num_rows]
    sources,  # [batch, sources]
    column_gain,  # [columns]: target, or `num_targets` for nothing
    column_source,  # [columns]
    color,  # [num_values]: `num_colors` for nothing
    delta,  # [batch, num_rows]
    num_tiles,
    num_values,
    num_entries,
    batch,
    d_stride,
    units,
    scale_stride,
    added_stride,
    gain_stride,
    source_stride,
    num_rows,
    num_targets,
    num_colors,
    scaled,
    mode,
    gradient,  # [units * UNIT], unused without GRADIENT
    out,  # [batch, units * UNIT]
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    GRADIENT: tl.constexpr,
    IN_PLACE: tl.constexpr,  # J lies in `out`, and `x` is not read
    B: tl.constexpr,
    TILES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Step TILES tiles of columns SPAN times: all batch rows with the gradient, else B rows."""
    WIDTH: tl.constexpr = TILES * TILE
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    if IN_PLACE:
        x = out
    first_tile = tl.program_id(0).to(tl.int64) * (SPAN * TILES)
    last_tile = tl.minimum(first_tile + SPAN * TILES, num_tiles)
    first_row = 0 if GRADIENT else tl.program_id(1).to(tl.int64) * B
    last_row = batch if GRADIENT else first_row + 1
    for i_tile in range(first_tile, last_tile, TILES):
        i_end = tl.minimum(tl.cast(i_tile, tl.int64) + TILES, num_tiles)
        i_first = tl.load(tiles + 3 * tl.cast(i_tile, tl.int64) + 1).to(tl.int64)
        i_last = tl.load(tiles + 3 * i_end - 1).to(tl.int64)
        first = tl.cast(i_tile, tl.int64) * TILE
        o_value = first + tl.arange(0, WIDTH)  # [WIDTH]
        m_value = o_value < num_values
        m_padded = o_value < tl.cast(units, tl.int64) * UNIT
        b_run = find_runs(run_value, i_first, i_last, first, WIDTH)  # [WIDTH]
        b_group = tl.load(run_group + b_run, mask=m_value, other=0).to(tl.int64)
        b_row = tl.load(mask_row + b_group).to(tl.int64)
        b_entry = tl.load(position + b_group).to(tl.int64)
        m_entry = b_entry < num_entries
        if mode == 1:
            b_target = tl.load(column_gain + o_value, mask=m_value, other=0).to(tl.int64)
            b_source = tl.load(column_source + o_value, mask=m_value, other=0).to(tl.int64)
            m_added = m_value & (b_target < num_targets)
            b_key = tl.where(m_added, b_target * num_rows + b_row, 0)
        elif mode == 3:
            b_color = tl.load(color + o_value, mask=m_value, other=0).to(tl.int64)
            m_added = m_value & (b_color < num_colors)
            b_key, b_source = b_color * num_values + o_value, o_value
        else:
            b_key, b_source, m_added = o_value, o_value, m_value
        b_gradient = tl.zeros([WIDTH], dtype=kind)  # [WIDTH]
        for i_row in range(first_row, last_row, B):
            o_batch = tl.cast(i_row, tl.int64) + tl.arange(0, B)[:, None]  # [B, 1]
            m_batch = o_batch < batch
            o_out = o_batch * units * UNIT + o_value[None, :]  # [B, WIDTH]
            m_d = m_batch & m_entry[None, :]
            b_d = tl.load(d + o_batch * d_stride + b_entry[None, :], mask=m_d, other=0).to(kind)
            if scaled:
                p_scale = row_scale + o_batch * scale_stride
                b_d *= tl.load(p_scale + b_row[None, :], mask=m_batch, other=0).to(kind)
            b_x = tl.load(x + o_out, mask=m_batch & m_padded[None, :], other=0).to(kind)
            b_new = tl.where(m_entry[None, :], b_d * b_x, 0)
            if mode == 1:
                p_gain, p_source = gains + o_batch * gain_stride, sources + o_batch * source_stride
                b_gain = tl.load(p_gain + b_key[None, :], mask=m_batch, other=0).to(kind)
                b_added = b_gain * tl.load(p_source + b_source[None, :], mask=m_batch, other=0)
                b_new += tl.where(m_added[None, :], b_added.to(kind), 0)
            elif mode == 2:
                b_added = tl.load(added + o_out, mask=m_batch & m_padded[None, :], other=0)
                b_new += b_added.to(kind)
            elif mode == 3:
                p_added = added + o_batch * added_stride + b_key[None, :]
                b_new += tl.load(p_added, mask=m_batch & m_added[None, :], other=0).to(kind)
            b_new = tl.where(m_value[None, :], b_new, 0)
            b_out = b_new.to(out.dtype.element_ty)
            tl.store(out + o_out, b_out, mask=m_batch & m_padded[None, :])
            if GRADIENT:
                p_delta = delta + o_batch * num_rows + b_row[None, :]
                b_new *= tl.load(p_delta, mask=m_batch, other=0).to(kind)
                b_gradient += tl.sum(tl.where(m_value[None, :], b_new, 0), axis=0)
        if GRADIENT:
            b_gradient = b_gradient.to(gradient.dtype.element_ty)
            tl.store(gradient + o_value, b_gradient, mask=m_padded)


def _grid(arguments: Arguments, gradient: bool) -> Grid:
    programs = triton.cdiv(arguments["num_tiles"], arguments["SPAN"] * arguments["TILES"])
    return programs, 1 if gradient else triton.cdiv(arguments["batch"], arguments["B"])


def _default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    """Wide tiles keep many loads in flight; spans share the sources while programs remain."""
    itemsize = {"fp64": 8, "fp32": 4}.get(dtype, 2)
    if device.is_hip:  # more than a tile at once takes more scalar registers than there are
        return {"B": 1, "TILES": 1, "SPAN": 1, "num_warps": max(1, TILE * itemsize // 16 // 64)}
    tiles = 8 if dtype == "fp32" else 4
    steps = sizes["values"] // (tiles * TILE)
    span = max(1, min(32 // tiles, steps // 128), min(32, steps // 256))
    most_rows = 4 if dtype == "fp32" else 2
    # code for sm_8x spills with more rows than two, and with one
    rows = 2 if device.arch.startswith("sm_8") else min(sizes["batch"], most_rows)
    warps = 16 if itemsize > 2 else 4 * rows
    return {"B": rows, "TILES": tiles, "SPAN": span, "num_warps": warps}


def one_thread_a_value(config: Config) -> bool:
    """Whether a program has a value for each thread, in wavefronts of 64 too.

    With fewer, several threads hold each value: all read it, and one of them writes, perhaps before
    the others have read. In place their gradient would be wrong.
    """
    return config["B"] * config["TILES"] * TILE >= 64 * config["num_warps"]


def _declare(gradient: bool) -> Kernel:
    space = config_space(
        B=(1, 2, 4), TILES=(1, 4, 8), SPAN=(1, 2, 4, 8, 16, 32), num_warps=(1, 2, 4, 8, 16)
    )
    return Kernel(
        snap1_step,
        name="snap1_step" if gradient else "snap1_update",
        signature=signature_of(snap1_step),
        dtypes=FLOATS,
        configs=tuple(filter(one_thread_a_value, space)),
        heuristic=_default,
        grid=lambda arguments: _grid(arguments, gradient),
        problem=lambda values, batch: snap1_problem(values, batch, gradient),
        reference=snap1_reference,
        small=tuple(
            {"values": values, "batch": batch}
            for values, batch in ((1, 1), (35, 3), (256, 1), (1202, 2), (2005, 5))
        ),
        large=tuple({"values": 2**log, "batch": batch} for log in (15, 21) for batch in (1, 8)),
        constants={"UNIT": UNIT, "TILE": TILE, "GRADIENT": gradient, "IN_PLACE": False},
        wide_loads=True,
        wide_stores=True,
        wide_dtypes=("fp64", "fp32"),  # a tile of 16-bit values is too small for 64 lanes
        max_registers=200,
    )


SNAP1_STEP = _declare(gradient=True)
SNAP1_UPDATE = _declare(gradient=False)
