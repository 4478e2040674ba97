"""Stacks in chunks of time give what they give step by step."""

import numpy as np
import pytest
from networks import Problem, largest_difference
from stacks import stack_problem
from test_stack import LAYERS, differentiated

from tritonsnap import GRU, LSTM, RNN, RTRL, LayerNorm, Linear, Readout, Skip, SnAp, Stack
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy
from tritonsnap.online.stack.chunks import StackChunking
from tritonsnap.online.trees import leaves_of
from tritonsnap.plan.blocks import Regime

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

STEPS = 7
SMALL = [GRU(inputs=2, hidden=4, density=0.5), Linear(4, 3), LayerNorm(3), RNN(inputs=3, hidden=5)]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def check_equal(found, expected) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert largest_difference(found[1], expected[1]) < 1e-12
    for one, other in zip(leaves_of(found[2]), leaves_of(expected[2]), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "like", "order"),
    [
        pytest.param(layers, like, order, id=f"{name}-{like}-{order}")
        for name, layers in {**LAYERS, "small": SMALL}.items()
        for like in (LIBRARIES if name == "small" else ("numpy", "torch"))
        for order in ((1, 2, None) if like == "numpy" else (2,))
    ],
)
def test_a_chunk_is_its_steps(layers: list, like: str, order: int | None) -> None:
    stack = Stack(layers)
    given, learner = stack_problem(stack, like, STEPS), SnAp(stack, order)
    _, _, carry = given.run(learner, chunk=1)  # an influence that is not zero
    expected = given.run(learner, carry, chunk=1)
    for chunk in (3,) if like == "jax" else (2, 3, STEPS, STEPS + 3):
        check_equal(given.run(learner, carry, chunk=chunk), expected)


def test_chunks_go_with_autodiff() -> None:
    stack = Stack(LAYERS["readouts"])
    given = stack_problem(stack, "torch", steps=20)
    loss, gradients, _ = differentiated(given, local=True)
    found_loss, found, _ = given.run(RTRL(stack), chunk=6)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-10


def test_layers_that_are_better_stepped_are_stepped_within_the_chunks() -> None:
    stack = Stack(SMALL)
    given, learner = stack_problem(stack, "numpy", STEPS), SnAp(stack, 2)
    expected = given.run(learner, chunk=1)
    costs = learner.chunkings.by_layer("scipy")
    whole = [{n: one.regime for n, one in enumerate(layer)} for layer in costs]
    assert all(Regime(regime) for layer in whole for regime in layer.values())
    for chosen in ([{}, whole[1]], [whole[0], {}]):
        chunking = learner.chunkings.make("scipy", 3, chosen)
        stepped = [one.stepped is not None for one in chunking.layers if one is not None]
        assert stepped == [not layer for layer in chosen]
        check_equal(given.run(learner, chunk=chunking), expected)


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_a_nan_stays_in_its_row_until_that_is_reset(like: str) -> None:
    stack = Stack([*SMALL, Skip(0)])
    given, learner = stack_problem(stack, like, STEPS), SnAp(stack, 2)
    at = np.zeros((STEPS, 3), bool)
    at[4, 2] = True
    given.resets = namespace(like).asarray(at)
    bad = to_numpy(given.xs).copy()
    bad[1, 2] = np.nan
    xp = namespace(like)
    spoiled = Problem(**{**vars(given), "xs": xp.asarray(bad)})
    with np.errstate(invalid="ignore"):
        found, clean = (one.run(learner, chunk=STEPS)[2] for one in (spoiled, given))
    for one, other in zip(leaves_of(found), leaves_of(clean), strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_the_influence_is_rounded_once_in_half_precision() -> None:
    stack = Stack(SMALL)
    given, exact = stack_problem(stack, "numpy", STEPS), SnAp(stack, 2)
    learner = SnAp(stack, 2, influence_dtype="float16")
    end, expected = given.run(learner, chunk=STEPS)[2], given.run(exact, chunk=STEPS)[2]
    both = (leaves_of(each.influence.own) for each in (end, expected))
    for one, other in zip(*both, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, other.astype(np.float16))


def test_auto_takes_one_number_of_steps_for_all_layers() -> None:
    layers = [GRU(inputs=8, hidden=64), Linear(64, 16), LSTM(inputs=16, hidden=32)]
    learner = SnAp(Stack(layers), 1)
    xs = np.zeros((192, 8, 8), np.float32)
    chunking = learner.chunking("auto", xs)
    assert isinstance(chunking, StackChunking)
    assert chunking.layers[1] is None
    assert {one.steps for one in chunking.layers if one is not None} == {chunking.steps}
    assert 8 <= chunking.steps < 192
    assert learner.chunking("auto", xs) is chunking
    assert learner.chunking(chunking, xs) is chunking
    assert learner.chunking("auto", xs[:10]) is None


def test_a_compiled_function_takes_chunks_as_an_argument() -> None:
    stack = Stack([RNN(inputs=2, hidden=32, density=0.2), Linear(32, 24, density=0.2)])
    learner, loss = SnAp(stack, 2), Readout(3)
    xs, ys = jax.numpy.ones((8, 1, 2)), jax.numpy.zeros((8, 1), int)
    carry = learner.init(1, like="jax", dtype="float64")
    params = stack.init(0, like="jax", dtype="float64")
    readout = loss.init(24, 1, like="jax", dtype="float64")

    @jax.jit
    def run(learner, chunking, params, carry, readout):
        return learner.sequence(params, carry, xs, ys, loss, readout=readout, chunk=chunking)

    chunking = learner.chunking(4, xs)
    lowered = run.lower(learner, chunking, params, carry, readout).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert max(map(len, constants)) < 120


def test_wrong_chunks() -> None:
    stack = Stack(SMALL)
    learner, given = SnAp(stack, 2), stack_problem(Stack(SMALL), "numpy", STEPS)
    of_another = SnAp(stack, 1).chunking(3, given.xs)
    for chunk in (of_another, StackChunking(of_another.layers[:1])):
        with pytest.raises(ValueError, match="`chunk` must be a chunking of"):
            given.run(learner, chunk=chunk)
    for chunk in (1.5, "all", of_another.layers[0]):
        with pytest.raises(TypeError, match=r"`chunk` must be .auto. or an integer"):
            given.run(learner, chunk=chunk)
