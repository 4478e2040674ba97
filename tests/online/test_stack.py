"""Stacks against the autodiff of torch and JAX over the unrolled network."""

import numpy as np
import pytest
from networks import Problem, as_numpy, largest_difference, off_diagonal_stopped
from stacks import Accumulator, Tanh, differentiated, stack_problem

from tritonsnap import (
    BPTT,
    GRU,
    LRU,
    LSTM,
    RNN,
    RTRL,
    LayerNorm,
    LeakyRNN,
    Linear,
    Skip,
    SnAp,
    SparsityPattern,
    Stack,
    snap_pattern,
)
from tritonsnap.arrays import LIBRARIES, library_of, namespace, to_numpy
from tritonsnap.online.checkpoint import load_checkpoint, save_checkpoint
from tritonsnap.online.trees import leaves_of, map_tree, named_leaves

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

LAYERS = {
    "mixed": [
        RNN(inputs=3, hidden=5, density=0.5),
        Linear(5, 4, density=0.6),
        LayerNorm(4),
        Skip("input"),
        Accumulator(inputs=7, hidden=4),
    ],
    "readouts": [
        GRU(inputs=3, hidden=6),
        Linear(6, 4),
        RNN(inputs=4, hidden=7),
        Linear(7, 5),
        GRU(inputs=5, hidden=6),
    ],
    "sparse": [
        GRU(inputs=9, hidden=8, density=0.3, input_density=0.4, seed=1),
        Linear(8, 6, density=0.4, seed=2),
        RNN(inputs=6, hidden=8, density=0.3, input_density=0.5, seed=3),
        Skip(0, how="sum"),
        RNN(inputs=8, hidden=7, density=0.2, seed=4),
    ],
    "kinds": [
        LSTM(inputs=3, hidden=4),
        LRU(inputs=4, hidden=3),
        Linear(6, 4),
        LeakyRNN(inputs=4, hidden=5, leak=0.3, learn_leak=True),
        LSTM(inputs=5, hidden=3, density=0.5),
    ],
    "around": [
        Linear(3, 5),
        RNN(inputs=5, hidden=6),
        LayerNorm(6),
        Skip("input"),
        Accumulator(inputs=9, hidden=4),
        Skip(1),
        Tanh(10, 10),
        RNN(inputs=10, hidden=5),
        Skip(4),
        LayerNorm(9),
        Linear(9, 4),
    ],
}
SMALL = [RNN(inputs=2, hidden=4, density=0.5, seed=3), Linear(4, 3), RNN(inputs=3, hidden=5)]


given_stacks = pytest.mark.parametrize(
    ("layers", "like"),
    [
        pytest.param(layers, like, id=f"{name}-{like}")
        for name, layers in LAYERS.items()
        for like in (LIBRARIES if name == "mixed" else ("numpy", "torch"))
    ],
)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def in_torch(given: Problem) -> Problem:
    """The same problem where autodiff can have it: NumPy has none."""
    return stack_problem(given.cell, "torch", *given.xs.shape[:2])


def oracle(given: Problem, *cut, local: bool = False):
    like = library_of(given.xs)
    return differentiated(in_torch(given) if like == "numpy" else given, *cut, local=local)


def by_layer(one: dict, other: dict) -> list[float]:
    """The largest relative difference of each layer."""
    prefixes = sorted({name.split(".")[0] for name in one})
    return [
        largest_difference(
            *({n: v for n, v in each.items() if n.split(".")[0] == p} for each in (one, other))
        )
        for p in prefixes
    ]


@given_stacks
def test_exact_rtrl_and_bptt_equal_autodiff_for_every_layer(layers: list, like: str) -> None:
    stack = Stack(layers, exact=True)
    given = stack_problem(stack, like, steps=20)
    loss, gradients, states = oracle(given)
    learners = [RTRL(stack), BPTT(stack)]
    for learner in learners if like == "jax" else [*learners, SnAp(stack, 40)]:
        found_loss, found, carry = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert max(by_layer(found, gradients)) < 1e-10
        np.testing.assert_allclose(to_numpy(carry.state)[:, : stack.memory], states, atol=1e-12)
        assert int(carry.step) == 20


