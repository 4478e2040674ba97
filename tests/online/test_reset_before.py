"""The GRU with the reset gate before the matrix product, against autodiff."""

import copy
import pickle

import numpy as np
import pytest
from networks import autodiff, largest_difference, new_state, problem
from test_cells import central_differences, flat, shaped, values

from tritonsnap import BPTT, GRU, RTRL, FunctionCell, SnAp
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

DENSE = GRU(inputs=3, hidden=12, reset="before")
SPARSE = GRU(inputs=9, hidden=12, density=0.15, input_density=0.4, seed=3, reset="before")
cells = pytest.mark.parametrize("cell", [DENSE, SPARSE], ids=["dense", "sparse"])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@cells
@pytest.mark.parametrize("dense", [True, False])
def test_jacobians_and_patterns_are_those_of_finite_differences(cell, dense: bool) -> None:
    params, state, x = values(cell)
    new, immediate, dynamics = cell.make_jacobians(cell.dynamics_pattern)(
        cell.prepare(params), state[None], x[None], dense
    )
    np.testing.assert_allclose(new[0], new_state(np, cell, params, state, x), rtol=1e-13)
    expected = central_differences(
        lambda theta: new_state(np, cell, shaped(cell, theta), state, x), flat(cell, params)
    )
    found = cell.immediate_pattern.to_dense(immediate)[0]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert immediate.all()  # no entry of the pattern is always zero
    expected = central_differences(lambda h: new_state(np, cell, params, h, x), state)
    found = dynamics if dense else cell.dynamics_pattern.to_dense(dynamics)
    np.testing.assert_allclose(found[0], expected, atol=1e-9)
    assert np.count_nonzero(dynamics) == cell.dynamics_pattern.nnz


@pytest.mark.parametrize(
    ("cell", "like"),
    [(SPARSE, like) for like in LIBRARIES] + [(DENSE, "numpy"), (DENSE, "torch")],
)
def test_rtrl_and_bptt_equal_autodiff(cell, like: str) -> None:
    given = problem(cell, like, steps=25)
    loss, gradients, state = autodiff(
        problem(cell, "torch", steps=25) if like == "numpy" else given
    )
    assert SnAp(cell, 12).plan == RTRL(cell).plan
    for learner in (RTRL(cell), BPTT(cell)):
        found_loss, found, carry = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert largest_difference(found, gradients) < 1e-10
        np.testing.assert_allclose(to_numpy(carry.state), state, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("order", "like"), [(1, "numpy"), *((2, like) for like in LIBRARIES)])
def test_snap_is_the_masked_recurrence_of_dense_jacobians(order: int, like: str) -> None:
    """J_t = I_t + M * (D_t J_{t-1}) with Jacobians of torch and M from their patterns."""
    xp, learner = namespace(like), SnAp(SPARSE, order)
    given = problem(SPARSE, "torch", steps=6, batch=1)

    def step(theta, state, x):
        return new_state(torch, SPARSE, shaped(SPARSE, theta), state, x)

    theta = torch.cat([m.flat(given.params[m.name]) for m in SPARSE.maps])
    state, influence = torch.zeros(12, dtype=torch.float64), None
    jacobians = torch.func.jacrev(step, argnums=(0, 1))
    reached = mask = jacobians(theta, torch.rand(12).double(), given.xs[0, 0])[0] != 0
    for _ in range(order - 1):
        own = jacobians(theta, torch.rand(12).double(), given.xs[0, 0])[1] != 0
        mask = reached | ((own.double() @ mask.double()) > 0)
    carry = learner.init(1, like=like, dtype="float64")
    params = {name: xp.asarray(value.numpy()) for name, value in given.params.items()}
    run = jax.jit(type(learner).step) if like == "jax" else type(learner).step
    for x in given.xs[:, 0]:
        immediate, dynamics = jacobians(theta, state, x)
        influence = immediate if influence is None else immediate + mask * (dynamics @ influence)
        state = step(theta, state, x)
        carry, _ = run(learner, params, carry, xp.asarray(x[None].numpy()))
    delta = np.random.default_rng(0).normal(size=(1, 12))
    found = learner.gradient(carry, xp.asarray(delta))
    found = {name: to_numpy(value) for name, value in found.items()}
    expected = shaped(SPARSE, delta[0] @ influence.numpy())
    assert largest_difference(found, expected) < 1e-12


def test_it_is_the_function_cell_of_the_same_equations() -> None:
    given = problem(SPARSE, "torch", steps=8)
    plain = FunctionCell(
        lambda params, state, x: new_state(torch, SPARSE, params, state, x),
        given.params,
        inputs=9,
        hidden=12,
    )
    assert plain.dynamics_pattern == SPARSE.dynamics_pattern
    assert plain.immediate_pattern.nnz == SPARSE.immediate_pattern.nnz
    expected = given.run(SnAp(SPARSE, 2))[1]
    assert largest_difference(given.run(SnAp(plain, 2))[1], expected) < 1e-12


def test_a_learner_as_an_argument_keeps_its_indices_out_of_the_program() -> None:
    learner = SnAp(SPARSE, 1)
    carry = learner.init(1, like="jax", dtype="float64")
    params = SPARSE.init(0, like="jax", dtype="float64")
    step = jax.jit(lambda learner, params, carry, x: learner.step(params, carry, x))
    lowered = step.lower(learner, params, carry, jax.numpy.ones((1, 9))).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert max(map(len, constants)) < 120


def test_it_is_a_gru_of_its_own() -> None:
    again = GRU(inputs=3, hidden=12, reset="before")
    assert again == DENSE
    assert again.digest == DENSE.digest != GRU(inputs=3, hidden=12).digest
    assert isinstance(DENSE, GRU)
    assert "bias_recurrent" not in DENSE.init(0)
    assert copy.copy(DENSE) == DENSE
    assert pickle.loads(pickle.dumps(DENSE)) == DENSE
    with pytest.raises(ValueError, match=r"`reset` must be one of \('after', 'before'\), got 'x'"):
        GRU(inputs=3, hidden=2, reset="x")
    with pytest.raises(TypeError, match="has no factored immediate Jacobian"):
        DENSE.linearize(DENSE.prepare(DENSE.init(0)), np.zeros((1, 12)), np.zeros((1, 3)))
