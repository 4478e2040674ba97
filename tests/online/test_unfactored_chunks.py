"""Chunked time of cells whose Jacobians come as values gives what step by step gives."""

import numpy as np
import pytest
from networks import problem
from test_chunks import check_equal
from test_function_cells import (
    by_leaf,
    gru_cell_of_torch,
    minimal_gated_unit_of_jax,
    written_out,
)

from tritonsnap import GRU, LSTM, RNN, RTRL, FunctionCell, SnAp
from tritonsnap.arrays import namespace, to_numpy
from tritonsnap.online.dynamics import dynamics_pattern
from tritonsnap.online.unroll import Unroll

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

DENSE = GRU(inputs=3, hidden=6, reset="before")
SPARSE = GRU(inputs=4, hidden=9, density=0.25, input_density=0.5, seed=1, reset="before")
CELLS = [pytest.param(DENSE, id="dense"), pytest.param(SPARSE, id="sparse")]
STEPS = 7


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def check_chunks(learner, like: str, chunks, **options) -> None:
    given = problem(learner.cell, like, STEPS, **options)
    _, _, carry = given.run(learner, chunk=1)  # an influence to begin with
    expected = given.run(learner, carry, chunk=1)
    for chunk in chunks:
        check_equal(given.run(learner, carry, chunk=chunk), expected)


@pytest.mark.parametrize("order", [1, 2, None])
@pytest.mark.parametrize("cell", CELLS)
def test_a_chunk_is_its_steps(cell, order) -> None:
    check_chunks(SnAp(cell, order), "numpy", (2, 3, STEPS, STEPS + 1))
    check_chunks(SnAp(cell, order), "numpy", (3,), batch=1, resets=False)


@pytest.mark.parametrize(
    ("cell", "order", "like"),
    [(DENSE, 1, "torch"), (DENSE, None, "torch"), (SPARSE, 2, "torch"), (DENSE, None, "jax")],
)
def test_a_chunk_is_its_steps_in_every_library(cell, order, like: str) -> None:
    check_chunks(SnAp(cell, order), like, (3,))


@pytest.mark.parametrize(
    ("make", "order"),
    [(gru_cell_of_torch, 1), (gru_cell_of_torch, None), (minimal_gated_unit_of_jax, 1)],
)
def test_a_chunk_of_a_function_is_its_steps(make, order) -> None:
    cell = make()
    check_chunks(SnAp(cell, order), cell.library, (3,))


@pytest.mark.parametrize(
    ("kind", "like", "order"),
    [(GRU, "torch", 1), (LSTM, "torch", 2), (RNN, "torch", 2)],
)
def test_a_chunk_of_sparse_weights_is_that_of_the_factored_cell(kind, like: str, order) -> None:
    cell = kind(inputs=3, hidden=8, density=0.3, input_density=0.6, seed=2)
    plain = written_out(cell, like, immediate=by_leaf(cell), dynamics=dynamics_pattern(cell))
    given = problem(cell, like, STEPS)
    expected = given.run(SnAp(cell, order), chunk=1)
    found = given.run(SnAp(plain, order), chunk=3)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    for name, gradient in expected[1].items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-11, atol=1e-12)


def test_parameters_that_act_on_nothing_have_zero_gradients() -> None:
    xp = namespace("torch")

    def step(params, state, x):
        return xp.tanh(params["w"] @ state + x[:1] + params["bias"])

    values = {"w": np.ones((3, 3)) / 3, "bias": np.zeros(3), "unused": np.ones((2, 2))}
    params = {name: xp.asarray(value) for name, value in values.items()}
    cell = FunctionCell(step, params, inputs=2, hidden=3)
    for order in (1, None):
        check_chunks(SnAp(cell, order), "torch", (3,))


@pytest.mark.parametrize("like", ["torch", "jax"])
def test_a_function_without_operations_has_chunks(like: str) -> None:
    params = {"w": namespace(like).ones((3, 3))}
    cell = FunctionCell(lambda params, state, x: x, params, inputs=3, hidden=3)
    assert cell.dynamics_pattern.nnz == cell.immediate_pattern.nnz == 0
    check_chunks(SnAp(cell, 1), like, (3,))