@given_stacks
def test_layer_local_rtrl_stops_the_paths_through_time_and_depth(layers: list, like: str) -> None:
    stack = Stack(layers)
    given = stack_problem(stack, like, steps=20)
    loss, gradients, _ = oracle(given, local=True)
    found_loss, found, _ = given.run(RTRL(stack))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert max(by_layer(found, gradients)) < 1e-10
    if like == "numpy":
        whole = oracle(given)[1]
        assert by_layer(found, whole)[0] > 1e-3  # the paths do matter
        assert max(by_layer(given.run(BPTT(stack))[1], whole)) < 1e-10


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_layer_local_snap_1_stops_the_paths_between_units_too(like: str) -> None:
    stack = Stack(LAYERS["readouts"])
    given = stack_problem(stack, like, steps=40)
    _, gradients, _ = oracle(given, off_diagonal_stopped, local=True)
    assert max(by_layer(given.run(SnAp(stack, 1))[1], gradients)) < 1e-12


def columns(layer, sources: dict, gain: np.ndarray) -> np.ndarray:
    """Dense [batch, units, p]: what each parameter does at once to the units of its layer."""
    batch, units = gain.shape
    found = np.zeros((batch, units, layer.num_parameters))
    unit = np.concatenate([linear.units for linear in layer.maps])
    read = np.concatenate([sources[m.source][:, m.rows] for m in layer.maps], axis=1)
    found[:, unit, np.arange(len(unit))] = gain[:, unit] * read
    return found


def dense_influences(given: Problem, order: int | None) -> list[np.ndarray]:
    """For RNN, Linear, RNN: the influences [batch, rows, p] of both cells, by dense algebra."""
    low, between, high = given.cell.layers
    w = {
        f"{number}.{linear.name}": linear.dense(given.params[f"{number}.{linear.name}"])
        for number, layer in enumerate(given.cell.layers)
        for linear in layer.maps
    }
    batch, total = given.xs.shape[1], given.cell.num_parameters
    bottom, top = np.zeros((batch, low.hidden)), np.zeros((batch, high.hidden))
    below, above = np.zeros((*bottom.shape, total)), np.zeros((*top.shape, total))
    masks = None
    for x in given.xs:
        one = np.ones((batch, 1))
        new = np.tanh(x @ w["0.input"] + bottom @ w["0.recurrent"] + w["0.bias"])
        read = new @ w["1.kernel"] + w["1.bias"]
        newer = np.tanh(read @ w["2.input"] + top @ w["2.recurrent"] + w["2.bias"])
        first, second = 1 - new**2, 1 - newer**2
        d_first = first[:, :, None] * w["0.recurrent"].T
        d_second = second[:, :, None] * w["2.recurrent"].T
        of_read = second[:, :, None] * w["2.input"].T
        of_new = of_read @ w["1.kernel"].T
        own = [
            columns(low, {"input": x, "hidden": bottom, "one": one}, first),
            columns(between, {"input": new, "one": one}, np.ones_like(read)),
            columns(high, {"input": read, "hidden": top, "one": one}, second),
        ]
        begins = np.cumsum([0, *(part.shape[-1] for part in own)])
        own = [
            np.pad(part, ((0, 0), (0, 0), (begin, total - begin - part.shape[-1])))
            for part, begin in zip(own, begins[:-1], strict=True)
        ]
        risen = of_read @ own[1] + own[2]
        if masks is None and bottom.any():  # from the second step on no state is zero
            dynamics = np.block(
                [
                    [d_first[0], np.zeros((low.hidden, high.hidden))],
                    [of_new[0] @ d_first[0], d_second[0]],
                ]
            )
            immediate = np.concatenate([own[0][0], of_new[0] @ own[0][0] + risen[0]])
            of = SparsityPattern.from_dense
            masks = np.split(
                snap_pattern(of(dynamics), of(immediate), order).to_dense(), [low.hidden]
            )
        carried = d_first @ below, d_second @ above
        if masks is not None:
            carried = tuple(mask * part for mask, part in zip(masks, carried, strict=True))
        below = carried[0] + own[0]
        above = carried[1] + of_new @ below + risen
        bottom, top = new, newer
    return [below, above]


