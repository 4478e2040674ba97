"""Exact stacks in chunks of time give what they give step by step, and what BPTT gives."""

import pytest
from networks import largest_difference
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
    Stack,
)
from tritonsnap.arrays import LIBRARIES

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
    ("layers", "like"),
    [
        pytest.param(layers, like, id=f"{name}-{like}")
        for name, layers in NETWORKS.items()
        for like in (LIBRARIES if name == "small" else ("numpy", "torch"))
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_chunk_is_its_steps(layers: list, like: str, batch: int) -> None:
    stack = Stack(layers, exact=True)
    given, learner = stack_problem(stack, like, STEPS, batch), RTRL(stack)
    _, _, carry = given.run(learner, chunk=1)  # an influence that is not zero
    expected = given.run(learner, carry, chunk=1)
    for chunk in (2,) if like == "jax" else (2, 3, STEPS, STEPS + 3):
        check_equal(given.run(learner, carry, chunk=chunk), expected)


@pytest.mark.parametrize("name", ["readouts", "kinds", "around"])
def test_the_gradient_is_that_of_bptt(name: str) -> None:
    stack = Stack(NETWORKS[name], exact=True)
    given = stack_problem(stack, "numpy", steps=9)
    loss, gradients, _ = given.run(BPTT(stack))
    found_loss, found, _ = given.run(RTRL(stack), chunk=4)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    assert largest_difference(found, gradients) < 1e-10
