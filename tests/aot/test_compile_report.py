"""What the report of a compiled kernel sees."""

import dataclasses

import pytest
import triton
import triton.language as tl

from tritonsnap.autotune.compile import compile_kernel, faults_of
from tritonsnap.ops.kernel import Kernel
from tritonsnap.tuning import TARGETS, Device


@triton.jit
def copy(x, n, y, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n, other=0), mask=offsets < n)
    else:
        tl.store(y + offsets, tl.load(x + offsets))


@triton.jit
def product(a, b, n, c, BLOCK: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    rows, inner = tl.arange(0, BLOCK), tl.arange(0, BK)
    kind = tl.float64 if c.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK], dtype=kind)
    for first in range(0, n, BK):
        step = tl.cast(first, tl.int64)
        left = tl.load(a + (step + inner)[None, :] * BLOCK + rows[:, None])
        right = tl.load(b + (step + inner)[:, None] * BLOCK + rows[None, :])
        total = tl.dot(left, right, acc=total, input_precision=PRECISION, out_dtype=kind)
    tl.store(c + rows[:, None] * BLOCK + rows[None, :], total.to(c.dtype.element_ty))


@triton.jit
def hoard(x, n, y, BLOCK: tl.constexpr):
    """Keep more values at once than a thread has registers."""
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    total = values
    for _ in range(n):
        total = total * values + tl.load(x + offsets)
        values = values * total
    tl.store(y + offsets, total + values)


def declared(function, signature, **more) -> Kernel:
    return Kernel(
        function,
        signature=signature,
        dtypes=("fp32",),
        configs=(),
        heuristic=lambda *_: {},
        grid=lambda arguments: (1,),
        problem=lambda: None,
        reference=dict,
        small=(),
        large=(),
        **more,
    )


COPY = {"x": "*T", "n": "i32", "y": "*T"}
PRODUCT = declared(product, {"a": "*T", "b": "*T", "n": "i32", "c": "*T"}, dots=True)


def arch(device: Device) -> str:
    return device.arch


@pytest.fixture(params=TARGETS, ids=arch)
def device(request: pytest.FixtureRequest) -> Device:
    return request.param


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "i32"])
def test_wide_accesses(device: Device, dtype: str) -> None:
    config = {"BLOCK": 2048, "num_warps": 4}
    wide = declared(copy, COPY, constants={"MASKED": False})
    report = compile_kernel(wide, dtype, "ieee", config, device)
    assert report.wide_loads > 0
    assert report.wide_stores > 0
    masked = declared(copy, COPY, constants={"MASKED": True})
    report = compile_kernel(masked, dtype, "ieee", config, device)
    assert report.wide_loads == report.wide_stores == 0


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        ("fp32", "ieee", None),
        ("fp32", "tf32", True),
        ("fp32", "tf32x3", True),
        ("fp16", "ieee", True),
        ("bf16", "ieee", True),
        ("fp64", "ieee", True),
        ("i32", None, False),
    ],
)
def test_tensor_cores(device: Device, dtype: str, precision: str, expected: bool | None) -> None:
    config = {"BLOCK": 32, "BK": 16, "num_warps": 4, "num_stages": 2}
    if precision is None:
        kernel = declared(copy, COPY, constants={"MASKED": False})
        report = compile_kernel(kernel, dtype, "ieee", {"BLOCK": 64}, device)
    else:
        report = compile_kernel(PRODUCT, dtype, precision, config, device)
    if expected is None:  # float32 without loss: plain multiplications on NVIDIA, MFMA on AMD
        expected = device.is_hip
    assert (report.tensor_cores > 0) == expected


def test_spills_are_seen(device: Device) -> None:
    config = {"BLOCK": 16384 if device.is_hip else 8192, "num_warps": 1}
    report = compile_kernel(declared(hoard, COPY), "fp32", "ieee", config, device)
    assert report.spills > 0
    assert any("spills" in fault for fault in faults_of(report, device))


def test_too_much_shared_memory_is_seen(device: Device) -> None:
    config = {"BLOCK": 32, "BK": 32, "num_warps": 4, "num_stages": 3}
    report = compile_kernel(PRODUCT, "fp16", "ieee", config, device)
    assert report.shared >= 32 * 32 * 2
    assert not faults_of(report, device)
    more = dataclasses.replace(report, shared=device.shared_memory + 1)
    assert any("shared memory" in fault for fault in faults_of(more, device))