@pytest.mark.parametrize("order", [1, 2, 3, None])
def test_the_influences_of_an_exact_stack_are_those_of_the_dense_recurrence(order) -> None:
    layers = [
        RNN(inputs=2, hidden=5, density=0.4, seed=1),
        Linear(5, 4, density=0.4, seed=5),
        RNN(inputs=4, hidden=6, density=0.2, input_density=0.4, seed=2),
    ]
    stack = Stack(layers, exact=True)
    given = stack_problem(stack, "numpy", steps=5, batch=2)
    learner = SnAp(stack, order)
    carry = learner.init(2, dtype="float64")
    for x in given.xs:
        carry, _ = learner.step(given.params, carry, x)
    expected = dense_influences(given, order)
    own, crossing = carry.influence.own, carry.influence.crossing
    for number, right in ((0, expected[0]), (2, expected[1])):
        found = np.zeros_like(right)
        for plan, blocks, place in (
            (learner.learners[number].plan, own[number], stack.columns[number]),
            (
                learner.crossing_plans[number],
                crossing[number],
                slice(0, stack.columns[number].start),
            ),
        ):
            if plan is not None:
                found[..., place] = plan.mask.to_dense(plan.unpack(blocks))
        np.testing.assert_allclose(found, right, atol=1e-12)


LEARNERS = {
    "local": lambda: SnAp(Stack(SMALL), 2),
    "exact": lambda: RTRL(Stack(SMALL, exact=True)),
    "bptt": lambda: BPTT(Stack(SMALL)),
}
learners = pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS)


@pytest.mark.parametrize(
    ("make", "like"),
    [
        pytest.param(make, like, id=f"{name}-{like}")
        for name, make in LEARNERS.items()
        for like in (LIBRARIES if name == "exact" else ("numpy", "torch"))
    ],
)
def test_steps_add_up_to_the_sequence(make, like: str) -> None:
    learner = make()
    given = stack_problem(learner.cell, like, steps=4)
    whole = stack_problem(learner.cell, "numpy", steps=4) if like == "jax" else given
    _, expected, end = whole.run(learner)
    step, gradient = type(learner).step, type(learner).gradient
    if like == "jax":
        step, gradient = jax.jit(step), jax.jit(gradient)
    carry, total = learner.init(3, like=like, dtype="float64"), {}
    ready = learner.prepare(given.params)
    for t in range(4):
        carry, output = step(learner, ready, carry, given.xs[t], given.resets[t])
        assert output.shape == (3, 5)
        delta = given.loss.gradients(given.readout, output, given.ys[t], given.mask[t])[1]
        for name, value in as_numpy(gradient(learner, carry, delta)).items():
            total[name] = total.get(name, 0) + value
    np.testing.assert_allclose(to_numpy(carry.state), to_numpy(end.state), rtol=1e-13)
    assert int(carry.step) == 4
    assert largest_difference(total, {name: expected[name] for name in total}) < 1e-12


@pytest.mark.parametrize("like", ["numpy", "torch"])
@learners
def test_influence_goes_on_across_sequences(make, like: str) -> None:
    learner = make()
    whole = stack_problem(learner.cell, like, steps=8)
    _, expected, end = whole.run(learner)
    carry, total = None, {}
    for part in (slice(0, 4), slice(4, 8)):
        pieces = (array[part] for array in (whole.xs, whole.ys, whole.mask, whole.resets))
        piece = Problem(learner.cell, whole.params, whole.readout, *pieces)
        _, found, carry = piece.run(learner, carry)
        total = {name: total.get(name, 0) + value for name, value in found.items()}
    np.testing.assert_allclose(to_numpy(carry.state), to_numpy(end.state), rtol=1e-13)
    assert int(carry.step) == 8
    if not isinstance(learner, BPTT):
        assert largest_difference(total, expected) < 1e-12


