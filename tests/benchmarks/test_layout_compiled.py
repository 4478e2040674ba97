"""The layout model against what Triton's compiler decides; no GPU is needed."""

import os
import re

import numpy as np
import pytest

from benchmarks.traffic.layout import split

triton = pytest.importorskip("triton", reason="needs triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter cannot compile", allow_module_level=True)

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def tile_kernel(p_out, p_in, row_stride, col_stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    o = tl.arange(0, ROWS)[:, None] * row_stride + tl.arange(0, COLS)[None, :] * col_stride
    tl.store(p_out + o, tl.load(p_in + o))


def compiled_layout(rows, cols, row_stride, dtype, num_warps):
    """Elements, lanes and warps along rows and columns, as Triton chooses them."""
    aligned = [["tt.divisibility", 16]]
    one, other = ("row_stride", "col_stride") if row_stride == 1 else ("col_stride", "row_stride")
    names = ("p_out", "p_in", "row_stride", "col_stride")
    source = ASTSource(
        tile_kernel,
        signature={
            "p_out": f"*{dtype}",
            "p_in": f"*{dtype}",
            other: "i32",
            one: "constexpr",
            "ROWS": "constexpr",
            "COLS": "constexpr",
        },
        constexprs={one: 1, "ROWS": rows, "COLS": cols},
        attrs={(names.index(name),): aligned for name in ("p_out", "p_in", other)},
    )
    target = GPUTarget("cuda", 80, 32)
    text = triton.compile(source, target=target, options={"num_warps": num_warps}).asm["ttgir"]
    (found,) = set(
        re.findall(
            r"blocked<\{sizePerThread = \[(\d+), (\d+)\], threadsPerWarp = \[(\d+), (\d+)\], "
            r"warpsPerCTA = \[(\d+), (\d+)\]",
            text,
        )
    )
    return np.array(found, int).reshape(3, 2)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize(
    ("rows", "cols", "row_stride", "num_warps"),
    [(16, 128, 256, 4), (128, 16, 1, 4), (16, 16, 64, 2), (64, 4, 16, 4), (4, 256, 256, 8)],
)
def test_lanes_and_warps_are_those_of_the_compiler(rows, cols, row_stride, num_warps, dtype):
    elements, lanes, warps = compiled_layout(rows, cols, row_stride, dtype, num_warps)
    itemsize = {"fp32": 4, "fp64": 8}[dtype]
    row, col = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    offsets = itemsize * (row * row_stride + col * (256 if row_stride == 1 else 1))
    requests = split(offsets, np.ones_like(offsets, bool), itemsize, num_warps)

    per_request = elements * lanes
    expected = row // per_request[0] * cols + col // per_request[1]
    pairs = np.unique(np.stack([expected.ravel(), requests.request]), axis=1)
    assert pairs.shape[1] == len(np.unique(expected)) == len(np.unique(requests.request))
    blocks = -(-np.array([rows, cols]) // per_request)
    assert requests.copies == num_warps // np.minimum(warps, blocks).prod()
