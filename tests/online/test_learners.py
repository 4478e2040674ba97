"""Learners against the autodiff of torch and JAX over the unrolled network."""

import numpy as np
import pytest
from networks import (
    OUTPUTS,
    Problem,
    as_numpy,
    autodiff,
    largest_difference,
    off_diagonal_stopped,
    problem,
)

from tritonsnap import (
    BPTT,
    GRU,
    LRU,
    LSTM,
    RFLO,
    RNN,
    RTRL,
    UORO,
    LeakyRNN,
    Readout,
    SnAp,
    SparsityPattern,
    Stack,
)
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.trees import leaves_of

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

DENSE = {"inputs": 3, "hidden": 20}
SPARSE = {"inputs": 30, "hidden": 20, "density": 0.2, "input_density": 0.3, "seed": 1}
CELLS = [
    pytest.param(kind(**sizes), id=f"{kind.__name__}-{name}")
    for kind in (RNN, GRU, LSTM)
    for name, sizes in (("dense", DENSE), ("sparse", SPARSE))
] + [
    pytest.param(LeakyRNN(**DENSE, learn_leak=True), id="LeakyRNN-dense"),
    pytest.param(LeakyRNN(**SPARSE, leak=0.4), id="LeakyRNN-sparse"),
    pytest.param(LRU(inputs=3, hidden=20), id="LRU-dense"),
    pytest.param(LRU(inputs=30, hidden=20, input_density=0.3), id="LRU-sparse"),
]
SMALL = GRU(inputs=2, hidden=5, density=0.5, seed=3)
LEARNERS = [BPTT, SnAp, lambda cell: SnAp(cell, 2), RTRL, RFLO, UORO]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def compiled(method, like: str):
    """A method of a learner as a function of it: in JAX compiled, with the learner an argument."""
    return jax.jit(method) if like == "jax" else method


def oracle(cell, like: str, steps: int, **kwargs) -> tuple[Problem, tuple]:
    """A problem in one library, and autodiff's answer (NumPy has none: torch's)."""
    given = problem(cell, like, steps, **kwargs)
    return given, autodiff(problem(cell, "torch", steps, **kwargs) if like == "numpy" else given)


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("cell", CELLS)
def test_rtrl_and_bptt_equal_autodiff(cell, like: str) -> None:
    given, (loss, gradients, state) = oracle(cell, like, steps=50)
    assert SnAp(cell, 20).plan == RTRL(cell).plan
    for learner in (RTRL(cell), BPTT(cell)):
        found_loss, found, carry = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert largest_difference(found, gradients) < 1e-10
        np.testing.assert_allclose(to_numpy(carry.state), state, rtol=0, atol=1e-12)
        assert int(carry.step) == 50


@pytest.mark.slow
@pytest.mark.parametrize("like", ["torch", "jax"])
@pytest.mark.parametrize("kind", [RNN, GRU])
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_rtrl_equals_autodiff_of_a_larger_network(kind, density: float, like: str) -> None:
    cell = kind(inputs=8, hidden=128, density=density, seed=1)
    given, (_, gradients, _) = oracle(cell, like, steps=150, batch=2)
    assert largest_difference(given.run(RTRL(cell))[1], gradients) < 1e-10


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("kind", [RNN, GRU, LSTM, LeakyRNN])
def test_snap_1_is_bptt_without_the_paths_between_units(kind, like: str) -> None:
    cell = kind(inputs=3, hidden=128)
    given = problem(cell, like, steps=150, batch=2)
    source = problem(cell, "torch", steps=150, batch=2) if like == "numpy" else given
    loss, gradients, _ = autodiff(source, off_diagonal_stopped)
    found_loss, found, _ = given.run(SnAp(cell, 1))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-12


