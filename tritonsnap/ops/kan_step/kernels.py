"""The sums over knots of a KAN's training step, with hat vectors made in registers.

Products with hat vectors are `tl.dot`, so nothing is scattered and every output has one owner.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tritonsnap.ops.kan_step.problems import (
    gram_problem,
    gram_reference,
    inner_change_problem,
    inner_change_reference,
    inner_sums_problem,
    inner_sums_reference,
    outer_change_problem,
    outer_change_reference,
    outer_values_problem,
    outer_values_reference,
)
from tritonsnap.ops.kernel import Arguments, Grid, Kernel, config_space
from tritonsnap.tuning import Config, Device, Sizes


@triton.jit
def _hats(positions, o_record, m_record, o_column, m_column, columns, knots):
    """Hat vectors of some records: entry (t, c) is that of knot c % knots of column c // knots."""
    o_position = o_record.to(tl.int64) * columns + o_column // knots
    b_position = tl.load(positions + o_position, mask=m_record & m_column, other=-1.0)
    b_hat = 1 - tl.abs(b_position - (o_column % knots).to(b_position.dtype))
    return tl.where(m_record & m_column & (b_hat > 0), b_hat, 0.0)


@triton.jit
def kan_inner_sums(
    positions,
    inner,
    records,
    inputs,
    knots,
    addends,
    sums,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum the inner functions over the inputs, for a tile of records and addends."""
    o_record = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)  # [BT]
    o_addend = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    m_record, m_addend = o_record[:, None] < records, o_addend[None, :] < addends
    columns = inputs * knots
    b_sum = tl.zeros([BT, BP], dtype=sums.dtype.element_ty)  # [BT, BP]
    for first in range(0, columns, BN):
        o_column = first + tl.arange(0, BN)  # [BN]
        b_hat = _hats(
            positions,
            o_record[:, None],
            m_record,
            o_column[None, :],
            o_column[None, :] < columns,
            inputs,
            knots,
        )  # [BT, BN]
        o_value = o_column.to(tl.int64)[:, None] * addends + o_addend[None, :]
        m_value = (o_column[:, None] < columns) & m_addend
        b_value = tl.load(inner + o_value, mask=m_value, other=0.0)  # [BN, BP]
        b_sum = tl.dot(b_hat, b_value, b_sum, input_precision=PRECISION, out_dtype=b_sum.dtype)
    o_sum = o_record[:, None] * addends + o_addend[None, :]
    tl.store(sums + o_sum, b_sum, mask=m_record & m_addend)


@triton.jit
def kan_inner_change(
    positions,
    weights,
    records,
    inputs,
    knots,
    addends,
    change,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum weighted hat vectors over all records, for a tile of inner knots and addends."""
    o_column = tl.program_id(0) * BN + tl.arange(0, BN)  # [BN]
    o_addend = tl.program_id(1).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    m_column, m_addend = o_column[:, None] < inputs * knots, o_addend[None, :] < addends
    b_change = tl.zeros([BN, BP], dtype=change.dtype.element_ty)  # [BN, BP]
    for first in range(0, records, BT):
        o_record = first + tl.arange(0, BT)  # [BT]
        b_hat = _hats(
            positions,
            o_record[None, :],
            o_record[None, :] < records,
            o_column[:, None],
            m_column,
            inputs,
            knots,
        )  # [BN, BT]
        o_weight = o_record.to(tl.int64)[:, None] * addends + o_addend[None, :]
        m_weight = (o_record[:, None] < records) & m_addend
        b_weight = tl.load(weights + o_weight, mask=m_weight, other=0.0)  # [BT, BP]
        b_change = tl.dot(
            b_hat, b_weight, b_change, input_precision=PRECISION, out_dtype=b_change.dtype
        )
    o_change = o_column.to(tl.int64)[:, None] * addends + o_addend[None, :]
    tl.store(change + o_change, b_change, mask=m_column & m_addend)


@triton.jit
def kan_outer_values(
    positions,
    outer,
    records,
    knots,
    addends,
    sums,
    rises,
    BT: tl.constexpr,
    BP: tl.constexpr,
):
    """Evaluate one target's outer functions and sum them, for a tile of records."""
    o_record = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)  # [BT]
    i_target = tl.program_id(1).to(tl.int64)
    m_record = o_record < records
    b_sum = tl.zeros([BT], dtype=sums.dtype.element_ty)  # [BT]
    for first in range(0, addends, BP):
        o_addend = tl.cast(first, tl.int64) + tl.arange(0, BP)  # [BP]
        m_tile = m_record[:, None] & (o_addend[None, :] < addends)
        o_tile = o_record[:, None] * addends + o_addend[None, :]  # [BT, BP]
        b_position = tl.load(positions + o_tile, mask=m_tile, other=0.0)
        b_inside = tl.where(b_position > 0, b_position, 0.0)  # NaN is not
        b_knot = tl.minimum(b_inside, knots - 2).to(tl.int32)
        o_value = (i_target * knots + b_knot) * addends + o_addend[None, :]
        b_value = tl.load(outer + o_value, mask=m_tile, other=0.0)
        b_rise = tl.load(outer + (o_value + addends), mask=m_tile, other=0.0) - b_value
        tl.store(rises + i_target * records * addends + o_tile, b_rise, mask=m_tile)
        b_sum += tl.sum(b_value + (b_position - b_knot.to(b_position.dtype)) * b_rise, axis=1)
    tl.store(sums + i_target * records + o_record, b_sum, mask=m_record)


