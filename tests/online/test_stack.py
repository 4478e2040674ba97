"""Stacks against the autodiff of torch and JAX over the unrolled network."""

import numpy as np
import pytest
from networks import OUTPUTS, Problem, as_numpy, largest_difference, off_diagonal_stopped
from stacks import Accumulator, differentiated, stack_problem, stack_step

from tritonsnap import (
    BPTT,
    GRU,
    RNN,
    RTRL,
    LayerNorm,
    Linear,
    Readout,
    Skip,
    SnAp,
    SparsityPattern,
    Stack,
    snap_pattern,
)
from tritonsnap.arrays import LIBRARIES, library_of, namespace, to_numpy
from tritonsnap.online.checkpoint import load_checkpoint, save_checkpoint
from tritonsnap.online.trees import leaves_of, map_tree

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

LAYERS = {
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
stacks = pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
everywhere = pytest.mark.parametrize("like", LIBRARIES)


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


@everywhere
@stacks
def test_exact_rtrl_and_bptt_equal_autodiff_for_every_layer(layers: list, like: str) -> None:
    stack = Stack(layers, exact=True)
    given = stack_problem(stack, like, steps=20)
    loss, gradients, states = oracle(given)
    for learner in (RTRL(stack), BPTT(stack), SnAp(stack, 40)):
        found_loss, found, carry = given.run(learner)
        assert found_loss == pytest.approx(loss, rel=1e-12)
        assert max(by_layer(found, gradients)) < 1e-10
        np.testing.assert_allclose(to_numpy(carry.state)[:, : stack.memory], states, atol=1e-12)
        assert int(carry.step) == 20


@everywhere
@stacks
def test_layer_local_rtrl_stops_the_paths_through_time_and_depth(layers: list, like: str) -> None:
    stack = Stack(layers)
    given = stack_problem(stack, like, steps=20)
    loss, gradients, _ = oracle(given, local=True)
    found_loss, found, _ = given.run(RTRL(stack))
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert max(by_layer(found, gradients)) < 1e-10
    if like == "numpy":  # the paths do matter
        assert by_layer(found, oracle(given)[1])[0] > 1e-3
        np.testing.assert_array_equal(given.run(BPTT(stack))[0], found_loss)
        assert max(by_layer(given.run(BPTT(stack))[1], oracle(given)[1])) < 1e-10


@everywhere
def test_layer_local_snap_1_stops_the_paths_between_units_too(like: str) -> None:
    stack = Stack(LAYERS["readouts"])
    given = stack_problem(stack, like, steps=40)
    _, gradients, _ = oracle(given, off_diagonal_stopped, local=True)
    assert max(by_layer(given.run(SnAp(stack, 1))[1], gradients)) < 1e-12


def dense_influences(given: Problem, order: int | None) -> list[np.ndarray]:
    """The influence [batch, rows, p] of each cell by its recurrence, from dense Jacobians."""
    stack = given.cell
    cells = [number for number, layer in enumerate(stack.layers) if not isinstance(layer, Linear)]
    params = {name: jax.numpy.asarray(value) for name, value in given.params.items()}
    sizes = [stack.layers[number].rows for number in cells]

    def step(params, before, x, stop=()):
        return stack_step(jax.numpy, stack, params, before, x)[0]

    def matrices(before, x):
        """For one row: ds/ds_before by pairs of cells, and ds/dtheta, of the whole step."""
        dynamics = jax.jacrev(step, 1)(params, before, x)
        of_params = jax.jacrev(step, 0)(params, before, x)
        flat = [
            np.concatenate(
                [
                    np.asarray(
                        linear.flat(np.moveaxis(np.asarray(own[f"{n}.{linear.name}"]), 0, -1)).T
                    )
                    if linear.pattern is not None or linear.source == "one"
                    else np.asarray(own[f"{n}.{linear.name}"]).transpose(0, 2, 1).reshape(size, -1)
                    for n, layer in enumerate(stack.layers)
                    for linear in layer.maps
                ],
                axis=1,
            )
            for own, size in zip(of_params, sizes, strict=True)
        ]
        return [[np.asarray(d) for d in row] for row in dynamics], flat

    matrices = jax.tree_util.Partial(matrices)
    batch = given.xs.shape[1]
    states = [[np.zeros(size) for size in sizes] for _ in range(batch)]
    influences = [[0.0] * len(cells) for _ in range(batch)]
    masks = None
    for x in to_numpy(given.xs):
        for row in range(batch):
            dynamics, immediate = matrices(states[row], x[row])
            if masks is None:
                masks = snap_masks(dynamics, immediate, order)
            new = []
            for k in range(len(cells)):
                # J_k = M (D_kk J_k) + E_k J_{k-1} + I_k, E_k J_{k-1} being what the whole step
                # says with D_kl = E_k D_{k-1,l}, and with the lower layer's influence as kept
                kept = masks[k] * (dynamics[k][k] @ influences[row][k] + np.zeros_like(masks[k]))
                if k:
                    reach = dynamics[k][k - 1] @ np.linalg.inv(dynamics[k - 1][k - 1])
                    kept = kept + reach @ (new[k - 1] - immediate[k - 1])
                new.append(kept + immediate[k])
            influences[row] = new
            states[row] = [np.asarray(s) for s in step(params, states[row], x[row])]
    return [np.stack([row[k] for row in influences]) for k in range(len(cells))]


def snap_masks(dynamics, immediate, order):
    """The masks of SnAp-n over the whole network, from its Jacobians."""
    whole = snap_pattern(
        SparsityPattern.from_dense(np.block(dynamics)),
        SparsityPattern.from_dense(np.concatenate(immediate)),
        order,
    ).to_dense()
    ends = np.cumsum([len(part) for part in immediate])
    return np.split(whole, ends[:-1])


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