@pytest.mark.parametrize("like", LIBRARIES)
def test_snap_1_of_an_lru_is_exact(like: str) -> None:
    given, (loss, gradients, _) = oracle(LRU(inputs=3, hidden=40), like, steps=100)
    found_loss, found, _ = given.run(SnAp(given.cell, 1))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-12


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("make", LEARNERS)
def test_steps_add_up_to_the_sequence(make, like: str) -> None:
    learner = make(SMALL)
    given = problem(SMALL, like, steps=4)
    given.resets = namespace(like).asarray(np.arange(12).reshape(4, 3) == 7)
    _, expected, end = given.run(learner)
    step, gradient = (
        compiled(method, like) for method in (type(learner).step, type(learner).gradient)
    )
    carry, total = learner.init(3, like=like, dtype="float64"), {}
    for t in range(4):
        ready = given.params if t % 2 else learner.prepare(given.params)
        carry, state = step(learner, ready, carry, given.xs[t], given.resets[t])
        delta = given.loss.gradients(given.readout, state, given.ys[t], given.mask[t])[1]
        own = as_numpy(gradient(learner, carry, delta))
        total = {name: total.get(name, 0) + value for name, value in own.items()}
    np.testing.assert_allclose(to_numpy(carry.state), to_numpy(end.state), rtol=1e-13)
    assert int(carry.step) == 4
    expected = {name: expected[name] for name in total}
    assert largest_difference(total, expected) < 1e-12


@pytest.mark.parametrize("like", LIBRARIES)
def test_a_gradient_before_any_step_is_zero(like: str) -> None:
    xp = namespace(like)
    for make in (BPTT, RTRL):
        learner = make(SMALL)
        carry = learner.init(2, like=like, dtype="float64")
        gradients = learner.gradient(carry, xp.ones((2, 5), dtype=xp.float64))
        params = SMALL.init(0)
        assert {n: tuple(g.shape) for n, g in gradients.items()} == {
            n: p.shape for n, p in params.items()
        }
        assert all(not to_numpy(gradient).any() for gradient in gradients.values())


def test_torch_maps_a_step_over_several_networks() -> None:
    learner, given = SnAp(SMALL, 2), problem(SMALL, "torch", steps=2)
    start = learner.init(3, like="torch", dtype="float64")
    networks = {name: torch.stack([one, 2 * one]) for name, one in given.params.items()}

    def step(params, x):
        carry, _ = learner.step(params, start, x)
        return learner.step(params, carry, x)

    found, _ = torch.func.vmap(step, (0, None))(networks, given.xs[0])
    for number in range(2):
        alone, _ = step({name: one[number] for name, one in networks.items()}, given.xs[0])
        for mapped, block in zip(found.influence, alone.influence, strict=True):
            torch.testing.assert_close(mapped[number], block)


@pytest.mark.parametrize("chunk", [1, 4])
def test_torch_inference_mode_changes_nothing(chunk: int) -> None:
    learner, given = SnAp(SMALL, 2), problem(SMALL, "torch", steps=8)
    given.loss = Readout(OUTPUTS).__call__  # without `gradients`: torch differentiates it
    expected = given.run(learner, chunk=chunk)
    with torch.inference_mode():
        found = given.run(learner, chunk=chunk)
    assert found[0] == expected[0]
    assert largest_difference(found[1], expected[1]) == 0


