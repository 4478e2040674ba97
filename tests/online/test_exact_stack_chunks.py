"""Exact stacks in chunks of time give what they give step by step, and what BPTT gives."""

import numpy as np
import pytest
from networks import Problem, largest_difference
from stacks import stack_problem
from test_stack import LAYERS
from test_stack_chunks import check_equal

from tritonsnap import (
    BPTT,
    GRU,
    LRU,
    LSTM,
    RNN,
    RTRL,
    LayerNorm,
    Linear,
    Readout,
    Skip,
    SnAp,
    Stack,
)
from tritonsnap.arrays import namespace, to_numpy
from tritonsnap.online.stack.exact_structure import ExactChunking
from tritonsnap.online.trees import leaves_of

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

STEPS = 5
SMALL = [GRU(inputs=2, hidden=4, density=0.5), Linear(4, 3), LayerNorm(3), RNN(inputs=3, hidden=5)]
NETWORKS = {
    **LAYERS,
    "small": SMALL,
    "cells": [LRU(inputs=2, hidden=3), GRU(inputs=6, hidden=4), LSTM(inputs=4, hidden=3)],
    "one": [Linear(2, 3, density=0.5), LSTM(inputs=3, hidden=4, density=0.3)],
    "apart": [RNN(inputs=2, hidden=4, density=0.2), RNN(inputs=4, hidden=4, input_density=0.1)],
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("layers", "like", "batch"),
    [
        pytest.param(layers, like, batch, id=f"{name}-{like}-{batch}")
        for name, layers in NETWORKS.items()
        for like in ("numpy", "torch")
        for batch in (1, 3)
    ],
)
def test_a_chunk_is_its_steps(layers: list, like: str, batch: int) -> None:
    stack = Stack(layers, exact=True)
    given, learner = stack_problem(stack, like, STEPS, batch), RTRL(stack)
    _, _, carry = given.run(learner, chunk=1)  # an influence that is not zero
    expected = given.run(learner, carry, chunk=1)
    for chunk in (2, 3, STEPS, STEPS + 3):
        check_equal(given.run(learner, carry, chunk=chunk), expected)


def test_a_chunk_is_its_steps_in_jax() -> None:
    stack = Stack(SMALL, exact=True)
    given, learner = stack_problem(stack, "jax", steps=4), RTRL(stack)
    _, _, carry = given.run(learner, chunk=1)
    check_equal(given.run(learner, carry, chunk=2), given.run(learner, carry, chunk=1))


