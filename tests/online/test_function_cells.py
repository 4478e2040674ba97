"""Any function of torch or JAX as a cell."""

import numpy as np
import pytest
from networks import (
    autodiff,
    largest_difference,
    new_state,
    off_diagonal_stopped,
    problem,
)

from tritonsnap import BPTT, GRU, LSTM, RNN, RTRL, FunctionCell, SnAp, SparsityPattern
from tritonsnap.arrays import namespace, to_numpy
from tritonsnap.online.dynamics import dynamics_pattern, immediate_pattern

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
pytest.importorskip("asdex")

FRAMEWORKS = ("torch", "jax")


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def gru_cell_of_torch() -> FunctionCell:
    module = torch.nn.GRUCell(3, 10, dtype=torch.float64)

    def step(params, state, x):
        return torch.func.functional_call(module, params, (x, state))

    return FunctionCell(step, dict(module.named_parameters()), inputs=3, hidden=10)


def minimal_gated_unit_of_jax() -> FunctionCell:
    """With the gate before the matrix product, as Zhou et al. 2016 have it."""
    rng = np.random.default_rng(0)
    shapes = {"w_f": (3, 10), "u_f": (10, 10), "b_f": 10, "w": (3, 10), "u": (10, 10), "b": 10}

    def step(params, state, x):
        forget = jax.nn.sigmoid(x @ params["w_f"] + state @ params["u_f"] + params["b_f"])
        new = jax.numpy.tanh(x @ params["w"] + (forget * state) @ params["u"] + params["b"])
        return (1 - forget) * state + forget * new

    params = {n: jax.numpy.asarray(0.3 * rng.normal(size=shape)) for n, shape in shapes.items()}
    return FunctionCell(step, params, inputs=3, hidden=10)


def written_out(cell, like: str, **patterns) -> FunctionCell:
    """A cell of the library as a bare function of the same parameters."""
    xp = namespace(like)

    def step(params, state, x):
        return new_state(xp, cell, params, state, x)

    params = problem(cell, like, steps=1).params
    return FunctionCell(step, params, inputs=cell.inputs, hidden=cell.rows, **patterns)


def by_leaf(cell) -> dict:
    """The immediate pattern of a factored cell, for parameters as arrays in C order."""
    pattern, masks, begin = immediate_pattern(cell), {}, 0
    for linear in cell.maps:
        place = linear.shaped(np.arange(linear.num_parameters)).reshape(-1)
        masks[linear.name] = pattern.to_dense()[:, begin + place]
        begin += linear.num_parameters
    return masks


@pytest.mark.parametrize("hidden", [3, 12])
def test_units_that_torch_finds_switched_off_are_seen_elsewhere(hidden: int) -> None:
    torch.manual_seed(0)  # with some weights a unit is off at all the points that are looked at
    module = torch.nn.RNNCell(3, hidden, nonlinearity="relu", dtype=torch.float64)
    cell = FunctionCell(
        lambda params, state, x: torch.func.functional_call(module, params, (x, state)),
        dict(module.named_parameters()),
        inputs=3,
        hidden=hidden,
    )
    assert cell.dynamics_pattern == SparsityPattern.full((hidden, hidden))
    assert cell.immediate_pattern.nnz == cell.immediate_pattern.shape[1]


@pytest.mark.parametrize("make", [gru_cell_of_torch, minimal_gated_unit_of_jax])
def test_rtrl_and_bptt_equal_autodiff(make) -> None:
    cell = make()
    given = problem(cell, cell.library, steps=25)
    loss, gradients, state = autodiff(given)
    assert SnAp(cell, 10).plan == RTRL(cell).plan
    for learner in (RTRL(cell), BPTT(cell)):
        found_loss, found, carry = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert largest_difference(found, gradients) < 1e-10
        np.testing.assert_allclose(to_numpy(carry.state), to_numpy(state), rtol=0, atol=1e-12)
        assert int(carry.step) == 25


@pytest.mark.parametrize("like", FRAMEWORKS)
def test_snap_1_is_bptt_without_the_paths_between_units(like: str) -> None:
    cell = RNN(inputs=3, hidden=12)
    given = problem(cell, like, steps=20)
    gradients = autodiff(given, off_diagonal_stopped)[1]
    given.cell = written_out(cell, like)
    found = given.run(SnAp(given.cell, 1))[1]
    assert largest_difference(found, gradients) < 1e-12