@pytest.mark.parametrize("like", LIBRARIES)
def test_the_influence_goes_on_across_sequences(like: str) -> None:
    learner = RTRL(SMALL)
    whole = problem(SMALL, like, steps=8)
    _, expected, end = whole.run(learner)
    carry, total = None, {}
    for part in (slice(0, 4), slice(4, 8)):
        pieces = (array[part] for array in (whole.xs, whole.ys, whole.mask, whole.resets))
        _, found, carry = Problem(SMALL, whole.params, whole.readout, *pieces).run(learner, carry)
        total = {name: total.get(name, 0) + value for name, value in found.items()}
    assert largest_difference(total, expected) < 1e-12
    np.testing.assert_allclose(to_numpy(carry.state), to_numpy(end.state), rtol=1e-13)
    assert int(carry.step) == 8


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("make", [BPTT, SnAp])
def test_no_mask_and_no_resets_are_ones_and_none(make, like: str) -> None:
    xp = namespace(like)
    learner, given = make(SMALL), problem(SMALL, like, steps=4, resets=False)
    given.mask = xp.ones_like(given.mask)
    expected = given.run(learner)
    given.mask = given.resets = None
    found = given.run(learner)
    assert found[0] == pytest.approx(expected[0], rel=1e-14)
    assert largest_difference(found[1], expected[1]) < 1e-14


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_keep_their_dtype(dtype: str, like: str) -> None:
    given = problem(SMALL, like, steps=3)
    cast = lambda a: namespace(like).asarray(to_numpy(a).astype(dtype))  # noqa: E731
    params = {name: cast(value) for name, value in given.params.items()}
    readout = Readout(OUTPUTS).init(5, 0, like=like, dtype=dtype)
    for make in (BPTT, RTRL):
        learner = make(SMALL)
        loss, (own, of_readout), carry = learner.sequence(
            params,
            learner.init(3, like=like, dtype=dtype),
            cast(given.xs),
            given.ys,
            Readout(OUTPUTS),
            cast(given.mask),
            given.resets,
            readout=readout,
        )
        influence = [] if learner.__class__ is BPTT else carry.influence
        arrays = [loss, *own.values(), *of_readout.values(), carry.state, *influence]
        assert {str(array.dtype).removeprefix("torch.") for array in arrays} == {dtype}


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("make", LEARNERS[1:])
def test_a_nan_stays_in_its_row_until_that_is_reset(make, like: str) -> None:
    xp = namespace(like)
    learner, given = make(SMALL), problem(SMALL, like, steps=5, resets=False)
    step = compiled(type(learner).step, like)
    bad = to_numpy(given.xs).copy()
    bad[1, 2] = np.nan  # row 2 from step 1 on
    resets = np.zeros((5, 3), bool)
    resets[3, 2] = True

    def states(xs):
        carry = learner.init(3, like=like, dtype="float64")
        result = []
        for t in range(5):
            x, reset = xp.asarray(xs[t]), xp.asarray(resets[t])
            carry, state = step(learner, given.params, carry, x, reset)
            result.append(to_numpy(state))
        return carry, np.stack(result)

    with np.errstate(invalid="ignore"):
        carry, found = states(bad)
        clean_carry, clean = states(to_numpy(given.xs))
        np.testing.assert_array_equal(found[:, :2], clean[:, :2])
        assert np.isnan(found[1:3, 2]).all()
        np.testing.assert_array_equal(found[3:, 2], clean[3:, 2])
        delta = np.ones((3, 5))
        own = as_numpy(learner.gradient(carry, xp.asarray(delta)))
        expected = as_numpy(learner.gradient(clean_carry, xp.asarray(delta)))
    for name, value in own.items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize(("make", "like"), [(BPTT, "torch"), (RTRL, "torch"), (RTRL, "jax")])
def test_any_differentiable_loss(make, like: str) -> None:
    given = problem(SMALL, like, steps=4)
    loss, gradients, _ = autodiff(given)
    plain = lambda readout, state, y: Readout(OUTPUTS)(readout, state, y)  # noqa: E731
    given.loss = plain
    found_loss, found, _ = given.run(make(SMALL))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-12
    carry = make(SMALL).init(3, like=like, dtype="float64")
    bare = lambda state, y: (state**2).sum(-1)  # noqa: E731
    result = make(SMALL).sequence(given.params, carry, given.xs, given.ys, bare)
    assert set(result[1]) == set(given.params)


def test_torch_gradients_drive_any_optimizer() -> None:
    given = problem(SMALL, "torch", steps=8)
    parameters = {n: torch.nn.Parameter(v) for n, v in given.params.items()}
    given.params = parameters
    optimizer = torch.optim.Adam(parameters.values(), lr=0.02)
    losses = []
    for _ in range(40):
        carry = RTRL(SMALL).init(3, like="torch", dtype="float64")
        loss, (own, _), _ = RTRL(SMALL).sequence(
            parameters, carry, *given.sequence, readout=given.readout
        )
        for name, parameter in parameters.items():
            parameter.grad = own[name]
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("make", LEARNERS)
def test_torch_remembers_no_graph(make) -> None:
    given = problem(SMALL, "torch", steps=3)
    given.params = {n: torch.nn.Parameter(v) for n, v in given.params.items()}
    given.readout = {n: torch.nn.Parameter(v) for n, v in given.readout.items()}
    learner = make(SMALL)
    carry = learner.init(3, like="torch", dtype="float64")
    found = learner.sequence(given.params, carry, *given.sequence, readout=given.readout)
    ready = learner.prepare(given.params)
    carry, state = learner.step(ready, carry, given.xs[0].requires_grad_(), given.resets[0])
    delta = torch.ones_like(state).requires_grad_()
    leaves = leaves_of((found, ready, carry, learner.gradient(carry, delta)))
    assert not any(leaf.grad_fn is not None for leaf in leaves)


