import triton
import triton.language as tl


@triton.jit
def copy_kernel(p_out, p_in, size, stride, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < size
    tl.store(p_out + o * stride, tl.load(p_in + o * stride, mask=m, other=0.0), mask=m)


@triton.jit
def gather_kernel(p_out, p_in, p_index, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_out + o, tl.load(p_in + tl.load(p_index + o)))


@triton.jit
def transpose_kernel(p_out, p_in, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    o_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    o_col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    tl.store(p_out + o_col * rows + o_row, tl.load(p_in + o_row * cols + o_col))


@triton.jit
def matmul_kernel(p_out, p_a, p_b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    a = tl.load(p_a + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
    b = tl.load(p_b + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    c = tl.dot(a, b, input_precision="ieee")
    tl.store(p_out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], c)


@triton.jit
def scale_kernel(p_x, p_scale, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_x + o, tl.load(p_x + o) * tl.load(p_scale))