@pytest.mark.parametrize(("kind", "like"), [(GRU, "torch"), (LSTM, "torch"), (RNN, "jax")])
def test_snap_of_sparse_weights_is_that_of_the_factored_cell(kind, like: str) -> None:
    cell = kind(inputs=3, hidden=12, density=0.1, seed=2)
    given = problem(cell, like, steps=12)
    factored = SnAp(cell, 2)
    assert factored.plan.mask != RTRL(cell).plan.mask
    expected = given.run(factored)
    given.cell = written_out(cell, like, immediate=by_leaf(cell), dynamics=dynamics_pattern(cell))
    learner = SnAp(given.cell, 2)
    assert learner.plan.mask.nnz == factored.plan.mask.nnz
    found = given.run(learner)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert largest_difference(found[1], expected[1]) < 1e-12


@pytest.mark.parametrize(
    ("make", "rule"),
    [(gru_cell_of_torch, RTRL), (gru_cell_of_torch, BPTT), (minimal_gated_unit_of_jax, BPTT)],
)
def test_steps_add_up_to_the_sequence(make, rule) -> None:
    cell = make()
    given, learner = problem(cell, cell.library, steps=3), rule(cell)
    _, expected, end = given.run(learner)
    carry, total = learner.init(3, like=cell.library, dtype="float64"), {}
    step, gradient = (
        jax.jit(method) if cell.library == "jax" else method
        for method in (type(learner).step, type(learner).gradient)
    )
    for t in range(3):
        ready = learner.prepare(given.params)
        carry, state = step(learner, ready, carry, given.xs[t], given.resets[t])
        delta = given.loss.gradients(given.readout, state, given.ys[t], given.mask[t])[1]
        for name, value in gradient(learner, carry, delta).items():
            total[name] = total.get(name, 0) + to_numpy(value)
    np.testing.assert_allclose(to_numpy(carry.state), to_numpy(end.state), rtol=1e-13)
    assert largest_difference(total, {name: expected[name] for name in total}) < 1e-12


@pytest.mark.parametrize("like", FRAMEWORKS)
def test_parameters_may_be_nested(like: str) -> None:
    xp, cell = namespace(like), RNN(inputs=2, hidden=4)
    given = problem(cell, like, steps=4)
    flat = given.params
    nested = {"z": [flat["recurrent"], flat["bias"]], "a": {"in": flat["input"]}}

    def step(params, state, x):
        recurrent, bias = params["z"]
        return xp.tanh(x @ params["a"]["in"] + state @ recurrent + bias)

    bent = FunctionCell(step, nested, inputs=2, hidden=4)
    expected = autodiff(given)[1]
    for rule in (RTRL, BPTT):
        carry = rule(bent).init(3, like=like, dtype="float64")
        _, (found, _), _ = rule(bent).sequence(
            nested, carry, *given.sequence, readout=given.readout
        )
        own = {"recurrent": found["z"][0], "bias": found["z"][1], "input": found["a"]["in"]}
        own = {name: to_numpy(value) for name, value in own.items()}
        assert largest_difference(own, {name: expected[name] for name in own}) < 1e-12


def test_a_learner_as_an_argument_keeps_its_indices_out_of_the_program() -> None:
    size = 40

    def step(params, state, x):
        return jax.numpy.tanh(params["w"] * state + x @ params["u"])

    params = {"w": jax.numpy.ones(size), "u": jax.numpy.ones((20, size))}
    cell = FunctionCell(step, params, inputs=20, hidden=size)
    learner = SnAp(cell, 1)
    assert learner.plan.dynamics.nnz == size  # all is elementwise
    assert cell.projection().num_passes <= 3
    carry = learner.init(1, like="jax", dtype="float64")
    run = jax.jit(lambda learner, params, carry, x: learner.step(params, carry, x))
    lowered = run.lower(learner, params, carry, jax.numpy.ones((1, 20))).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert max(map(len, constants)) < 120


def test_cells_of_the_same_function_compile_once() -> None:
    traces = []

    def step(params, state, x):
        return jax.numpy.tanh(state * params["w"] + x)

    params = {"w": jax.numpy.ones(3)}

    @jax.jit
    def run(learner, carry, x):
        traces.append(1)
        return learner.step(params, carry, x)

    for _ in range(2):
        learner = SnAp(FunctionCell(step, params, inputs=3, hidden=3), 1)
        run(learner, learner.init(1, like="jax", dtype="float64"), jax.numpy.ones((1, 3)))
    assert len(traces) == 1