def test_jax_gradients_drive_optax_inside_a_jitted_function() -> None:
    optax = pytest.importorskip("optax")
    given = problem(SMALL, "jax", steps=8)
    learner, optimizer = SnAp(SMALL, 2), optax.adam(0.02)
    traces = []

    @jax.jit
    def update(learner, params, state):
        traces.append(1)
        carry = learner.init(3, like="jax", dtype="float64")
        loss, (own, _), _ = learner.sequence(params, carry, *given.sequence, readout=given.readout)
        updates, state = optimizer.update(own, state)
        return loss, optax.apply_updates(params, updates), state

    params, state = given.params, optimizer.init(given.params)
    losses = []
    for _ in range(40):
        loss, params, state = update(learner, params, state)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    update(SnAp(SMALL, 2), params, state)  # equal content: compiled once
    assert len(traces) == 1


@pytest.mark.parametrize("make", [SnAp, BPTT])
def test_a_learner_as_an_argument_keeps_its_indices_out_of_the_program(make) -> None:
    cell = RNN(inputs=2, hidden=64, density=0.2)
    learner = make(cell)
    carry = learner.init(1, like="jax", dtype="float64")
    params = cell.init(0, like="jax", dtype="float64")
    step = jax.jit(lambda learner, params, carry, x: learner.step(params, carry, x))
    lowered = step.lower(learner, params, carry, jax.numpy.ones((1, 2))).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert constants
    assert max(map(len, constants)) < 120


@pytest.mark.parametrize("like", LIBRARIES)
def test_runs_are_reproducible_to_the_bit(like: str) -> None:
    given = problem(SMALL, like, steps=4)
    one, other = given.run(SnAp(SMALL, 2)), given.run(SnAp(SMALL, 2))
    assert one[0] == other[0]
    for name, value in one[1].items():
        np.testing.assert_array_equal(value, other[1][name])


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("make", [BPTT, SnAp])
def test_wrong_arguments(make, like: str) -> None:
    learner, given = make(SMALL), problem(SMALL, like, steps=4)
    xp = namespace(like)
    carry = learner.init(3, like=like, dtype="float64")
    rest = (given.loss, given.mask, given.resets)

    def sequence(params=given.params, xs=given.xs, ys=given.ys, rest=rest):
        return learner.sequence(params, carry, xs, ys, *rest, readout=given.readout)

    missing = {name: value for name, value in given.params.items() if name != "bias_reset"}
    with pytest.raises(ValueError, match=r"`params` must have .*bias_reset"):
        sequence(missing)
    with pytest.raises(ValueError, match=r"`params\['bias_reset'\]` must have shape \(5,\)"):
        sequence({**given.params, "bias_reset": xp.zeros((4,), dtype=xp.float64)})
    with pytest.raises(TypeError, match=r"`params\['bias_reset'\]` must have the carry's dtype"):
        sequence({**given.params, "bias_reset": xp.zeros((5,), dtype=xp.float32)})
    with pytest.raises(ValueError, match=r"`xs` must have shape \[T, 3, 2\]"):
        sequence(xs=given.xs[:, :2])
    with pytest.raises(TypeError, match="`xs` must have the carry's dtype"):
        sequence(xs=xp.asarray(to_numpy(given.xs).astype("float32")))
    with pytest.raises(ValueError, match=r"`ys` must have shape \[4, 3"):
        sequence(ys=given.ys[:3])
    with pytest.raises(ValueError, match=r"`mask` must have shape \[4, 3\]"):
        sequence(rest=(given.loss, given.mask[:3], None))
    with pytest.raises(ValueError, match=r"`resets` must have shape \[4, 3\]"):
        sequence(rest=(given.loss, None, given.resets[0]))
    with pytest.raises(TypeError, match="`resets` must be boolean"):
        sequence(rest=(given.loss, None, given.mask))
    with pytest.raises(ValueError, match=r"`x` must have shape \[3, 2\]"):
        learner.step(given.params, carry, given.xs[0, :2])
    with pytest.raises(ValueError, match=r"`reset` must have shape \[3\]"):
        learner.step(given.params, carry, given.xs[0], given.resets)
    with pytest.raises(TypeError, match=r"`ready` must have the carry's dtype"):
        learner.step(SMALL.init(0, like=like), carry, given.xs[0])
    with pytest.raises(TypeError, match=r"`dL_dstate` must have the carry's dtype"):
        learner.gradient(carry, xp.zeros((3, 5), dtype=xp.float32))
    with pytest.raises(ValueError, match=r"`dL_dstate` must have shape \[3, 5\]"):
        learner.gradient(carry, xp.zeros((3, 4), dtype=xp.float64))
    for batch in (0, -1, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="`batch` must be"):
            learner.init(batch, like=like)
    with pytest.raises(ValueError, match="`dtype`"):
        learner.init(1, like=like, dtype="int32")
    with pytest.raises(ValueError, match="`xs` must have at least one step"):
        sequence(xs=given.xs[:0], ys=given.ys[:0], rest=(given.loss, None, None))


