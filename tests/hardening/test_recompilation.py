"""What is compiled once per shape is not compiled again: new values, plans of equal structure."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tritonsnap as ts

CELL = ts.GRU(inputs=3, hidden=8, density=0.5, seed=0)


def plan() -> ts.DsmmPlan:
    dynamics = ts.SparsityPattern.random((8, 8), 0.3, 0)
    immediate = ts.SparsityPattern.from_coo(np.arange(16) // 2, np.arange(16), (8, 16))
    mask = ts.snap_pattern(dynamics, immediate, 2)
    return ts.DsmmPlan(mask, mask, dynamics)


def operands(number: int, plan: ts.DsmmPlan, batch: int = 2) -> list[Any]:
    rng = np.random.default_rng(number)
    sizes = plan.dynamics.nnz, plan.mask.nnz
    return [rng.normal(size=(batch, size)).astype(np.float32) for size in sizes]


class Compiled(logging.Handler):
    """The names of the programs that JAX compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("Compiling"):
            self.names.append(message.split()[1])


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    jax = pytest.importorskip("jax")
    handler = Compiled()
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            yield handler.names
    finally:
        logger.removeHandler(handler)


class TestJax:
    """One compilation for each shape, whoever jits."""

    @pytest.fixture(autouse=True)
    def _needs_jax(self) -> None:
        pytest.importorskip("jax")

    def test_the_count_counts(self) -> None:
        import jax

        with counted() as names:
            jax.jit(lambda x: x + 1)(np.ones(3))
        assert len(names) == 1

    def test_ops_take_plans_of_equal_structure(self) -> None:
        import jax

        product = jax.jit(lambda d, j, plan: ts.masked_dsmm(d, j, plan))
        for number in range(3):
            made = plan()
            product(*map(jax.numpy.asarray, operands(number, made)), made)
        assert product._cache_size() == 1
        product(*map(jax.numpy.asarray, operands(0, plan(), batch=3)), plan())
        assert product._cache_size() == 2

    def test_sequences_of_equal_learners(self) -> None:
        import jax

        readout = ts.Readout(3)
        params, weights = CELL.init(0, like="jax"), readout.init(8, 1, like="jax")

        def train(steps: int) -> None:
            learner = ts.SnAp(CELL, 2)
            carry = learner.init(2, like="jax")
            for number in range(2):
                xs = jax.random.normal(jax.random.key(number), (steps, 2, 3))
                ys = jax.random.randint(jax.random.key(number), (steps, 2), 0, 3)
                *_, carry = learner.sequence(params, carry, xs, ys, readout, readout=weights)

        train(5)
        with counted() as names:
            train(5)
        assert names == []

    def test_steps_of_equal_learners(self) -> None:
        import jax

        step = jax.jit(lambda learner, params, carry, x: learner.step(params, carry, x))
        params = CELL.init(0, like="jax")
        for number in range(3):
            learner = ts.SnAp(CELL, 2)
            carry = learner.init(2, like="jax")
            for _ in range(3):
                carry, _ = step(learner, params, carry, jax.numpy.full((2, 3), float(number)))
        assert step._cache_size() == 1

    def test_jacobians_of_equal_projections(self) -> None:
        import jax

        from tritonsnap.jax import make_jacobian_projection, sp_jacrev

        rows = np.arange(6)
        pattern = ts.SparsityPattern.from_coo(rows, rows, (6, 6))
        jacobian = jax.jit(lambda projection, x: sp_jacrev(jax.numpy.sin, projection)(x))
        for number in range(3):
            jacobian(make_jacobian_projection(pattern), jax.numpy.full(6, float(number)))
        assert jacobian._cache_size() == 1


class TestTorch:
    """`torch.compile` makes one graph for each plan, and none for new values."""

    def test_ops(self) -> None:
        torch = pytest.importorskip("torch")
        torch._dynamo.reset()
        counter = pytest.importorskip("torch._dynamo.testing").CompileCounter()
        shared = plan()
        product = torch.compile(
            lambda d, j: ts.masked_dsmm(d, j, shared),
            backend=counter,
            fullgraph=True,
            dynamic=False,
        )
        for number in range(4):
            product(*map(torch.from_numpy, operands(number, shared)))
        assert counter.frame_count == 1
        product(*map(torch.from_numpy, operands(0, shared, batch=3)))
        assert counter.frame_count == 2
