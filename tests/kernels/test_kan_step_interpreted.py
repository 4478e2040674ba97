"""`kan_step` in torch with its kernels in the interpreter: whole training steps."""

import numpy as np
import pytest
import torch

from tritonsnap.kan import KAN, Rule, train_step
from tritonsnap.ops.kan_step import torch as face


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_runs_kernels", lambda *tensors: True)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("solver", ["kaczmarz", "newton-kaczmarz"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_on_kernels_is_the_step_in_numpy(solver: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    x = random.uniform(-1, 1, (40, 3)).astype(dtype)
    y = random.normal(size=(40, 2)).astype(dtype)
    model = KAN(3, 5, 4, 7, targets=2, dtype=dtype)
    model.initialize(x[:30], y[:30])
    rule = Rule(solver, "mean", 0.5, 1.0, 1.0, 0.3, 1.0, 0.75, 2.0, adapt=True)
    expected, error = train_step(model.functions, x, y, rule)
    functions = model.functions_in("torch")
    found, found_error = train_step(functions, torch.from_numpy(x), torch.from_numpy(y), rule)
    again, _ = train_step(functions, torch.from_numpy(x), torch.from_numpy(y), rule)
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    for name, value in expected._asdict().items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(getattr(found, name), value, tolerance, tolerance * scale)
        assert torch.equal(getattr(found, name), getattr(again, name))
    np.testing.assert_allclose(found_error, error, tolerance)


@pytest.mark.usefixtures("_kernels")
def test_positions_outside_of_the_grid_read_no_other_memory() -> None:
    positions = torch.tensor([[0.5], [-3.0], [9.0], [torch.nan], [torch.inf], [-torch.inf]])
    outer = torch.tensor([[[1.0], [2.0], [4.0]]])
    (sums,), rises = face.outer_values(positions, outer)
    assert sums[:3].tolist() == [1.5, -2.0, 18.0]  # the first and the last interval go on
    assert rises.flatten()[:3].tolist() == [1, 1, 2]
    assert sums[3].isnan()
    assert not sums[4:].isfinite().any()