@triton.jit
def kan_outer_change(
    positions,
    weights,
    records,
    knots,
    addends,
    change,
    BN: tl.constexpr,
    BP: tl.constexpr,
):
    """Walk all records in order for the outer functions of some addends and one target."""
    o_addend = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)  # [BP]
    o_knot = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)  # [BN]
    i_target = tl.program_id(2).to(tl.int64)
    m_addend = o_addend < addends
    b_change = tl.zeros([BN, BP], dtype=change.dtype.element_ty)  # [BN, BP]
    for i in range(0, records):
        i_record = tl.cast(i, tl.int64)
        p_position = positions + i_record * addends + o_addend
        b_position = tl.load(p_position, mask=m_addend, other=0.0)  # [BP]
        b_weight = tl.load(weights + i_target * records + i_record)
        b_hat = 1 - tl.abs(b_position[None, :] - o_knot[:, None].to(b_position.dtype))
        b_change += tl.where(b_hat > 0, b_hat * b_weight, 0.0)
    o_change = (i_target * knots + o_knot[:, None]) * addends + o_addend[None, :]
    tl.store(change + o_change, b_change, mask=(o_knot[:, None] < knots) & m_addend[None, :])


@triton.jit
def kan_gram(
    inner_positions,
    outer_positions,
    slopes,
    gains,
    records,
    targets,
    inputs,
    addends,
    inner_knots,
    outer_knots,
    gram,
    BT: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Make a tile of J J^T from the factors of J: outer hats, inner hats, and outer slopes."""
    dtype: tl.constexpr = gram.dtype.element_ty
    rows = targets * records
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)[:, None]  # [BT, 1]
    o_col = tl.program_id(1).to(tl.int64) * BT + tl.arange(0, BT)[None, :]  # [1, BT]
    m_row, m_col = o_row < rows, o_col < rows
    o_factor = tl.arange(0, BN)  # [BN]

    b_inner = tl.zeros([BT, BT], dtype=dtype)  # [BT, BT]
    columns = inputs * inner_knots
    for first in range(0, columns, BN):
        o_right, o_down = (first + o_factor)[None, :], (first + o_factor)[:, None]
        b_left = _hats(
            inner_positions, o_row % records, m_row, o_right, o_right < columns, inputs, inner_knots
        )
        b_right = _hats(
            inner_positions, o_col % records, m_col, o_down, o_down < columns, inputs, inner_knots
        )
        b_inner = tl.dot(b_left, b_right, b_inner, input_precision=PRECISION, out_dtype=dtype)
    b_slope = tl.zeros([BT, BT], dtype=dtype)  # [BT, BT]
    for first in range(0, addends, BN):
        o_right, o_down = (first + o_factor)[None, :], (first + o_factor)[:, None]
        o_slope = o_row * addends + o_right  # [BT, BN]
        b_left = tl.load(slopes + o_slope, mask=m_row & (o_right < addends), other=0.0)
        o_slope = o_col * addends + o_down  # [BN, BT]
        b_right = tl.load(slopes + o_slope, mask=m_col & (o_down < addends), other=0.0)
        b_slope = tl.dot(b_left, b_right, b_slope, input_precision=PRECISION, out_dtype=dtype)
    b_inner *= b_slope * tl.load(gains)

    b_outer = tl.zeros([BT, BT], dtype=dtype)  # [BT, BT]
    columns = addends * outer_knots
    for first in range(0, columns, BN):
        o_right, o_down = (first + o_factor)[None, :], (first + o_factor)[:, None]
        m_right, m_down = o_right < columns, o_down < columns
        b_left = _hats(
            outer_positions, o_row % records, m_row, o_right, m_right, addends, outer_knots
        )
        b_right = _hats(
            outer_positions, o_col % records, m_col, o_down, m_down, addends, outer_knots
        )
        b_outer = tl.dot(b_left, b_right, b_outer, input_precision=PRECISION, out_dtype=dtype)
    same_target = o_row // records == o_col // records
    b_gram = b_inner + tl.where(same_target, b_outer * tl.load(gains + 1), 0.0)
    tl.store(gram + o_row * rows + o_col, b_gram, mask=m_row & m_col)


def _inner_sums_grid(arguments: Arguments) -> Grid:
    return (
        triton.cdiv(arguments["records"], arguments["BT"]),
        triton.cdiv(arguments["addends"], arguments["BP"]),
    )


def _inner_change_grid(arguments: Arguments) -> Grid:
    return (
        triton.cdiv(arguments["inputs"] * arguments["knots"], arguments["BN"]),
        triton.cdiv(arguments["addends"], arguments["BP"]),
    )


def _outer_values_grid(arguments: Arguments) -> Grid:
    return triton.cdiv(arguments["records"], arguments["BT"]), len(arguments["outer"])


def _outer_change_grid(arguments: Arguments) -> Grid:
    return (
        triton.cdiv(arguments["addends"], arguments["BP"]),
        triton.cdiv(arguments["knots"], arguments["BN"]),
        len(arguments["weights"]),
    )


def _gram_grid(arguments: Arguments) -> Grid:
    tiles = triton.cdiv(arguments["targets"] * arguments["records"], arguments["BT"])
    return tiles, tiles


def _power_of_two(number: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << (number - 1).bit_length()))


def _inner_sums_heuristic(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BT": 32, "BN": 16, "BP": 32, "num_warps": 4, "num_stages": 2}


def _inner_change_heuristic(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BT": 16, "BN": 32, "BP": 32, "num_warps": 4, "num_stages": 2}


def _outer_values_heuristic(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BT": 8, "BP": _power_of_two(sizes["addends"], 16, 128), "num_warps": 4}


def _outer_change_heuristic(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BN": _power_of_two(sizes["knots"], 8, 32), "BP": 16, "num_warps": 4}


def _gram_heuristic(sizes: Sizes, dtype: str, precision: str, device: Device) -> Config:
    return {"BT": 32, "BN": 16, "num_warps": 4, "num_stages": 1}


_POINTERS = ("positions", "inner", "outer", "weights", "sums", "change", "rises")
_LAYER = ("records", "inputs", "knots", "addends")


def _signature(*names: str) -> dict[str, str]:
    return {
        name: "*T" if name in _POINTERS else "i64" if name == "records" else "i32" for name in names
    }


_INNER_SIZES = tuple(
    dict(zip(_LAYER, sizes, strict=True))
    for sizes in ((1, 1, 2, 1), (40, 5, 6, 11), (70, 16, 3, 40))
)
_OUTER_SIZES = tuple(
    dict(zip(("records", "targets", "knots", "addends"), sizes, strict=True))
    for sizes in ((1, 1, 2, 1), (21, 2, 12, 11), (12, 1, 37, 70))
)
_LARGE_INNER = tuple(
    dict(zip(_LAYER, sizes, strict=True)) for sizes in ((512, 16, 3, 70), (2048, 25, 5, 200))
)
_LARGE_OUTER = tuple(
    dict(zip(("records", "targets", "knots", "addends"), sizes, strict=True))
    for sizes in ((512, 1, 30, 70), (2048, 1, 22, 200))
)
_GRAM = ("records", "targets", "inputs", "addends", "inner_knots", "outer_knots")

KAN_INNER_SUMS = Kernel(
    kan_inner_sums,
    signature=_signature("positions", "inner", *_LAYER, "sums"),
    dtypes=("fp32", "fp64"),
    configs=config_space(
        BT=(16, 32, 64), BN=(16, 32), BP=(16, 32, 64), num_warps=(4,), num_stages=(1, 2)
    ),
    heuristic=_inner_sums_heuristic,
    grid=_inner_sums_grid,
    problem=inner_sums_problem,
    reference=inner_sums_reference,
    small=_INNER_SIZES,
    large=_LARGE_INNER,
    dots=True,
)

KAN_INNER_CHANGE = Kernel(
    kan_inner_change,
    signature=_signature("positions", "weights", *_LAYER, "change"),
    dtypes=("fp32", "fp64"),
    configs=config_space(
        BT=(16, 32, 64), BN=(16, 32), BP=(16, 32, 64), num_warps=(4,), num_stages=(1, 2)
    ),
    heuristic=_inner_change_heuristic,
    grid=_inner_change_grid,
    problem=inner_change_problem,
    reference=inner_change_reference,
    small=_INNER_SIZES,
    large=_LARGE_INNER,
    dots=True,
)

KAN_OUTER_VALUES = Kernel(
    kan_outer_values,
    signature=_signature("positions", "outer", "records", "knots", "addends", "sums", "rises"),
    dtypes=("fp32", "fp64"),
    configs=config_space(BT=(4, 8, 16), BP=(16, 32, 64, 128), num_warps=(2, 4)),
    heuristic=_outer_values_heuristic,
    grid=_outer_values_grid,
    problem=outer_values_problem,
    reference=outer_values_reference,
    small=_OUTER_SIZES,
    large=_LARGE_OUTER,
)

KAN_OUTER_CHANGE = Kernel(
    kan_outer_change,
    signature=_signature("positions", "weights", "records", "knots", "addends", "change"),
    dtypes=("fp32", "fp64"),
    configs=config_space(BN=(8, 16, 32), BP=(8, 16, 32), num_warps=(1, 2, 4)),
    heuristic=_outer_change_heuristic,
    grid=_outer_change_grid,
    problem=outer_change_problem,
    reference=outer_change_reference,
    small=_OUTER_SIZES,
    large=_LARGE_OUTER,
)

KAN_GRAM = Kernel(
    kan_gram,
    signature={
        "inner_positions": "*T",
        "outer_positions": "*T",
        "slopes": "*T",
        "gains": "*T",
        **_signature(*_GRAM),
        "gram": "*T",
    },
    dtypes=("fp32", "fp64"),
    configs=config_space(BT=(32, 64), BN=(16, 32), num_warps=(4, 8), num_stages=(1, 2)),
    heuristic=_gram_heuristic,
    grid=_gram_grid,
    problem=gram_problem,
    reference=gram_reference,
    small=tuple(
        dict(zip(_GRAM, sizes, strict=True)) for sizes in ((1, 1, 1, 1, 2, 2), (21, 2, 3, 5, 4, 7))
    ),
    large=tuple(
        dict(zip(_GRAM, sizes, strict=True))
        for sizes in ((512, 1, 16, 70, 3, 30), (2048, 1, 25, 200, 5, 22))
    ),
    dots=True,
)
