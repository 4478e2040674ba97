"""Stacks against the autodiff of torch and JAX over the unrolled network."""

import numpy as np
import pytest
from networks import Problem, largest_difference, off_diagonal_stopped
from stacks import Accumulator, differentiated, stack_problem

from tritonsnap import (
    BPTT,
    GRU,
    RNN,
    RTRL,
    LayerNorm,
    Linear,
    Skip,
    SnAp,
    SparsityPattern,
    Stack,
    snap_pattern,
)
from tritonsnap.arrays import LIBRARIES, library_of, to_numpy

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
    "around": [
        Linear(3, 5),
        RNN(inputs=5, hidden=6),
        LayerNorm(6),
        Skip("input"),
        Accumulator(inputs=9, hidden=4),
        Skip(1),
        RNN(inputs=10, hidden=5),
        Skip(4),
        LayerNorm(9),
        Linear(9, 4),
    ],
}
SMALL = [RNN(inputs=2, hidden=4, density=0.5, seed=3), Linear(4, 3), GRU(inputs=3, hidden=5)]
everywhere = pytest.mark.parametrize("like", LIBRARIES)


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
