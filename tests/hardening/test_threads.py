"""Eight threads that call the same ops, learners and plans at once get the bits that one gets."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.arrays import to_numpy

THREADS = 8


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[int], Any]) -> list[list[np.ndarray]]:
    """All arrays of what each thread gets; all begin together."""
    barrier = Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return [arrays_of(found) for found in threads.map(begin, range(THREADS))]


def arrays_of(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return [array for one in value for array in arrays_of(one)]
    return [] if value is None else [to_numpy(value)]


def assert_equal_bits(found: list[list[np.ndarray]], expected: list[np.ndarray]) -> None:
    for one in found:
        assert len(one) == len(expected) > 0
        for array, right in zip(one, expected, strict=True):
            assert array.dtype == right.dtype
            assert array.tobytes() == right.tobytes()


def moved(array: np.ndarray, library: str) -> Any:
    if library == "torch":
        return pytest.importorskip("torch").from_numpy(array)
    if library == "jax":
        return pytest.importorskip("jax.numpy").asarray(array)
    return array


def new_plan(seed: int = 0) -> ts.DsmmPlan:
    dynamics = ts.SparsityPattern.random((24, 24), 0.15, seed)
    immediate = ts.SparsityPattern.from_coo(np.arange(96) // 4, np.arange(96), (24, 96))
    mask = ts.snap_pattern(dynamics, immediate, 2)
    return ts.DsmmPlan(mask, mask, dynamics)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_ops_on_one_plan_that_none_has_used_yet(library: str) -> None:
    plan, fresh = new_plan(), new_plan()
    rng = np.random.default_rng(0)
    d, j = (
        moved(rng.normal(size=(2, size)).astype(np.float32), library)
        for size in (plan.dynamics.nnz, plan.mask.nnz)
    )
    delta = moved(rng.normal(size=(2, 24)).astype(np.float32), library)

    def compute(plan: ts.DsmmPlan) -> Any:
        product = ts.masked_dsmm(d, j, plan)
        return (
            product,
            ts.masked_outer(product, j, plan),
            ts.influence_update(d, j, j, plan),
            ts.influence_gradient(delta, j, plan),
            ts.masked_dsmm(d, j, plan),
        )

    assert_equal_bits(at_once(lambda _: compute(fresh)), arrays_of(compute(plan)))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_learner_and_its_streams(library: str) -> None:
    cell, readout = ts.GRU(inputs=3, hidden=12, density=0.4, seed=0), ts.Readout(4)
    rng = np.random.default_rng(0)
    xs = moved(rng.normal(size=(6, 2, 3)).astype(np.float32), library)
    ys = moved(rng.integers(0, 4, (6, 2)), library)
    params, weights = cell.init(0, like=library), readout.init(12, 1, like=library)

    def train(learner: Any) -> Any:
        carry = learner.init(2, like=library)
        for _ in range(2):
            loss, gradients, carry = learner.sequence(
                params, carry, xs, ys, readout, readout=weights
            )
        return loss, gradients, carry.state

    shared = ts.SnAp(cell, 2)
    assert_equal_bits(at_once(lambda _: train(shared)), arrays_of(train(ts.SnAp(cell, 2))))


def test_plans_built_at_once_are_equal() -> None:
    digests = at_once(lambda _: np.frombuffer(new_plan(3).digest.encode(), np.uint8))
    assert_equal_bits(digests, [np.frombuffer(new_plan(3).digest.encode(), np.uint8)])


def test_colorings_at_once_are_equal() -> None:
    pattern = ts.SparsityPattern.random((60, 60), 0.1, 0)
    found = at_once(lambda _: ts.color_rows(pattern).colors)
    assert_equal_bits(found, [ts.color_rows(ts.SparsityPattern.random((60, 60), 0.1, 0)).colors])


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_sparse_jacobians(library: str) -> None:
    face = pytest.importorskip(f"tritonsnap.{library}")
    x = moved(np.linspace(0, 1, 40, dtype=np.float32), library)

    def function(x: Any) -> Any:
        return x[1:] * x[:-1]

    rows = np.repeat(np.arange(39), 2)
    pattern = ts.SparsityPattern.from_coo(rows, rows + np.tile([0, 1], 39), (39, 40))

    def values(projection: Any) -> Any:
        return face.sp_jacrev(function, projection, format="data")(x)

    shared = face.make_jacobian_projection(pattern)
    found = at_once(lambda _: values(shared))
    assert_equal_bits(found, arrays_of(values(face.make_jacobian_projection(pattern))))
