"""The list of declared kernels, and what each must say of itself."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("triton")

from tritonsnap.ops.kernel import OPTIONS, Kernel, config_space, declared_kernels
from tritonsnap.tuning import TARGETS

KERNELS = declared_kernels()


def test_every_kernel_is_found() -> None:
    names = [kernel.name for kernel in KERNELS]
    assert names == sorted(names)
    assert {"csr_search", "csr_count", "csr_scan", "csr_finish"} <= set(names)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_declaration_fits_the_function(kernel: Kernel) -> None:
    names = list(kernel.function.arg_names)
    assert names[: len(kernel.signature)] == list(kernel.signature)
    for config in kernel.configs:
        constexprs = kernel.constexprs(config, "ieee", hip=False)
        assert sorted(names[len(kernel.signature) :]) == sorted(constexprs)
        assert "num_warps" in config


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_outputs_come_last_of_the_run_time_arguments(kernel: Kernel) -> None:
    outputs = kernel.problem(**kernel.small[0]).outputs
    assert list(kernel.signature)[-len(outputs) :] == list(outputs)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_problems_repeat_and_match_the_reference(kernel: Kernel) -> None:
    for sizes in kernel.small:
        problem, again = kernel.problem(**sizes), kernel.problem(**sizes)
        assert problem.sizes == sizes
        for name, value in problem.arguments.items():
            np.testing.assert_array_equal(value, again.arguments[name])
        expected = kernel.reference(**problem.arguments)
        assert {name: array.shape for name, array in expected.items()} == problem.outputs


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_defaults_are_deterministic_and_tunable(kernel: Kernel) -> None:
    for device in TARGETS:
        for sizes in (*kernel.small, *kernel.large):
            config = kernel.default(sizes, kernel.dtypes[0], "ieee", device)
            assert config == kernel.default(sizes, kernel.dtypes[0], "ieee", device)
            assert config.keys() == kernel.configs[0].keys()


def test_default_loses_stages_until_it_fits() -> None:
    kernel = Kernel(
        lambda: None,
        signature={},
        dtypes=("fp32",),
        configs=(),
        heuristic=lambda *_: {"num_warps": 4, "num_stages": 4},
        grid=lambda _: (1,),
        problem=lambda: None,
        reference=dict,
        small=(),
        large=(),
        shared_bytes=lambda config, dtype: 60_000 * config["num_stages"],
    )
    stages = [kernel.default({}, "fp32", "ieee", device)["num_stages"] for device in TARGETS]
    assert stages == [2, 3, 3, 1]


def test_a_batch_too_large_for_a_grid_raises() -> None:
    kernel = next(kernel for kernel in declared_kernels() if kernel.name == "walk_product")
    sizes = {"tiles": np.zeros((3, 3)), "batch": 1 << 17}
    assert kernel.programs({**sizes, "B": 4}) == (3, 1 << 15)
    with pytest.raises(ValueError, match=r"`walk_product` .* 65535 .* fewer batch rows"):
        kernel.programs({**sizes, "B": 2})


def test_config_space_is_a_product() -> None:
    assert config_space(BLOCK=(1, 2), num_warps=(4,)) == (
        {"BLOCK": 1, "num_warps": 4},
        {"BLOCK": 2, "num_warps": 4},
    )
    assert "num_warps" in OPTIONS


def test_op_imports_no_framework() -> None:
    code = """
import sys, numpy as np
from tritonsnap.ops.coo_to_csr import coo_to_csr
import tritonsnap.tuning, tritonsnap.ops.kernel, tritonsnap.autotune.command
coo_to_csr(np.array([0, 1]), 2)
assert not {"torch", "jax", "triton"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
