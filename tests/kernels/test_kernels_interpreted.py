"""Every declared kernel in the interpreter, against its reference."""

import pytest

from tritonsnap.autotune.runner import TorchRunner, verify
from tritonsnap.ops.influence_update.kernels import SNAP1_STEP, SNAP1_UPDATE
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


@pytest.mark.parametrize("kernel", [SNAP1_STEP, SNAP1_UPDATE], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("blocks", [(2, 1, 4), (4, 4, 1), (1, 4, 2)])
def test_steps_of_several_tiles(kernel: Kernel, blocks: tuple[int, int, int]) -> None:
    config = dict(zip(("B", "TILES", "SPAN"), blocks, strict=True)) | {"num_warps": 4}
    assert config in kernel.configs
    problem = kernel.problem(values=2005, batch=3)  # eight tiles, the last one not full
    expected = RUNNER.expected(kernel, problem, "fp32")
    verify(RUNNER, kernel, problem, config, "fp32", "ieee", expected)
