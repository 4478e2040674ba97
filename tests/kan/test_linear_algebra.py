"""What SciPy and threadpoolctl add where they are installed, and what goes on without them."""

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer, linear_algebra
from tritonsnap.kan.linear_algebra import one_blas_thread, solve_positive

SYSTEM = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 2.0]])
RIGHT = np.array([[1.0], [-2.0], [3.0]])


@pytest.fixture(params=[True, False], ids=["with SciPy", "without SciPy"])
def scipy(request, monkeypatch):
    if request.param:
        pytest.importorskip("scipy")
    else:
        monkeypatch.setattr(linear_algebra, "_import_optional", lambda name: None)


@pytest.mark.usefixtures("scipy")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_solution_solves_the_system(dtype):
    system, right = SYSTEM.astype(dtype), RIGHT.astype(dtype)
    solution = solve_positive(np, system, right)
    assert solution.dtype == dtype
    np.testing.assert_allclose(SYSTEM @ solution, RIGHT, rtol=1e-6 if dtype == "float32" else 1e-14)
    again = solve_positive(np, system, right)
    assert solution.tobytes() == again.tobytes()


@pytest.mark.usefixtures("scipy")
def test_a_system_that_is_not_positive_is_solved_all_the_same():
    system = SYSTEM - 3.5 * np.eye(3)
    np.testing.assert_allclose(system @ solve_positive(np, system, RIGHT), RIGHT, rtol=1e-12)


def test_training_is_the_same_with_and_without_scipy(records, monkeypatch):
    pytest.importorskip("scipy")
    models = [KAN(3, 8, 5, 9, targets=2, dtype="float64") for _ in range(2)]
    Trainer(models[0], block=64).fit(*records, progress=False)
    monkeypatch.setattr(linear_algebra, "_import_optional", lambda name: None)
    Trainer(models[1], block=64).fit(*records, progress=False)
    first, second = (model.predict(records[0]) for model in models)
    np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-8)


def test_blas_has_one_thread_within():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def counts():
        pools = threadpoolctl.threadpool_info()
        return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]

    before = counts()
    with one_blas_thread():
        assert set(counts()) == {1}
    assert counts() == before


def test_without_threadpoolctl_training_goes_on(monkeypatch):
    monkeypatch.setattr(linear_algebra, "_import_optional", lambda name: None)
    linear_algebra._blas_controller.cache_clear()
    try:
        with one_blas_thread():
            pass
    finally:
        linear_algebra._blas_controller.cache_clear()
