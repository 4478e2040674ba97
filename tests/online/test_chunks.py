"""Chunked time gives what step by step gives."""

import numpy as np
import pytest
from networks import autodiff, largest_difference, problem

from tritonsnap import BPTT, GRU, RNN, RTRL, SnAp
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.plan.blocks import Regime

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

SIZES = {
    "dense": {"inputs": 3, "hidden": 6},
    "sparse": {"inputs": 4, "hidden": 9, "density": 0.25, "input_density": 0.5, "seed": 1},
    "thin": {"inputs": 2, "hidden": 40, "density": 0.04, "seed": 2},
}
CELLS = [
    pytest.param(kind(**sizes), id=f"{kind.__name__}-{name}")
    for kind in (RNN, GRU)
    for name, sizes in SIZES.items()
]
ORDERS = [1, 2, 3, None]
STEPS = 7


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def run(given, learner, chunk, carry=None):
    """Loss, gradients and carry, as NumPy arrays."""
    like = {"ndarray": "numpy", "Tensor": "torch"}.get(type(given.xs).__name__, "jax")
    carry = learner.init(given.xs.shape[1], like=like, dtype="float64") if carry is None else carry
    loss, (own, readout), carry = learner.sequence(
        given.params, carry, *given.sequence, readout=given.readout, chunk=chunk
    )
    gradients = {name: to_numpy(value) for name, value in {**own, **readout}.items()}
    return float(loss), gradients, carry


def check_equal(found, expected) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert largest_difference(found[1], expected[1]) < 1e-12
    assert int(found[2].step) == int(expected[2].step)
    arrays = [(found[2].state, expected[2].state)]
    arrays += zip(found[2].influence, expected[2].influence, strict=True)
    for one, other in arrays:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_chunk_is_its_steps(cell, order) -> None:
    given, learner = problem(cell, "numpy", STEPS), SnAp(cell, order)
    _, _, carry = run(given, learner, 1)  # an influence that is not zero
    expected = run(given, learner, 1, carry)
    for chunk in (2, 3, STEPS, STEPS + 3):
        check_equal(run(given, learner, chunk, carry), expected)
