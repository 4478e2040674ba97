"""Cells: their equations, their derivatives, their structure."""

import subprocess
import sys

import numpy as np
import pytest
from networks import new_state

from tritonsnap import GRU, LRU, LSTM, RNN, RTRL, LeakyRNN, SparsityPattern
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.dynamics import dynamics_pattern, immediate_pattern

DENSE = {"inputs": 3, "hidden": 5}
SPARSE = {"inputs": 9, "hidden": 4, "density": 0.5, "input_density": 0.3, "seed": 2}
CELLS = {
    **{kind.__name__: kind(**DENSE) for kind in (RNN, GRU, LeakyRNN, LSTM, LRU)},
    **{f"sparse {kind.__name__}": kind(**SPARSE) for kind in (RNN, GRU, LSTM)},
    "sparse leaky RNN": LeakyRNN(**SPARSE, leak=0.4, learn_leak=True),
    "sparse LRU": LRU(**{**SPARSE, "density": 1}),
}
cells = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def values(cell, seed: int = 0) -> tuple[dict, np.ndarray, np.ndarray]:
    """Parameters, a state and an input, all drawn."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=p.shape) for name, p in cell.init(0, dtype="float64").items()}
    return params, rng.normal(size=cell.rows), rng.normal(size=cell.inputs)


def flat(cell, params: dict) -> np.ndarray:
    return np.concatenate([linear.flat(params[linear.name]) for linear in cell.maps])


def shaped(cell, theta: np.ndarray) -> dict:
    params, begin = {}, 0
    for linear in cell.maps:
        end = begin + linear.num_parameters
        params[linear.name] = linear.shaped(theta[begin:end])
        begin = end
    return params


def central_differences(function, at: np.ndarray) -> np.ndarray:
    """[outputs, inputs], exact to about 1e-10."""
    step = 1e-5
    columns = [
        (function(at + step * unit) - function(at - step * unit)) / (2 * step)
        for unit in np.eye(len(at))
    ]
    return np.stack(columns, axis=1)


@cells
@pytest.mark.parametrize("like", LIBRARIES)
def test_a_step_follows_the_equations(cell, like: str) -> None:
    jax = pytest.importorskip("jax")
    params, state, x = values(cell)
    expected = new_state(np, cell, params, state, x)
    with jax.enable_x64(True):
        xp = namespace(like)
        given = {name: xp.asarray(value) for name, value in params.items()}
        found = cell.step(given, xp.asarray(state[None]), xp.asarray(x[None]))
        np.testing.assert_allclose(to_numpy(found)[0], expected, rtol=1e-13)


@cells
def test_partial_derivatives_are_those_of_finite_differences(cell) -> None:
    params, state, x = values(cell)
    linear = cell.linearize(cell.prepare(params), state, x)
    immediate, dynamics = immediate_pattern(cell), dynamics_pattern(cell)

    structure = RTRL(cell).structure
    by_hand = np.zeros(immediate.shape)
    columns = np.arange(cell.num_parameters)
    for part in range(len(cell.parts)):
        row = part * cell.hidden + structure.unit
        by_hand[row, columns] = (
            linear.gains[structure.target, row] * linear.sources[structure.source]
        )
    expected = central_differences(
        lambda theta: new_state(np, cell, shaped(cell, theta), state, x), flat(cell, params)
    )
    np.testing.assert_allclose(by_hand, expected, atol=1e-9)
    of_unit = (np.abs(expected) > 1e-9).reshape(len(cell.parts), cell.hidden, -1).any(axis=0)
    assert immediate == SparsityPattern.from_dense(np.tile(of_unit, (len(cell.parts), 1)))

    expected = central_differences(lambda h: new_state(np, cell, params, h, x), state)
    assert dynamics == SparsityPattern.from_dense(np.abs(expected) > 1e-9)


@cells
def test_the_dynamics_of_a_learner_are_those_of_finite_differences(cell) -> None:
    params, state, x = values(cell)
    learner = RTRL(cell)
    step = cell.linearize(cell.prepare(params), state[None], x[None])
    for dense in (True, False):
        weights = learner.dynamics.prepare(params, dense)
        operand = learner.dynamics.operand(weights, step, dense)
        d = operand.d if dense else learner.plan.dynamics.to_dense(operand.d)
        if operand.row_scale is not None:
            d = operand.row_scale[..., None] * d
        expected = central_differences(lambda h: new_state(np, cell, params, h, x), state)
        np.testing.assert_allclose(np.broadcast_to(d, (1, *expected.shape))[0], expected, atol=1e-9)


def test_gru_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    cell = GRU(inputs=3, hidden=5)
    params, _, _ = values(cell)
    other = torch.nn.GRU(3, 5, dtype=torch.float64)
    gates = ("reset", "update", "candidate")

    def stacked(name):
        return torch.from_numpy(np.concatenate([params[f"{name}_{gate}"].T for gate in gates]))

    recurrent_bias = np.concatenate([np.zeros(10), params["bias_recurrent"]])
    with torch.no_grad():
        other.weight_ih_l0.copy_(stacked("input"))
        other.weight_hh_l0.copy_(stacked("recurrent"))
        other.bias_ih_l0.copy_(stacked("bias"))
        other.bias_hh_l0.copy_(torch.from_numpy(recurrent_bias))
    xs = np.random.default_rng(0).normal(size=(6, 2, 3))
    expected = other(torch.from_numpy(xs))[0].detach().numpy()
    state = np.zeros((2, 5))
    for x, right in zip(xs, expected, strict=True):
        state = cell.step(params, state, x)
        np.testing.assert_allclose(state, right, rtol=1e-12)


def test_lstm_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    cell = LSTM(inputs=3, hidden=5)
    params, _, _ = values(cell)
    other = torch.nn.LSTM(3, 5, dtype=torch.float64)

    def stacked(name):
        gates = ("input", "forget", "candidate", "output")
        return torch.from_numpy(np.concatenate([params[f"{name}_{gate}"].T for gate in gates]))

    with torch.no_grad():
        other.weight_ih_l0.copy_(stacked("input"))
        other.weight_hh_l0.copy_(stacked("recurrent"))
        other.bias_ih_l0.copy_(stacked("bias"))
        other.bias_hh_l0.zero_()
    xs = np.random.default_rng(0).normal(size=(6, 2, 3))
    expected, (_, last) = other(torch.from_numpy(xs))
    state = np.zeros((2, 10))
    for x, right in zip(xs, expected.detach().numpy(), strict=True):
        state = cell.step(params, state, x)
        np.testing.assert_allclose(state[:, :5], right, rtol=1e-12)
    np.testing.assert_allclose(state[:, 5:], last[0].detach().numpy(), rtol=1e-12)


def test_an_lru_begins_on_its_ring_with_states_of_variance_one() -> None:
    cell = LRU(inputs=30, hidden=2000, min_radius=0.5, max_radius=0.9, max_phase=1.0)
    params = cell.init(0, dtype="float64")
    squared = np.exp(-2 * np.exp(params["log_nu"]))
    assert 0.25 <= squared.min() < 0.26
    assert 0.80 < squared.max() <= 0.81
    assert squared.mean() == pytest.approx((0.25 + 0.81) / 2, rel=0.02)
    assert np.exp(params["log_theta"]).min() > 0
    assert 0.99 < np.exp(params["log_theta"]).max() <= 1
    np.testing.assert_allclose(np.exp(2 * params["log_gamma"]), 1 - squared, rtol=1e-12)
    rng, state = np.random.default_rng(1), np.zeros((1, cell.rows))
    for _ in range(60):  # white noise in, white noise out (section 3.4 of the paper)
        state = cell.step(params, state, rng.normal(size=(1, 30)))
    assert (state**2).sum() / 2000 == pytest.approx(1, rel=0.1)


def test_a_leak_begins_where_it_is_put() -> None:
    cell = LeakyRNN(inputs=1, hidden=3, leak=0.2, learn_leak=True)
    params = cell.init(0, dtype="float64")
    fixed = LeakyRNN(inputs=1, hidden=3, leak=0.2)
    state, x = np.ones((1, 3)), np.ones((1, 1))
    expected = fixed.step({n: params[n] for n in ("input", "recurrent", "bias")}, state, x)
    np.testing.assert_allclose(cell.step(params, state, x), expected, rtol=1e-12)
    assert LeakyRNN(inputs=1, hidden=3, leak=0.1) != fixed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeakyRNN(2, 3, leak=0), r"`leak` must lie in \(0, 1\], got 0"),
        (
            lambda: LeakyRNN(2, 3, leak=1.0, learn_leak=True),
            r"`leak` must lie in \(0, 1\), got 1",
        ),
        (lambda: LRU(2, 3, density=0.5), "`density` must be 1, got 0.5: an LRU has no recurrent"),
        (lambda: LRU(2, 3, max_radius=1.1), r"`max_radius` must lie in \(0, 1\], got 1.1"),
        (
            lambda: LRU(2, 3, min_radius=0.9, max_radius=0.8),
            r"`min_radius` must lie in .*got 0.9",
        ),
        (lambda: LRU(2, 3, max_phase=0), r"`max_phase` must lie in \(0, inf\), got 0"),
    ],
)
def test_wrong_arguments_of_one_cell(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_large_preactivations_do_not_overflow() -> None:
    cell = GRU(inputs=1, hidden=2)
    params = {name: np.full_like(value, 1000) for name, value in cell.init(0).items()}
    with np.errstate(all="raise"):
        for sign in (-1, 1):
            x = np.full((1, 1), sign, np.float32)
            linear = cell.linearize(cell.prepare(params), np.zeros((1, 2), np.float32), x)
            assert np.isfinite(linear.state).all()
            assert np.isfinite(linear.gains).all()


def test_patterns_by_name() -> None:
    recurrent = SparsityPattern.from_coo([3, 0, 2, 0], [1, 3, 0, 0], (4, 4))  # unsorted
    inputs = SparsityPattern.from_coo([8, 0, 5], [3, 0, 0], (9, 4))
    cell = RNN(inputs=9, hidden=4, patterns={"recurrent": recurrent, "input": inputs})
    assert {linear.name: linear.pattern for linear in cell.maps} == {
        "input": inputs,
        "recurrent": recurrent,
        "bias": None,
    }
    params = cell.init(0)
    assert {name: value.shape for name, value in params.items()} == {
        "input": (3,),
        "recurrent": (4,),
        "bias": (4,),
    }
    params["recurrent"][:] = [1, 2, 3, 4]  # in canonical order: by unit, then by source
    found = cell.maps[1].dense(params["recurrent"])
    np.testing.assert_array_equal(found, [[1, 0, 0, 4], [0] * 4, [2, 0, 0, 0], [0, 3, 0, 0]])


def test_equality_hash_and_digest_are_by_content() -> None:
    pattern = SparsityPattern.identity(4)
    one, other = (GRU(inputs=2, hidden=4, patterns={"recurrent_reset": pattern}) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest
    different = [
        GRU(inputs=2, hidden=4),
        RNN(inputs=2, hidden=4),
        GRU(inputs=2, hidden=4, seed=1),
        GRU(inputs=2, hidden=4, patterns={"recurrent_reset": SparsityPattern.full((4, 4))}),
    ]
    assert len({cell.digest for cell in (one, *different)}) == 5
    assert one not in different
    code = "from tritonsnap import GRU; print(GRU(inputs=2, hidden=4, seed=1).digest)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == different[2].digest


@pytest.mark.parametrize("like", LIBRARIES)
def test_parameters_are_drawn_alike_in_every_library(like: str) -> None:
    cell = GRU(inputs=40, hidden=60, density=0.5, seed=1)
    params = {name: to_numpy(value) for name, value in cell.init(5, like=like).items()}
    expected = cell.init(5)
    for name, value in expected.items():
        np.testing.assert_array_equal(params[name], value)
        assert params[name].dtype == np.float32
    assert not params["bias_reset"].any()
    assert params["input_reset"].std() == pytest.approx(40**-0.5, rel=0.1)
    assert params["recurrent_reset"].std() == pytest.approx(30**-0.5, rel=0.1)
    again = cell.init(np.random.default_rng(5))
    np.testing.assert_array_equal(again["input_reset"], params["input_reset"])


def test_jax_keys_draw_parameters() -> None:
    jax = pytest.importorskip("jax")
    cell = RNN(inputs=2, hidden=3)
    drawn = [cell.init(key)["input"] for key in (jax.random.key(1), jax.random.PRNGKey(1))]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (cell.init(jax.random.key(2))["input"] != drawn[0]).any()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"inputs": 0}, ValueError, "`inputs` must be at least 1 .*got 0"),
        ({"hidden": -1}, ValueError, "`hidden` must be at least 1 .*got -1"),
        ({"hidden": 2.0}, TypeError, "`hidden` must be an integer, got 2.0"),
        ({"inputs": True}, TypeError, "`inputs` must be an integer, got True"),
        ({"density": 0}, ValueError, r"`density` must lie in \(0, 1\], got 0"),
        ({"density": 2}, ValueError, r"`density` must lie in \(0, 1\], got 2"),
        ({"density": float("nan")}, ValueError, r"`density` must lie in \(0, 1\], got nan"),
        ({"input_density": -0.5}, ValueError, r"`input_density` must lie in \(0, 1\]"),
        (
            {"patterns": {"gate": SparsityPattern.identity(4)}},
            ValueError,
            "`patterns` names 'gate'; the weights are .*'recurrent'",
        ),
        (
            {"patterns": {"bias": SparsityPattern.full((1, 4))}},
            ValueError,
            "`patterns` names 'bias'; the weights are",
        ),
        (
            {"patterns": {"recurrent": SparsityPattern.identity(3)}},
            ValueError,
            r"`patterns\['recurrent'\]` must have shape \(4, 4\)",
        ),
        (
            {"patterns": {"recurrent": np.eye(4)}},
            TypeError,
            r"`patterns\['recurrent'\]` must be a SparsityPattern, got ndarray",
        ),
    ],
)
def test_wrong_arguments(arguments: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        RNN(**{"inputs": 2, "hidden": 4, **arguments})


def test_wrong_ways_to_draw() -> None:
    cell = RNN(inputs=2, hidden=4)
    with pytest.raises(ValueError, match="`library` must be one of"):
        cell.init(0, like="cupy")
    with pytest.raises(
        ValueError, match=r"`dtype` must be one of \('float32', 'float64'\), got 'int32'"
    ):
        cell.init(0, dtype="int32")
