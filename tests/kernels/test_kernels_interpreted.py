"""Every declared kernel in the interpreter, against its reference."""

import pytest

from tritonsnap.autotune.runner import TorchRunner, verify
from tritonsnap.ops.kernel import Kernel, declared_kernels
from tritonsnap.tuning import Sizes

RUNNER = TorchRunner("cpu")
CASES = [
    pytest.param(kernel, dtype, precision, sizes, id=f"{kernel.name}-{dtype}-{precision}-{number}")
    for kernel in declared_kernels()
    for dtype in kernel.dtypes
    if dtype != "bf16"  # the interpreter computes wrong bfloat16 values
    for precision in kernel.precisions
    if precision == "ieee"  # it knows no TF32
    for number, sizes in enumerate(kernel.small)
]


@pytest.mark.parametrize(("kernel", "dtype", "precision", "sizes"), CASES)
def test_kernel_equals_its_reference(
    kernel: Kernel, dtype: str, precision: str, sizes: Sizes
) -> None:
    problem = kernel.problem(**sizes)
    config = kernel.default(sizes, dtype, precision, RUNNER.device)
    expected = RUNNER.expected(kernel, problem, dtype)
    verify(RUNNER, kernel, problem, config, dtype, precision, expected)
