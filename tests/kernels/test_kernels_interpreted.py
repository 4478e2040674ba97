"""Every declared kernel in the interpreter, against its reference."""

from dataclasses import replace

import numpy as np
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


BATCHED = [
    (kernel, max(kernel.small, key=lambda sizes: sizes["batch"]))
    for kernel in declared_kernels()
    if "batch" in kernel.small[0]
]


@pytest.mark.parametrize(("kernel", "sizes"), BATCHED, ids=[kernel.name for kernel, _ in BATCHED])
def test_nan_stays_in_its_batch_row(kernel: Kernel, sizes: Sizes) -> None:
    problem, batch = kernel.problem(**sizes), sizes["batch"]
    assert batch > 1
    poisoned = dict(problem.arguments)
    for name, value in problem.arguments.items():
        if kernel.signature[name] in ("*T", "*A") and len(value) == batch:
            poisoned[name] = value.copy()
            poisoned[name][1] = np.nan
    config = kernel.default(sizes, "fp32", "ieee", RUNNER.device)
    clean = RUNNER.run(kernel, problem, config, "fp32", "ieee")
    found = RUNNER.run(kernel, replace(problem, arguments=poisoned), config, "fp32", "ieee")
    for name, output in found.items():
        if len(output) == batch:  # the others are sums over the batch
            others = np.arange(batch) != 1
            np.testing.assert_array_equal(output[others], clean[name][others])
            assert np.isnan(output[1]).any()
        else:
            assert np.isnan(output).any()