def test_parameters_may_be_nested() -> None:
    xp = namespace("jax")

    def step(params, state, x):
        weights, (bias,) = params["layer"]["weights"], params["rest"]
        return xp.tanh(x @ weights["input"] + state @ weights["own"] + bias)

    rng = np.random.default_rng(0)
    weights = {"input": xp.asarray(rng.normal(size=(2, 4))), "own": xp.asarray(0.1 * np.eye(4))}
    params = {"layer": {"weights": weights}, "rest": [xp.zeros(4)]}
    cell = FunctionCell(step, params, inputs=2, hidden=4)
    xs, ys = xp.asarray(rng.normal(size=(STEPS, 2, 2))), xp.ones((STEPS, 2, 4))

    def loss(state, y):
        return ((state - y) ** 2).sum(-1)

    learner = RTRL(cell)
    carry = learner.init(2, like="jax", dtype="float64")
    found, expected = (
        learner.sequence(params, carry, xs, ys, loss, chunk=chunk)[1] for chunk in (3, 1)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("like", "order"), [("numpy", 1), ("numpy", None), ("torch", 1), ("jax", 1)]
)
def test_a_nan_ends_with_the_reset_of_its_row(order, like: str) -> None:
    given, learner = problem(SPARSE, like, 6, resets=False), SnAp(SPARSE, order)
    xp = namespace(like)
    bad = to_numpy(given.xs).copy()
    bad[1, 2] = np.nan
    resets = np.zeros((6, 3), bool)
    resets[[0, 3], 2] = True
    given.resets = xp.asarray(resets)
    clean = given.run(learner, chunk=1)[2]
    given.xs = xp.asarray(bad)
    carry = learner.init(3, like=like, dtype="float64")
    poison = xp.asarray(np.array([1.0, 1.0, np.nan]))
    carry = carry._replace(
        influence=tuple(b + 0 * poison.reshape(3, *(1,) * (b.ndim - 1)) for b in carry.influence)
    )
    with np.errstate(invalid="ignore"):
        found = given.run(learner, carry, chunk=6)[2]
    for one, other in zip(found.influence, clean.influence, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-12, atol=1e-14)
    given.xs = xp.asarray(np.nan_to_num(bad))
    gradients = given.run(learner, carry, chunk=6)[1]  # reset before its first step
    assert all(np.isfinite(value).all() for value in gradients.values())


def test_half_of_the_memory_is_rounded_once_a_chunk() -> None:
    given, learner = problem(DENSE, "numpy", STEPS), RTRL(DENSE, influence_dtype="float16")
    expected = given.run(RTRL(DENSE), chunk=3)
    found = given.run(learner, chunk=3)
    for one, other in zip(found[2].influence, expected[2].influence, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, other.astype(np.float16))


def test_a_chunking_is_an_operand_of_a_program() -> None:
    from tritonsnap.online.jax_sequence import _run

    cell = GRU(inputs=2, hidden=32, density=0.1, seed=1, reset="before")
    given, learner = problem(cell, "jax", 4), SnAp(cell, 1)
    chunking = learner.chunking(2, given.xs)
    carry = learner.init(3, like="jax", dtype="float64")
    unroll = Unroll(given.params, carry, *given.sequence, given.readout)
    lowered = _run.lower(learner, chunking, unroll.arrays, given.loss)
    constants = [line for line in lowered.as_text().splitlines() if "stablehlo.constant" in line]
    assert constants
    assert max(map(len, constants)) < 200
    check_equal(given.run(learner, chunk=chunking), given.run(learner, chunk=1))


def test_wrong_chunks() -> None:
    given = problem(DENSE, "numpy", 3)
    for chunk, error in ((0, ValueError), (1.5, TypeError), ("all", TypeError)):
        with pytest.raises(error, match="`chunk` must be"):
            given.run(SnAp(DENSE, 1), chunk=chunk)
    other = SnAp(DENSE, 1).chunking(2, given.xs)
    with pytest.raises(ValueError, match="`chunk` must be a chunking of RTRL"):
        given.run(RTRL(DENSE), chunk=other)
