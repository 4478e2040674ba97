"""Every declared kernel compiled and run on the GPU at hand, against its reference."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no CUDA or ROCm device"),
]


def kernel_cases() -> list[object]:
    from tritonsnap.ops.kernel import declared_kernels

    return [
        pytest.param(kernel, dtype, precision, id=f"{kernel.name}-{dtype}-{precision}")
        for kernel in declared_kernels()
        for dtype in kernel.dtypes
        for precision in kernel.precisions
    ]


# without a GPU triton stays unimported, so that tests of the interpreter can run
CASES = kernel_cases() if HAS_GPU else [pytest.param(None, "", "", id="every-kernel")]


@pytest.mark.parametrize(("kernel", "dtype", "precision"), CASES)
def test_kernel_equals_its_reference(kernel, dtype: str, precision: str) -> None:
    from tritonsnap.autotune.runner import TorchRunner, verify

    runner = TorchRunner("cuda")
    for sizes in kernel.small:
        problem = kernel.problem(**sizes)
        config = kernel.default(sizes, dtype, precision, runner.device)
        expected = runner.expected(kernel, problem, dtype)
        verify(runner, kernel, problem, config, dtype, precision, expected)
        first = runner.run(kernel, problem, config, dtype, precision)
        again = runner.run(kernel, problem, config, dtype, precision)
        for name, output in first.items():
            assert output.tobytes() == again[name].tobytes()


@pytest.mark.parametrize("is_sorted", [False, True])
def test_coo_to_csr(is_sorted: bool) -> None:
    import tritonsnap.ops.coo_to_csr as op

    rows = torch.randint(0, 3000, (100_000,), generator=torch.Generator().manual_seed(0))
    rows = rows.sort().values if is_sorted else rows
    found = op.coo_to_csr(rows.cuda(), 3000, indices_are_sorted=is_sorted)
    assert found.cpu().tolist() == op.coo_to_csr(rows, 3000).tolist()
