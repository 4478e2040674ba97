"""What the comparison with a reference would catch."""

import numpy as np
import pytest
import triton
import triton.language as tl

from tritonsnap.autotune.runner import TorchRunner, WrongResultError, verify
from tritonsnap.ops.kernel import Kernel, Problem

RUNNER = TorchRunner("cpu")


@triton.jit
def scale(x, n, y, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0).to(tl.float64) * FACTOR
    tl.store(y + offsets, values.to(y.dtype.element_ty), mask=offsets < n)


@triton.jit
def scale_in_place(n, y, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(y + offsets, mask=offsets < n, other=0)
    tl.store(y + offsets, values * FACTOR, mask=offsets < n)


def values(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n)


def declared(function=scale, signature=None, problem=None, factor: float = 3.0) -> Kernel:
    return Kernel(
        function,
        signature=signature or {"x": "*T", "n": "i32", "y": "*T"},
        dtypes=("fp64", "fp32", "fp16", "bf16"),
        configs=(),
        heuristic=lambda *_: {},
        grid=lambda arguments: (triton.cdiv(arguments["n"], 64),),
        problem=problem or (lambda n: Problem({"x": values(n), "n": n}, {"y": (n,)}, {"n": n})),
        reference=lambda n, x=None, y=None: {"y": 3 * (y if x is None else x)},
        small=(),
        large=(),
        constants={"FACTOR": factor},
    )


def check(kernel: Kernel, dtype: str = "fp32", n: int = 50, block: int = 64) -> None:
    problem = kernel.problem(n=n)
    expected = RUNNER.expected(kernel, problem, dtype)
    verify(RUNNER, kernel, problem, {"BLOCK": block}, dtype, "ieee", expected)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16"])
def test_right_kernel_passes(dtype: str) -> None:
    check(declared(), dtype)


def test_nothing_to_do() -> None:
    check(declared(), n=0)


def test_unwritten_output_is_caught() -> None:
    with pytest.raises(WrongResultError, match="`y` is off by at most nan"):
        check(declared(), block=32)


@pytest.mark.parametrize(("dtype", "error"), [("fp64", 1e-11), ("fp32", 1e-4), ("fp16", 1e-2)])
def test_inexact_result_is_caught(dtype: str, error: float) -> None:
    with pytest.raises(WrongResultError, match="`y` is off by at most"):
        check(declared(factor=3.0 * (1 + error)), dtype)


def test_inputs_are_rounded_before_the_reference_sees_them() -> None:
    expected = RUNNER.expected(declared(), declared().problem(n=50), "bf16")["y"]
    error = np.abs(expected - 3 * values(50))
    assert 0 < error.max() < 2**-8 * np.abs(expected).max()


def test_in_place_output_starts_from_the_argument() -> None:
    kernel = declared(
        scale_in_place,
        {"n": "i32", "y": "*T"},
        lambda n: Problem({"n": n, "y": values(n)}, {"y": (n,)}, {"n": n}),
    )
    check(kernel)
    check(kernel)  # on a fresh copy, not on what the first launch left


def test_a_process_that_interprets_does_not_compile() -> None:
    from tritonsnap.autotune.compile import compile_kernel
    from tritonsnap.tuning import TARGETS

    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        compile_kernel(declared(), "fp32", "ieee", {"BLOCK": 64}, TARGETS[0])
