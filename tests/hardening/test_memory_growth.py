"""Memory stays as it is, however long one trains and however many plans one builds."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.kan import KAN, Trainer

OVERHEAD = 20_000
"""Bytes that caches of the interpreter and the libraries may still grow by."""
LEAK = 24
"""Bytes a step: less than the smallest object that a step could leave behind."""
LONG = 10_000


def growth(step: Callable[[], Any], steps: int) -> int:
    """Bytes that so many steps leave behind, after as many to warm up, at most 200."""
    for _ in range(min(steps, 200)):
        step()
    tracemalloc.start()
    try:
        for _ in range(20):
            step()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(steps):
            step()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def training(learner: Any, library: str) -> Callable[[], Any]:
    """A step of online learning, which carries on from the one before."""
    cell = learner.cell
    params = cell.init(0, like=library)
    rng = np.random.default_rng(0)
    x, delta = (rng.normal(size=(2, size)).astype(np.float32) for size in (3, cell.hidden))
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, delta = torch.from_numpy(x), torch.from_numpy(delta)
    carry = learner.init(2, like=library)

    def update(learner: Any, params: Any, carry: Any, x: Any, delta: Any) -> Any:
        carry, _ = learner.step(params, carry, x)
        return carry, learner.gradient(carry, delta)

    if library == "jax":
        jax = pytest.importorskip("jax")
        update = jax.jit(update)
        x, delta = jax.numpy.asarray(x), jax.numpy.asarray(delta)

    def step() -> None:
        nonlocal carry
        carry, _ = update(learner, params, carry, x, delta)

    return step


CELL = ts.GRU(inputs=3, hidden=6, density=0.5, seed=0)
LEARNERS = {
    "snap": ts.SnAp(CELL, 2),
    "rtrl": ts.RTRL(CELL),
    "uoro": ts.UORO(CELL),
}


@pytest.mark.parametrize(
    ("learner", "library", "steps"),
    [
        ("snap", "numpy", 200),
        ("snap", "torch", 200),
        *(
            pytest.param(learner, library, LONG, marks=pytest.mark.slow)
            for learner in LEARNERS
            for library in ("numpy", "torch", "jax")
        ),
    ],
)
def test_training(learner: str, library: str, steps: int) -> None:
    if library != "numpy":
        pytest.importorskip(library)
    step = training(LEARNERS[learner], library)
    assert growth(step, steps) < OVERHEAD + LEAK * steps


def test_jax_keeps_no_arrays() -> None:
    jax = pytest.importorskip("jax")
    step = training(LEARNERS["snap"], "jax")
    for _ in range(3):
        step()
    kept = len(jax.live_arrays())
    assert growth(step, 200) < OVERHEAD + LEAK * 200
    assert len(jax.live_arrays()) <= kept


@pytest.mark.parametrize("chunk", [1, 4])
def test_sequences(chunk: int) -> None:
    learner = ts.SnAp(CELL, 2)
    params, readout, carry = CELL.init(0), ts.Readout(3), learner.init(2)
    weights = readout.init(6, 1)
    xs, ys = np.ones((4, 2, 3), np.float32), np.ones((4, 2), int)

    def step() -> None:
        nonlocal carry
        _, _, carry = learner.sequence(params, carry, xs, ys, readout, readout=weights, chunk=chunk)

    assert growth(step, 30) < OVERHEAD


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_plans_that_are_built_and_dropped(library: str) -> None:
    values = np.ones(1)
    if library == "torch":
        torch = pytest.importorskip("torch")
        values = torch.from_numpy(values)
    seed = iter(range(10_000))

    def step() -> None:
        dynamics = ts.SparsityPattern.random((8, 8), 0.3, next(seed))
        immediate = ts.SparsityPattern.from_coo(np.arange(16) // 2, np.arange(16), (8, 16))
        mask = ts.snap_pattern(dynamics, immediate, 2)
        plan = ts.DsmmPlan(mask, mask, dynamics)
        ts.masked_dsmm(values.repeat(dynamics.nnz), values.repeat(mask.nnz), plan)
        ts.masked_outer(values.repeat(mask.nnz), values.repeat(mask.nnz), plan)
        plan.transpose()

    assert growth(step, 30) < OVERHEAD


def test_jax_plans_that_are_built_and_dropped() -> None:
    jax = pytest.importorskip("jax")
    seed = iter(range(10_000))

    def step() -> None:
        cell = ts.RNN(inputs=1, hidden=4, density=0.5, seed=next(seed))
        learner = ts.SnAp(cell, 2)
        learner.init(1, like="jax")

    for _ in range(5):
        step()
    gc.collect()
    kept = len(jax.live_arrays())
    for _ in range(20):
        step()
    gc.collect()
    assert len(jax.live_arrays()) <= kept + 5


@pytest.mark.parametrize("engine", ["sequential", "threads"])
def test_kan(engine: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(64, 2)), rng.uniform(size=64)
    model = KAN(inputs=2, addends=3, inner_points=3, outer_points=4)
    trainer = Trainer(model, engine=engine, block=16)

    def step() -> None:
        trainer.fit(x, y, epochs=1, progress=False)

    assert growth(step, 30) < OVERHEAD + 30 * 1500  # the history has a record for each epoch