@pytest.mark.parametrize("name", ["readouts", "kinds", "around"])
def test_the_gradient_is_that_of_bptt(name: str) -> None:
    stack = Stack(NETWORKS[name], exact=True)
    given = stack_problem(stack, "numpy", steps=9)
    loss, gradients, _ = given.run(BPTT(stack))
    found_loss, found, _ = given.run(RTRL(stack), chunk=4)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-10


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_steps_go_on_from_a_chunk(like: str) -> None:
    stack = Stack([*SMALL, Skip(0), Linear(9, 4)], exact=True)
    learner, given = RTRL(stack), stack_problem(stack, like, STEPS)
    expected = given.run(learner, given.run(learner, chunk=1)[2], chunk=1)
    check_equal(given.run(learner, given.run(learner, chunk=3)[2], chunk=1), expected)


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_a_nan_stays_in_its_row_until_that_is_reset(like: str) -> None:
    stack = Stack([*SMALL, Skip(0)], exact=True)
    given, learner = stack_problem(stack, like, STEPS), RTRL(stack)
    xp = namespace(like)
    at, bad = np.zeros((STEPS, 3), bool), to_numpy(given.xs).copy()
    at[3, 2], bad[1, 2] = True, np.nan
    given.resets = xp.asarray(at)
    spoiled = Problem(**{**vars(given), "xs": xp.asarray(bad)})
    with np.errstate(invalid="ignore"):
        found, clean = (one.run(learner, chunk=STEPS)[2] for one in (spoiled, given))
    for one, other in zip(leaves_of(found), leaves_of(clean), strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_targets_that_are_masked_may_be_nan() -> None:
    stack = Stack(SMALL, exact=True)
    given, learner = stack_problem(stack, "numpy", STEPS), RTRL(stack)
    given.loss = Readout(2, "mse")
    given.ys = np.random.default_rng(2).normal(size=(STEPS, 3, 2))
    given.readout = given.loss.init(stack.outputs, 1, dtype="float64")
    expected = given.run(learner, chunk=1)
    given.ys[given.mask == 0] = np.nan
    check_equal(given.run(learner, chunk=2), expected)


def test_the_influence_is_rounded_once_in_half_precision() -> None:
    stack = Stack(SMALL, exact=True)
    given, exact = stack_problem(stack, "numpy", STEPS), RTRL(stack)
    learner = RTRL(stack, influence_dtype="float16")
    end, expected = given.run(learner, chunk=STEPS)[2], given.run(exact, chunk=STEPS)[2]
    both = (leaves_of((one.influence.own, one.influence.crossing)) for one in (end, expected))
    for one, other in zip(*both, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, other.astype(np.float16))


def test_an_order_that_drops_nothing_has_chunks() -> None:
    layers = [LRU(inputs=2, hidden=3), LRU(inputs=6, hidden=3), Linear(6, 2)]
    stack = Stack(layers, exact=True)
    learner, given = SnAp(stack, 1), stack_problem(stack, "numpy", STEPS)
    found = given.run(learner, chunk=2)
    check_equal(found, given.run(learner, chunk=1))
    assert largest_difference(found[1], given.run(BPTT(stack))[1]) < 1e-12


def test_auto_takes_chunks_where_they_are_cheaper() -> None:
    layers = [GRU(inputs=8, hidden=32), Linear(32, 16), LSTM(inputs=16, hidden=32)]
    learner = RTRL(Stack(layers, exact=True))
    xs = np.zeros((64, 8, 8), np.float32)
    chunking = learner.chunking("auto", xs)
    assert isinstance(chunking, ExactChunking)
    assert 8 <= chunking.steps < 64
    assert learner.chunking("auto", xs) is chunking
    assert learner.chunking(chunking, xs) is chunking
    assert learner.chunking("auto", xs[:10]) is None
    assert learner.chunking(1, xs) is None


def test_a_compiled_function_takes_chunks_as_an_argument() -> None:
    stack = Stack(
        [RNN(inputs=2, hidden=32, density=0.1), Linear(32, 24, density=0.2), LRU(24, 8)], exact=True
    )
    learner, loss = RTRL(stack), Readout(3)
    xs, ys = jax.numpy.ones((6, 1, 2)), jax.numpy.zeros((6, 1), int)
    carry = learner.init(1, like="jax", dtype="float64")
    params = stack.init(0, like="jax", dtype="float64")
    readout = loss.init(stack.outputs, 1, like="jax", dtype="float64")

    @jax.jit
    def run(learner, chunking, params, carry, readout):
        return learner.sequence(params, carry, xs, ys, loss, readout=readout, chunk=chunking)

    chunking = learner.chunking(4, xs)
    lowered = run.lower(learner, chunking, params, carry, readout).as_text()
    constants = [line for line in lowered.splitlines() if "stablehlo.constant" in line]
    assert max(map(len, constants)) < 120


def test_wrong_chunks() -> None:
    stack = Stack(SMALL, exact=True)
    learner, given = RTRL(stack), stack_problem(stack, "numpy", STEPS)
    with pytest.raises(ValueError, match=r"`chunk` must be 'auto' or 1 for SnAp\(.*, got 3"):
        given.run(SnAp(stack, 1), chunk=3)
    of_another = RTRL(Stack(SMALL[:1], exact=True)).chunking(3, given.xs)
    layer_by_layer = RTRL(Stack(SMALL)).chunking(3, given.xs)
    own = learner.chunking(3, given.xs)
    for one, chunk in (
        (learner, of_another),
        (learner, layer_by_layer),
        (SnAp(stack, 1), own),
        (RTRL(Stack(SMALL)), own),
    ):
        with pytest.raises(ValueError, match="`chunk` must be a chunking of"):
            given.run(one, chunk=chunk)
    for wrong in (0, 1.5, "all"):
        with pytest.raises((TypeError, ValueError), match="`chunk` must be"):
            given.run(learner, chunk=wrong)