STACK = Stack([RNN(inputs=2, hidden=3), RNN(inputs=3, hidden=2)])  # as many rows as SMALL
CARRIES = {"SnAp": SnAp(SMALL), "BPTT": BPTT(SMALL), "UORO": UORO(SMALL), "stack": SnAp(STACK)}


@pytest.mark.parametrize("name", [*CARRIES, "stacked BPTT"])
def test_carries_and_prepared_parameters_of_other_rules_are_refused(name: str) -> None:
    learner = CARRIES.get(name, BPTT(STACK))
    params, x = learner.cell.init(0), np.zeros((2, 2), np.float32)
    delta = np.ones((2, learner.num_outputs), np.float32)
    for other, rule in CARRIES.items():
        carry, _ = rule.step(rule.cell.init(0), rule.init(2), x)
        if other == name:
            learner.step(params, carry, x)
            continue
        refused = pytest.raises(
            TypeError, match=f"`carry` must be what .* {type(learner).__name__}"
        )
        with refused:
            learner.step(params, carry, x)
        with refused:
            learner.gradient(carry, delta)
        with refused:
            learner.sequence(params, carry, x[None], x[None], Readout(2))
        ready = rule.prepare(rule.cell.init(0))
        if {other, name} != {"BPTT", "UORO"}:  # which prepare the same
            with pytest.raises(TypeError, match="`ready` must be what `prepare` returns"):
                learner.step(ready, learner.init(2), x)
    if name == "SnAp":  # it would be broadcast
        one_row = learner.init(2)._replace(influence=learner.init(1).influence)
        with pytest.raises(TypeError, match=r"`carry` .* has not the rows of its state"):
            learner.step(params, one_row, x)


def test_libraries_do_not_mix() -> None:
    given = problem(SMALL, "numpy", steps=2)
    other = problem(SMALL, "torch", steps=2)
    learner = SnAp(SMALL)
    carry = learner.init(3, dtype="float64")
    with pytest.raises(TypeError, match="one library"):
        learner.sequence(other.params, carry, *given.sequence, readout=given.readout)
    with pytest.raises(TypeError, match="one library"):
        learner.step(given.params, carry, other.xs[0])
    with pytest.raises(TypeError, match="one library"):
        learner.step(other.params, carry, given.xs[0])
    with pytest.raises(TypeError, match="one library"):
        learner.gradient(carry, other.xs[0, :, :1])
    with pytest.raises(ValueError, match="`library` must be one of"):
        learner.init(3, like="cupy")


def test_numpy_cannot_differentiate_a_bare_function() -> None:
    given = problem(SMALL, "numpy", steps=2)
    carry = SnAp(SMALL).init(3, dtype="float64")
    with pytest.raises(TypeError, match="NumPy cannot differentiate `loss_fn`"):
        SnAp(SMALL).sequence(
            given.params, carry, given.xs, given.ys, lambda state, y: (state**2).sum(-1)
        )


def test_losses_have_one_entry_a_row() -> None:
    given = problem(SMALL, "torch", steps=2)
    carry = SnAp(SMALL).init(3, like="torch", dtype="float64")
    with pytest.raises(ValueError, match=r"`loss_fn` must return losses of shape \[3\]"):
        SnAp(SMALL).sequence(
            given.params, carry, given.xs, given.ys, lambda state, y: (state**2).sum()
        )


def test_a_learner_needs_a_cell() -> None:
    for make in (SnAp, RTRL, BPTT):
        with pytest.raises(TypeError, match="`cell` must be a Cell, got SparsityPattern"):
            make(SparsityPattern.identity(3))
