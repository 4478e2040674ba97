"""Nonzeros of a Jacobian from its compressed form: by index, or run by run of equal columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from tritonsnap.ops.kernel import Kernel, Problem, config_space
from tritonsnap.sparsity.compression import LONGEST_RUN


@triton.jit
def gather_index(
    compressed, index, nnz, length, batch, values, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Read each value from its place; the index is read once for several batch rows."""
    i_block, i_rows = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_value = i_block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    m_value = o_value < nnz
    b_place = tl.load(index + o_value, mask=m_value, other=-1).to(tl.int64)  # [BLOCK]
    m_place = b_place >= 0
    for i_row in range(i_rows * ROWS, tl.minimum((i_rows + 1) * ROWS, batch)):
        i_batch = tl.cast(i_row, tl.int64)
        b_value = tl.load(compressed + i_batch * length + b_place, mask=m_place, other=0)
        tl.store(values + i_batch * nnz + o_value, b_value, mask=m_value)


@triton.jit
def gather_runs(
    compressed,
    colors,
    first_column,
    first_color,
    first_value,
    columns,
    support,
    num_columns,
    length,
    nnz,
    values,
    COLUMNS: tl.constexpr,
    SUPPORT: tl.constexpr,
):
    """Transpose the tiles of a run: read along its columns, write along their support."""
    i_run, i_tile = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    n_columns, n_support = tl.load(columns + i_run), tl.load(support + i_run)
    o_column = i_tile * COLUMNS + tl.arange(0, COLUMNS)  # [COLUMNS]
    m_column = o_column < n_columns
    p_color = colors + tl.load(first_color + i_run)
    p_read = compressed + i_batch * length + tl.load(first_column + i_run)
    p_write = values + i_batch * nnz + tl.load(first_value + i_run)
    if i_tile * COLUMNS < n_columns:
        for i_first in range(0, n_support, SUPPORT):
            o_support = tl.cast(i_first, tl.int64) + tl.arange(0, SUPPORT)  # [SUPPORT]
            m_support = o_support < n_support
            b_color = tl.load(p_color + o_support, mask=m_support, other=0).to(tl.int64)
            m_tile = m_column[:, None] & m_support[None, :]  # [COLUMNS, SUPPORT]
            o_read = b_color[None, :] * num_columns + o_column[:, None]
            b_tile = tl.load(p_read + o_read, mask=m_tile, other=0)
            tl.store(
                p_write + o_column[:, None] * n_support + o_support[None, :], b_tile, mask=m_tile
            )


def _index_problem(nnz: int, batch: int) -> Problem:
    random = np.random.default_rng([nnz, batch])
    length = 2 * nnz
    index = random.permutation(length)[:nnz]
    index[random.random(nnz) < 0.1] = -1
    return Problem(
        arguments={
            "compressed": random.standard_normal((batch, length)),
            "index": index,
            "nnz": nnz,
            "length": length,
            "batch": batch,
        },
        outputs={"values": (batch, nnz)},
        sizes={"nnz": nnz, "batch": batch},
    )


def _index_reference(
    compressed: NDArray[Any], index: NDArray[Any], **_: Any
) -> Mapping[str, NDArray[Any]]:
    return {"values": np.where(index >= 0, compressed[:, np.maximum(index, 0)], 0)}


def _runs_problem(runs: int, columns: int, support: int, batch: int) -> Problem:
    random = np.random.default_rng([runs, columns, support, batch])
    counts = random.integers(1, columns + 1, runs)
    sizes = random.integers(1, support + 1, runs)
    num_colors, num_columns = 2 * support, int(counts.sum())
    colors = np.concatenate([random.permutation(num_colors)[:size] for size in sizes])
    nnz = int((counts * sizes).sum())
    return Problem(
        arguments={
            "compressed": random.standard_normal((batch, num_colors * num_columns)),
            "colors": colors,
            "first_column": np.cumsum(counts) - counts,
            "first_color": np.cumsum(sizes) - sizes,
            "first_value": np.cumsum(counts * sizes) - counts * sizes,
            "columns": counts,
            "support": sizes,
            "num_columns": num_columns,
            "length": num_colors * num_columns,
            "nnz": nnz,
        },
        outputs={"values": (batch, nnz)},
        sizes={"runs": runs, "columns": columns, "support": support, "batch": batch},
    )


def _runs_reference(
    compressed: NDArray[Any],
    colors: NDArray[Any],
    first_column: NDArray[Any],
    first_color: NDArray[Any],
    columns: NDArray[Any],
    support: NDArray[Any],
    num_columns: int,
    **_: Any,
) -> Mapping[str, NDArray[Any]]:
    forms = compressed.reshape(len(compressed), -1, num_columns)
    parts = []
    for column, color, count, size in zip(first_column, first_color, columns, support, strict=True):
        block = forms[:, colors[color : color + size], column : column + count]
        parts.append(block.transpose(0, 2, 1).reshape(len(compressed), -1))
    return {"values": np.concatenate(parts, axis=1)}


_TILES = {"COLUMNS": 64, "SUPPORT": 16, "num_warps": 4}

GATHER_INDEX = Kernel(
    gather_index,
    signature={
        "compressed": "*T",
        "index": "*i32",
        "nnz": "i64",
        "length": "i64",
        "batch": "i32",
        "values": "*T",
    },
    dtypes=("fp32", "fp64", "bf16", "fp16"),
    configs=config_space(BLOCK=(512, 1024, 2048), ROWS=(1, 4, 8), num_warps=(4, 8)),
    heuristic=lambda sizes, dtype, precision, device: {"BLOCK": 1024, "ROWS": 4, "num_warps": 4},
    grid=lambda arguments: (
        triton.cdiv(arguments["nnz"], arguments["BLOCK"]),
        triton.cdiv(arguments["batch"], arguments["ROWS"]),
    ),
    problem=_index_problem,
    reference=_index_reference,
    small=tuple({"nnz": nnz, "batch": batch} for nnz, batch in ((1, 1), (1000, 3), (4096, 5))),
    large=tuple({"nnz": 2**nnz, "batch": 2**batch} for nnz in (14, 18, 22) for batch in (0, 3, 5)),
)

GATHER_RUNS = Kernel(
    gather_runs,
    signature={
        "compressed": "*T",
        "colors": "*i32",
        "first_column": "*i64",
        "first_color": "*i64",
        "first_value": "*i64",
        "columns": "*i64",
        "support": "*i64",
        "num_columns": "i64",
        "length": "i64",
        "nnz": "i64",
        "values": "*T",
    },
    dtypes=("fp32", "fp64", "bf16", "fp16"),
    configs=config_space(COLUMNS=(32, 64, 128), SUPPORT=(16, 32), num_warps=(4, 8)),
    heuristic=lambda sizes, dtype, precision, device: dict(_TILES),
    grid=lambda arguments: (
        len(arguments["columns"]),
        triton.cdiv(LONGEST_RUN, arguments["COLUMNS"]),
        arguments["compressed"].shape[0],
    ),
    problem=_runs_problem,
    reference=_runs_reference,
    small=tuple(
        {"runs": runs, "columns": columns, "support": support, "batch": batch}
        for runs, columns, support, batch in ((1, 1, 1, 1), (3, 200, 5, 2), (5, 20, 40, 1))
    ),
    large=tuple(
        {"runs": runs, "columns": columns, "support": support, "batch": batch}
        for runs in (64, 1024)
        for columns in (64, 256)
        for support in (16, 128)
        for batch in (1, 8)
    ),
)