@pytest.mark.parametrize(
    ("dtype", "like"),
    [("float64", "numpy"), ("float32", "numpy"), ("float32", "torch")],
)
def test_values_keep_their_dtype_and_their_structure(dtype: str, like: str) -> None:
    stack = Stack([*SMALL, LayerNorm(5)], exact=True)
    given = stack_problem(stack, like, steps=2)
    cast = lambda a: namespace(like).asarray(to_numpy(a).astype(dtype))  # noqa: E731
    learner = SnAp(stack)
    start = learner.init(3, like=like, dtype=dtype)
    loss, (own, of_readout), carry = learner.sequence(
        map_tree(cast, given.params),
        start,
        cast(given.xs),
        given.ys,
        given.loss,
        cast(given.mask),
        given.resets,
        readout=map_tree(cast, given.readout),
    )
    arrays = leaves_of((loss, own, of_readout, carry.state, carry.influence))
    assert {str(array.dtype).removeprefix("torch.") for array in arrays} == {dtype}
    shapes = [{n: tuple(leaf.shape) for n, leaf in named_leaves(each)} for each in (start, carry)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_a_gradient_before_any_step_is_zero(like: str) -> None:
    xp = namespace(like)
    stack = Stack([*SMALL, Linear(5, 2)], exact=True)
    for make in (BPTT, RTRL):
        learner = make(stack)
        carry = learner.init(2, like=like, dtype="float64")
        gradients = learner.gradient(carry, xp.ones((2, 2), dtype=xp.float64))
        shapes = {name: tuple(value.shape) for name, value in gradients.items()}
        assert shapes == {name: value.shape for name, value in stack.init(0).items()}
        assert not any(to_numpy(value).any() for value in gradients.values())


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_a_nan_stays_in_its_row_until_that_is_reset(like: str) -> None:
    xp = namespace(like)
    stack = Stack(SMALL, exact=True)
    learner, given = RTRL(stack), stack_problem(stack, like, steps=5)
    bad = to_numpy(given.xs).copy()
    bad[1, 2] = np.nan  # row 2 from step 1 on
    resets = np.zeros((5, 3), bool)
    resets[3, 2] = True

    def end(xs):
        carry = learner.init(3, like=like, dtype="float64")
        for x, reset in zip(xs, resets, strict=True):
            carry, output = learner.step(given.params, carry, xp.asarray(x), xp.asarray(reset))
        return output, learner.gradient(carry, xp.ones((3, 5), dtype=xp.float64))

    with np.errstate(invalid="ignore"):
        found, clean = (leaves_of(end(xs)) for xs in (bad, to_numpy(given.xs)))
    for one, other in zip(found, clean, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@pytest.mark.parametrize("rule", [SnAp, BPTT])
def test_a_learner_as_an_argument_keeps_its_indices_out_of_the_program(rule) -> None:
    layers = [
        RNN(inputs=2, hidden=32, density=0.2),
        Linear(32, 24, density=0.2),
        RNN(inputs=24, hidden=32, density=0.2),
    ]
    stack = Stack(layers, exact=True)
    learner = rule(stack)
    carry = learner.init(1, like="jax", dtype="float64")
    params = stack.init(0, like="jax", dtype="float64")
    step = jax.jit(lambda learner, params, carry, x: learner.step(params, carry, x))
    lowered = step.lower(learner, params, carry, jax.numpy.ones((1, 2))).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert constants
    assert max(map(len, constants)) < 120
    other = rule(Stack(layers, exact=True))
    structures = [jax.tree_util.tree_structure(each) for each in (learner, other)]
    assert structures[0] == structures[1]  # equal content: compiled once


@learners
def test_torch_remembers_no_graph(make) -> None:
    learner = make()
    given = stack_problem(learner.cell, "torch", steps=2)
    given.params = {name: torch.nn.Parameter(value) for name, value in given.params.items()}
    carry = learner.init(3, like="torch", dtype="float64")
    found = learner.sequence(given.params, carry, *given.sequence, readout=given.readout)
    carry, output = learner.step(given.params, carry, given.xs[0])
    leaves = leaves_of((found, output, learner.gradient(carry, torch.ones_like(output))))
    assert not any(leaf.grad_fn is not None for leaf in leaves)


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_a_run_goes_on_from_a_checkpoint(like: str, tmp_path) -> None:
    stack = Stack(SMALL, exact=True)
    learner, given = RTRL(stack), stack_problem(stack, like, steps=3)
    _, _, carry = given.run(learner)
    save_checkpoint(tmp_path / "run.npz", {}, (given.params, carry))
    template = (stack.init(9, like=like, dtype="float64"), learner.init(3, like, "float64"))
    params, restored = load_checkpoint(tmp_path / "run.npz", template)
    assert library_of(*params.values()) == like
    expected = given.run(learner, carry)
    given.params = params
    found = given.run(RTRL(stack), restored)
    for one, other in zip(leaves_of(found[:2]), leaves_of(expected[:2]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_structure() -> None:
    stack = Stack(LAYERS["around"])
    assert (stack.inputs, stack.outputs, stack.memory, stack.rows) == (3, 4, 19, 23)
    assert stack.sizes == (3, 5, 6, 6, 9, 4, 10, 10, 5, 9, 9, 4)
    assert stack.output == slice(19, 23)
    params = stack.init(0)
    assert list(params)[:5] == ["0.kernel", "0.bias", "1.input", "1.recurrent", "1.bias"]
    assert sum(value.size for value in params.values()) == stack.num_parameters
    assert Stack(SMALL).output == slice(4, 9)
    assert Stack([Accumulator(inputs=2, hidden=3)]).output == slice(3, 6)
    assert Stack(SMALL) == Stack(SMALL)
    digests = {Stack(SMALL).digest, Stack(SMALL, exact=True).digest, Stack(SMALL[:1]).digest}
    assert len(digests) == 3
    learner = SnAp(Stack(SMALL), 2)
    assert isinstance(learner, SnAp)
    assert [each and each.order for each in learner.learners] == [2, None, 2]
    with pytest.raises(AttributeError, match="no single plan"):
        _ = learner.plan


@pytest.mark.parametrize("like", LIBRARIES)
def test_parameters_are_drawn_alike_in_every_library(like: str) -> None:
    stack = Stack(LAYERS["sparse"])
    for name, value in stack.init(5, like=like).items():
        np.testing.assert_array_equal(to_numpy(value), stack.init(5)[name])


@pytest.mark.parametrize(
    ("layers", "kind", "message"),
    [
        ([], ValueError, "`layers` must hold at least one Cell"),
        ([Linear(2, 3)], ValueError, "`layers` must hold at least one Cell"),
        ([RNN(inputs=2, hidden=3), 5], TypeError, r"`layers\[1\]` must be a Cell.* got int"),
        ([Skip("input"), RNN(inputs=2, hidden=3)], ValueError, r"`layers\[0\]` must not be a Skip"),
        (
            [RNN(inputs=2, hidden=3), RNN(inputs=4, hidden=3)],
            ValueError,
            r"`layers\[1\]` must have the 3 inputs that layers\[0\] gives, got 4",
        ),
        (
            [RNN(inputs=2, hidden=3), GRU(inputs=3, hidden=3, reset="before")],
            TypeError,
            r"`layers\[1\]` must be in factored form, got ResetBeforeGRU",
        ),
        (
            [RNN(inputs=2, hidden=3), Skip(0)],
            ValueError,
            r"`layers\[1\]` must read a layer before layers\[0\], got 0",
        ),
        (
            [RNN(inputs=2, hidden=3), Skip("input", how="sum")],
            ValueError,
            r"`layers\[1\]` must add signals of equal sizes, got 3 and 2",
        ),
    ],
)
def test_wrong_layers(layers: list, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        Stack(layers)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="`exact` must be a bool, got 1"):
        Stack(SMALL, exact=1)
    with pytest.raises(TypeError, match="`layers` must be a list or a tuple, got RNN"):
        Stack(SMALL[0])
    for source in (-1, 1.5, True, "output"):
        with pytest.raises(ValueError, match="`source` must be"):
            Skip(source)
    with pytest.raises(ValueError, match="`how` must be one of"):
        Skip(0, how="product")
    stack = Stack(SMALL)
    given = stack_problem(stack, "numpy", steps=2)
    learner = RTRL(stack)
    carry = learner.init(3, dtype="float64")
    with pytest.raises(ValueError, match=r"`params` must have .*'1.kernel'"):
        learner.prepare({name: given.params[name] for name in given.params if name != "1.kernel"})
    with pytest.raises(ValueError, match=r"`params\['1.kernel'\]` must have shape \(4, 3\)"):
        learner.prepare({**given.params, "1.kernel": np.zeros(12)})
    with pytest.raises(ValueError, match=r"`dL_dstate` must have shape \[3, 5\], got \[3, 9\]"):
        learner.gradient(carry, np.zeros((3, 9)))
    with pytest.raises(ValueError, match=r"`x` must have shape \[3, 2\]"):
        learner.step(given.params, carry, np.zeros((3, 3)))
    with pytest.raises(TypeError, match="`ready` must have the carry's dtype"):
        learner.step(stack.init(0), carry, given.xs[0])
    with pytest.raises(TypeError, match="one library"):
        RTRL(stack).step(stack.init(0, like="torch"), carry, given.xs[0])
