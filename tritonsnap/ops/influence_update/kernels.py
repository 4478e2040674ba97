"""One step of a SnAp-1 influence: every column has one row, so values and columns are one.

The structure is that of an elementwise `tritonsnap.plan.canonical.CanonicalBlock`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.influence_update.problems import snap1_problem, snap1_reference
from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.ops.masked_dsmm.kernels import FLOATS, find_runs, immediate, signature_of
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
    added,  # [batch, units * UNIT]
    gains,  # [batch, targets * num_rows]
    sources,  # [batch, sources]
    column_gain,  # [columns]
    column_source,  # [columns]
    delta,  # [batch, num_rows]
    num_tiles,
    num_values,
    num_entries,
    batch,
    d_stride,
    units,
    scale_stride,
    gain_stride,
    source_stride,
    num_rows,
    num_units,
    scaled,
    mode,
    out,  # [batch, units * UNIT]
    gradient,  # [units * UNIT]
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    GRADIENT: tl.constexpr,
    B: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Step SPAN tiles of columns: all batch rows with the gradient, else B rows."""
    kind = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    first_tile = tl.program_id(0).to(tl.int64) * SPAN
    first_row = 0 if GRADIENT else tl.program_id(1).to(tl.int64) * B
    last_row = batch if GRADIENT else first_row + 1
    for i_tile in range(first_tile, tl.minimum(first_tile + SPAN, num_tiles)):
        p_tile = tiles + 3 * tl.cast(i_tile, tl.int64)
        i_first, i_last = tl.load(p_tile + 1).to(tl.int64), tl.load(p_tile + 2).to(tl.int64)
        first = tl.cast(i_tile, tl.int64) * TILE
        o_value = first + tl.arange(0, TILE)  # [TILE]
        m_value = o_value < num_values
        m_padded = (o_value < units * UNIT)[None, :]
        b_run = find_runs(run_value, i_first, i_last, first, TILE)  # [TILE]
        b_group = tl.load(run_group + b_run, mask=m_value, other=0).to(tl.int64)
        b_row = tl.load(mask_row + b_group, mask=m_value, other=0).to(tl.int64)[None, :]
        b_entry = tl.load(position + b_group, mask=m_value, other=0).to(tl.int64)[None, :]
        b_gradient = tl.zeros([TILE], dtype=kind)  # [TILE]
        for i_row in range(first_row, last_row, B):
            o_batch = tl.cast(i_row, tl.int64) + tl.arange(0, B)[:, None]  # [B, 1]
            m_batch = o_batch < batch
            m_both = m_batch & m_value[None, :]  # [B, TILE]
            o_out = o_batch * (units * UNIT) + o_value[None, :]
            m_entry = m_both & (b_entry < num_entries)
            b_d = tl.load(d + o_batch * d_stride + b_entry, mask=m_entry, other=0).to(kind)
            if scaled:
                o_scale = o_batch * scale_stride + b_row
                b_d *= tl.load(row_scale + o_scale, mask=m_both, other=0).to(kind)
            b_x = tl.load(x + o_out, mask=m_batch & m_padded, other=0).to(kind)
            b_new = tl.where(m_entry, b_d * b_x, 0)
            if mode == 1:
                b_gain, b_source = immediate(
                    o_batch, b_row, o_value[None, :], m_both, gains, sources, column_gain,
                    column_source, gain_stride, source_stride, num_rows, num_units,
                )  # fmt: skip
                b_new += b_gain.to(kind) * b_source.to(kind)
            elif mode == 2:
                b_new += tl.load(added + o_out, mask=m_both, other=0).to(kind)
            tl.store(out + o_out, b_new.to(out.dtype.element_ty), mask=m_batch & m_padded)
            if GRADIENT:
                b_delta = tl.load(delta + o_batch * num_rows + b_row, mask=m_both, other=0)
                b_gradient += tl.sum(b_delta.to(kind) * b_new, axis=0)
        if GRADIENT:
            b_gradient = b_gradient.to(gradient.dtype.element_ty)
            tl.store(gradient + o_value, b_gradient, mask=o_value < units * UNIT)


def _grid(arguments: Arguments, gradient: bool) -> Grid:
    tiles = triton.cdiv(arguments["num_tiles"], arguments["SPAN"])
    return tiles, 1 if gradient else triton.cdiv(arguments["batch"], arguments["B"])


def _default(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    """Spans that leave 128 programs: a long one reads the sources once for several units."""
    itemsize = {"fp64": 8, "fp32": 4}.get(dtype, 2)
    rows = min(sizes["batch"], 4)
    warps = rows * TILE * itemsize // 16 // (64 if device.is_hip else 32)
    span = max(1, min(32, sizes["values"] // TILE // 128))
    return {"B": rows, "SPAN": span, "num_warps": max(1, min(warps, 4))}


def _declare(gradient: bool) -> Kernel:
    return Kernel(
        snap1_step,
        name="snap1_step" if gradient else "snap1_update",
        signature=signature_of(snap1_step),
        dtypes=FLOATS,
        configs=config_space(B=(1, 2, 4), SPAN=(1, 4, 16, 32), num_warps=(1, 2, 4)),
        heuristic=_default,
        grid=lambda arguments: _grid(arguments, gradient),
        problem=lambda values, batch: snap1_problem(values, batch, gradient),
        reference=snap1_reference,
        small=tuple(
            {"values": values, "batch": batch}
            for values, batch in ((1, 1), (35, 3), (256, 1), (1203, 2), (2003, 5))
        ),
        large=tuple({"values": 2**log, "batch": batch} for log in (16, 20) for batch in (1, 8)),
        constants={"UNIT": UNIT, "TILE": TILE, "GRADIENT": gradient},
        wide_loads=True,
        wide_stores=True,
    )


SNAP1_STEP = _declare(gradient=True)
SNAP1_UPDATE = _declare(gradient=False)
