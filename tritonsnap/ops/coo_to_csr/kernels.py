"""Row pointers of COO entries: a search in sorted rows, or chunk histograms and a scan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from tritonsnap.ops.kernel import Arguments, Grid, Kernel, Problem, config_space
from tritonsnap.tuning import Sizes

UNIT = 8192
"""Chunks of entries are multiples of it."""
TILE = 1024
"""Rows that one program scans."""
_MAX_CHUNKS = 256


@triton.jit
def csr_search(rows, nnz, num_rows, steps, pointers, BLOCK: tl.constexpr):
    """Write the number of entries before each row, by binary search in sorted rows."""
    o_row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    m_row = o_row <= num_rows
    b_low = tl.zeros([BLOCK], dtype=tl.int64)  # [BLOCK]
    b_high = b_low + nnz  # [BLOCK]
    for _ in range(steps):
        b_middle = b_low + (b_high - b_low) // 2
        m_open = m_row & (b_low < b_high)
        b_found = tl.load(rows + b_middle, mask=m_open, other=0)
        b_low = tl.where(m_open & (b_found < o_row), b_middle + 1, b_low)
        b_high = tl.where(m_open & (b_found >= o_row), b_middle, b_high)
    tl.store(pointers + o_row, b_low.to(pointers.dtype.element_ty), mask=m_row)


@triton.jit
def csr_count(
    rows,
    nnz,
    num_rows,
    units_per_chunk,
    counts,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Count a chunk's entries in each row of a tile."""
    i_chunk, i_tile = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first_row = i_tile * BINS
    o_entry = tl.arange(0, BLOCK)  # [BLOCK]
    b_count = tl.zeros([BINS], dtype=tl.int32)  # [BINS]
    blocks = units_per_chunk * (UNIT // BLOCK)
    first = i_chunk * blocks
    last = tl.minimum(first + blocks, nnz // BLOCK)
    for i_block in range(first, last):
        b_bin = tl.load(rows + tl.cast(i_block, tl.int64) * BLOCK + o_entry) - first_row  # [BLOCK]
        b_count += tl.histogram(b_bin.to(tl.int32), BINS, mask=(b_bin >= 0) & (b_bin < BINS))
    if last < first + blocks:
        o_tail = last * BLOCK + o_entry  # [BLOCK]
        b_bin = tl.load(rows + o_tail, mask=o_tail < nnz, other=-1) - first_row
        m_bin = (o_tail < nnz) & (b_bin >= 0) & (b_bin < BINS)
        b_count += tl.histogram(b_bin.to(tl.int32), BINS, mask=m_bin)
    o_row = first_row + tl.arange(0, BINS)  # [BINS]
    tl.store(counts + i_chunk * num_rows + o_row, b_count, mask=o_row < num_rows)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def csr_scan(counts, num_chunks, num_rows, sums, totals, TILE: tl.constexpr, CHUNKS: tl.constexpr):
    """Sum the chunks' counts, scan them within a tile of rows, and write the tile's total."""
    i_tile = tl.program_id(0).to(tl.int64)
    o_row = i_tile * TILE + tl.arange(0, TILE)  # [TILE]
    b_count = tl.zeros([TILE], dtype=sums.dtype.element_ty)  # [TILE]
    for i_first in range(0, num_chunks, CHUNKS):
        o_chunk = tl.cast(i_first, tl.int64) + tl.arange(0, CHUNKS)  # [CHUNKS]
        o_count = o_chunk[:, None] * num_rows + o_row[None, :]  # [CHUNKS, TILE]
        m_count = (o_chunk[:, None] < num_chunks) & (o_row[None, :] < num_rows)
        b_chunks = tl.load(counts + o_count, mask=m_count, other=0)
        b_count += tl.sum(b_chunks.to(b_count.dtype), axis=0)
    tl.store(sums + o_row, tl.associative_scan(b_count, 0, _add), mask=o_row < num_rows)
    tl.store(totals + i_tile, tl.sum(b_count))


@triton.jit
def csr_finish(sums, totals, num_rows, pointers, TILE: tl.constexpr):
    """Add to each tile's scan what the tiles before it hold."""
    i_tile = tl.program_id(0).to(tl.int64)
    o_tile = tl.arange(0, TILE)  # [TILE]
    b_before = tl.zeros([TILE], dtype=pointers.dtype.element_ty)  # [TILE]
    for i_first in range(0, i_tile, TILE):
        o_total = tl.cast(i_first, tl.int64) + o_tile
        b_before += tl.load(totals + o_total, mask=o_total < i_tile, other=0)
    o_row = i_tile * TILE + o_tile  # [TILE]
    b_sum = tl.load(sums + o_row, mask=o_row < num_rows, other=0)
    tl.store(pointers + 1 + o_row, b_sum + tl.sum(b_before), mask=o_row < num_rows)
    if i_tile == 0:
        tl.store(pointers, tl.sum(b_before))


def chunks_of(nnz: int, num_rows: int) -> tuple[int, int]:
    """Units in a chunk and the number of chunks; their counts are never much more than nnz."""
    entries = max(UNIT, num_rows, triton.cdiv(nnz, _MAX_CHUNKS))
    units = triton.cdiv(entries, UNIT)
    return units, triton.cdiv(nnz, units * UNIT)


def _rows(nnz: int, num_rows: int) -> NDArray[np.int64]:
    """Random rows, about half of them empty."""
    random = np.random.default_rng([nnz, num_rows])
    used = random.permutation(num_rows)[: (num_rows + 1) // 2]
    return random.choice(used, nnz)


def _counts(nnz: int, num_rows: int, num_chunks: int) -> NDArray[np.int64]:
    """How many of `_rows` each chunk has in each row."""
    chunk = np.arange(nnz) * num_chunks // max(nnz, 1)
    flat = np.bincount(chunk * num_rows + _rows(nnz, num_rows), minlength=num_chunks * num_rows)
    return flat.reshape(num_chunks, num_rows)


def _search_problem(nnz: int, num_rows: int) -> Problem:
    return Problem(
        arguments={
            "rows": np.sort(_rows(nnz, num_rows)),
            "nnz": nnz,
            "num_rows": num_rows,
            "steps": nnz.bit_length(),
        },
        outputs={"pointers": (num_rows + 1,)},
        sizes={"nnz": nnz, "num_rows": num_rows},
    )


def _search_reference(rows: NDArray[Any], num_rows: int, **_: Any) -> Mapping[str, NDArray[Any]]:
    return {"pointers": np.searchsorted(rows, np.arange(num_rows + 1))}


def _count_problem(nnz: int, num_rows: int) -> Problem:
    units, num_chunks = chunks_of(nnz, num_rows)
    return Problem(
        arguments={
            "rows": _rows(nnz, num_rows),
            "nnz": nnz,
            "num_rows": num_rows,
            "units_per_chunk": units,
        },
        outputs={"counts": (num_chunks, num_rows)},
        sizes={"nnz": nnz, "num_rows": num_rows},
    )


def _count_reference(
    rows: NDArray[Any], nnz: int, num_rows: int, units_per_chunk: int
) -> Mapping[str, NDArray[Any]]:
    chunk = np.arange(nnz) // (units_per_chunk * UNIT)
    num_chunks = triton.cdiv(nnz, units_per_chunk * UNIT)
    counts = np.bincount(chunk * num_rows + rows, minlength=num_chunks * num_rows)
    return {"counts": counts.reshape(num_chunks, num_rows)}


def _count_grid(arguments: Arguments) -> Grid:
    chunks = triton.cdiv(arguments["nnz"], arguments["units_per_chunk"] * UNIT)
    return chunks, triton.cdiv(arguments["num_rows"], arguments["BINS"])


def _scan_problem(num_chunks: int, num_rows: int) -> Problem:
    return Problem(
        arguments={
            "counts": _counts(3 * num_rows, num_rows, num_chunks),
            "num_chunks": num_chunks,
            "num_rows": num_rows,
        },
        outputs={"sums": (num_rows,), "totals": (triton.cdiv(num_rows, TILE),)},
        sizes={"num_chunks": num_chunks, "num_rows": num_rows},
    )


def _scan_reference(counts: NDArray[Any], num_rows: int, **_: Any) -> Mapping[str, NDArray[Any]]:
    count = counts.sum(axis=0)
    sums = np.concatenate([np.cumsum(tile) for tile in _tiles(count)])
    return {"sums": sums, "totals": np.array([tile.sum() for tile in _tiles(count)])}


def _finish_problem(num_rows: int) -> Problem:
    scan = _scan_problem(1, num_rows)
    return Problem(
        arguments={**_scan_reference(**scan.arguments), "num_rows": num_rows},
        outputs={"pointers": (num_rows + 1,)},
        sizes={"num_rows": num_rows},
    )


def _finish_reference(
    sums: NDArray[Any], totals: NDArray[Any], **_: Any
) -> Mapping[str, NDArray[Any]]:
    before = np.cumsum(totals) - totals
    tiles = [tile + first for tile, first in zip(_tiles(sums), before, strict=True)]
    return {"pointers": np.concatenate([[0], *tiles])}


def _tiles(array: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(array, range(TILE, array.size, TILE))


def _sizes(*pairs: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"nnz": nnz, "num_rows": num_rows} for nnz, num_rows in pairs)


_SMALL = _sizes((1, 1), (7, 1), (1, 3000), (5000, 37), (8192, 1024), (20_000, 5003))
_LARGE = _sizes(*((2**nnz, 2**rows) for nnz in (14, 18, 22, 26) for rows in (8, 11, 14, 17)))

CSR_SEARCH = Kernel(
    csr_search,
    signature={
        "rows": "*T",
        "nnz": "i64",
        "num_rows": "i64",
        "steps": "i32",
        "pointers": "*T",
    },
    dtypes=("i32", "i64"),
    configs=config_space(BLOCK=(128, 256, 512), num_warps=(2, 4)),
    heuristic=lambda sizes, dtype, precision, device: {"BLOCK": 128, "num_warps": 4},
    grid=lambda arguments: (triton.cdiv(arguments["num_rows"] + 1, arguments["BLOCK"]),),
    problem=_search_problem,
    reference=_search_reference,
    small=_SMALL,
    large=_LARGE,
)

CSR_COUNT = Kernel(
    csr_count,
    signature={
        "rows": "*T",
        "nnz": "i64",
        "num_rows": "i64",
        "units_per_chunk": "i64",
        "counts": "*i32",
    },
    dtypes=("i32", "i64"),
    configs=config_space(BLOCK=(1024, 2048, 4096), BINS=(256, 1024), num_warps=(4, 8)),
    # of these shapes, only two leave gfx942 enough scalar registers for the masks
    heuristic=lambda sizes, dtype, precision, device: {
        "BLOCK": 1024 if sizes["num_rows"] <= 256 else 2048,
        "BINS": 256 if sizes["num_rows"] <= 256 else 1024,
        "num_warps": 4,
    },
    grid=_count_grid,
    problem=_count_problem,
    reference=_count_reference,
    small=_SMALL,
    large=_LARGE,
    constants={"UNIT": UNIT},
    wide_loads=True,
)

CSR_SCAN = Kernel(
    csr_scan,
    signature={
        "counts": "*i32",
        "num_chunks": "i32",
        "num_rows": "i64",
        "sums": "*T",
        "totals": "*T",
    },
    dtypes=("i32", "i64"),
    configs=config_space(CHUNKS=(1, 4, 8, 16), num_warps=(4, 8)),
    heuristic=lambda sizes, dtype, precision, device: {"CHUNKS": 8, "num_warps": 8},
    grid=lambda arguments: (triton.cdiv(arguments["num_rows"], TILE),),
    problem=_scan_problem,
    reference=_scan_reference,
    small=tuple(
        {"num_chunks": chunks, "num_rows": rows}
        for chunks, rows in ((1, 1), (3, 37), (9, 1024), (20, 3000))
    ),
    large=tuple(
        {"num_chunks": 2**chunks, "num_rows": 2**rows}
        for chunks in (2, 5, 8)
        for rows in (8, 11, 14, 17)
    ),
    constants={"TILE": TILE},
)

CSR_FINISH = Kernel(
    csr_finish,
    signature={"sums": "*T", "totals": "*T", "num_rows": "i64", "pointers": "*T"},
    dtypes=("i32", "i64"),
    configs=config_space(num_warps=(2, 4, 8)),
    heuristic=lambda sizes, dtype, precision, device: {"num_warps": 4},
    grid=lambda arguments: (triton.cdiv(arguments["num_rows"], TILE),),
    problem=_finish_problem,
    reference=_finish_reference,
    small=tuple({"num_rows": rows} for rows in (1, 37, 1024, 3000)),
    large=tuple({"num_rows": 2**rows} for rows in (8, 11, 14, 17, 20)),
    constants={"TILE": TILE},
)