def test_init_gives_the_parameters_in_a_dtype() -> None:
    cell = gru_cell_of_torch()
    params = cell.init()
    assert {value.dtype for value in params.values()} == {torch.float32}
    assert not any(value.requires_grad for value in params.values())
    again = cell.init(0, "torch", "float64")
    assert torch.equal(again["bias_hh"], cell.params["bias_hh"])
    with pytest.raises(ValueError, match="`like` must be 'torch', the library of `f`, got 'jax'"):
        cell.init(0, "jax")


def _linear(params, state, x):
    return state @ params["w"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"f": 3}, TypeError, "`f` must be a function, got int"),
        ({"params": [torch.eye(4)]}, TypeError, "`params` must be a dict, got list"),
        ({"params": {"w": np.eye(4)}}, TypeError, "`params` must hold arrays of torch or JAX"),
        ({"params": {}}, TypeError, "`params` must hold arrays of torch or JAX"),
        ({"hidden": 0}, ValueError, "`hidden` must be at least 1, got 0"),
        (
            {"f": lambda params, state, x: state[:2]},
            ValueError,
            r"`f` must map a state \[4\] to a state \[4\], got shape \[2\]",
        ),
        (
            {"f": lambda params, state, x: (state, state)},
            TypeError,
            "`f` must return one array, got tuple",
        ),
        ({"immediate": {}}, ValueError, "`immediate` must be a tree like `params`"),
        (
            {"immediate": {"w": SparsityPattern.full((4, 4))}},
            ValueError,
            r"`immediate` at 'params/w' must have shape \(4, 16\), got \(4, 4\)",
        ),
        (
            {"dynamics": SparsityPattern.full((3, 4))},
            ValueError,
            r"`dynamics` must have shape \(4, 4\), got \(3, 4\)",
        ),
        ({"dynamics": SparsityPattern.identity(4)}, ValueError, "misses nonzeros of the Jacobian"),
    ],
)
def test_wrong_arguments(arguments: dict, kind: type, message: str) -> None:
    weights = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    given = {"f": _linear, "params": {"w": weights}, "inputs": 2, "hidden": 4, **arguments}
    with pytest.raises(kind, match=message):
        FunctionCell(given.pop("f"), given.pop("params"), **given)


@pytest.mark.parametrize(
    "drive",
    [
        lambda w, b, h: w @ h + b,
        lambda w, b, h: torch.addmv(b, w, h),
        lambda w, b, h: torch.nn.functional.linear(h[None], w, b)[0],
        lambda w, b, h: torch.stack([torch.dot(row, h) for row in w]) + b,
    ],
)
def test_products_with_a_vector_count(drive) -> None:
    params = {"w": torch.eye(5), "b": torch.zeros(5)}
    cell = FunctionCell(
        lambda p, h, x: drive(p["w"], p["b"], h) + x.sum(),
        params, inputs=2, hidden=5, immediate={"w": np.ones((5, 25)), "b": np.eye(5)},
        dynamics=np.ones((5, 5)),
    )  # fmt: skip
    assert cell.work.step == 25


def test_what_needs_factors_says_so() -> None:
    cell = FunctionCell(_linear, {"w": torch.randn(4, 4)}, inputs=2, hidden=4)
    with pytest.raises(TypeError, match="FunctionCell has no factored immediate Jacobian"):
        _ = SnAp(cell).structure


def test_wrong_parameters() -> None:
    cell = FunctionCell(_linear, {"w": torch.randn(4, 4)}, inputs=2, hidden=4)
    learner, x = SnAp(cell), torch.ones(1, 2)
    carry = learner.init(1, like="torch")
    with pytest.raises(ValueError, match=r"`params` must have \['params/w'\], got \['params/v'\]"):
        learner.step({"v": torch.ones(4, 4)}, carry, x)
    with pytest.raises(ValueError, match=r"`params/w` must have shape \(4, 4\), got \(4, 3\)"):
        learner.step({"w": torch.ones(4, 3)}, carry, x)
    with pytest.raises(TypeError, match="`params` must hold arrays of torch, the library of `f`"):
        learner.step({"w": np.ones((4, 4))}, carry, x)
