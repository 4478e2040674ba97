"""`influence_gradient` against dense float64 arithmetic."""

import importlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from influences import REGIMES, Problem, broadcasts, default_target, problems, snap_problem

from tritonsnap import Factors, influence_gradient, influence_step, influence_update

torch = pytest.importorskip("torch")


@given(problem=problems(), data=st.data(), sum_batch=st.booleans(), columns=st.booleans())
def test_equals_the_dense_product(
    problem: Problem, data: st.DataObject, sum_batch: bool, columns: bool
) -> None:
    with default_target(problem.target):
        dense_j, j = problem.influence("mask", data.draw(broadcasts(problem.batch)))
        delta = problem.draw(problem.plan.mask.shape[0])
        expected = np.squeeze(delta[..., None, :] @ dense_j, -2)
        if sum_batch:
            expected = expected.sum(axis=tuple(range(len(problem.batch))))
        found = influence_gradient(
            problem.to_library(delta), j, problem.plan, sum_batch=sum_batch, packed=columns
        )
        if columns:
            if not found:
                return
            found = problem.plan.packing().unpack_columns(found)
        problem.compare(found, expected)


@given(problem=problems())
def test_a_transposed_plan_too(problem: Problem) -> None:
    mask, x = problem.plan.mask, problem.plan.x
    assume(not np.any((np.diff(mask.indptr) == 0) & (np.diff(x.indptr) > 0)))
    with default_target(problem.target):
        plan = problem.plan.transpose()
        dense_j, j = problem.influence("x")
        delta = problem.draw(plan.mask.shape[0])
        found = influence_gradient(problem.to_library(delta), j, plan)
        problem.compare(found, np.squeeze(delta[..., None, :] @ dense_j, -2))


@pytest.mark.parametrize("sum_batch", [False, True])
@pytest.mark.parametrize("regime", REGIMES)
def test_jax(regime, sum_batch: bool) -> None:
    jnp = pytest.importorskip("jax.numpy")
    plan, _, random = snap_problem(2, regime, "xla")
    delta = random.standard_normal((3, 4)).astype(np.float32)
    j = random.standard_normal((3, plan.x.nnz)).astype(np.float32)
    expected = influence_gradient(delta, j, plan, sum_batch=sum_batch)
    found = influence_gradient(jnp.asarray(delta), jnp.asarray(j), plan, sum_batch=sum_batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_wrong_arguments(library: str) -> None:
    pytest.importorskip(library)
    names = {"torch": "torch", "jax": "jax.numpy", "numpy": "numpy"}
    xp = importlib.import_module(names[library])
    ones = lambda *shape: xp.ones(shape, dtype=xp.float32)  # noqa: E731
    plan, _, _ = snap_problem(2, None)
    with pytest.raises(ValueError, match=r"`delta` must have shape \[..., 4\]"):
        influence_gradient(ones(3), ones(plan.x.nnz), plan)
    with pytest.raises(ValueError, match=r"`delta` must have .* broadcast with \[3\]"):
        influence_gradient(ones(2, 4), ones(3, plan.x.nnz), plan)
    with pytest.raises(ValueError, match="`j` must have shape"):
        influence_gradient(ones(4), ones(3), plan)
    with pytest.raises(TypeError, match="`delta` must have a floating-point dtype"):
        influence_gradient(xp.ones(4, dtype=xp.int32), ones(plan.x.nnz), plan)
    with pytest.raises(TypeError, match="`plan` must be a DsmmPlan"):
        influence_gradient(ones(4), ones(plan.x.nnz), None)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("order", [1, 2])
def test_a_step_is_the_update_and_its_gradient(library: str, order: int) -> None:
    pytest.importorskip(library)
    names = {"torch": "torch", "jax": "jax.numpy", "numpy": "numpy"}
    xp = importlib.import_module(names[library])
    plan, structure, random = snap_problem(order, None)
    draw = lambda *shape: xp.asarray(random.standard_normal(shape), dtype=xp.float32)  # noqa: E731
    d, j, delta, scale = draw(3, 4, 4), draw(3, plan.x.nnz), draw(3, 4), draw(3, 4)
    factors = Factors(draw(3, 2, 4), draw(3, 4), structure)
    influence, gradient = influence_step(d, j, factors, delta, plan, row_scale=scale)
    expected = influence_update(d, j, factors, plan, row_scale=scale)
    np.testing.assert_array_equal(influence, expected)
    np.testing.assert_array_equal(
        gradient, influence_gradient(delta, expected, plan, sum_batch=True)
    )
    with pytest.raises(ValueError, match="`delta` must have shape"):
        influence_step(d, j, factors, draw(3, 5), plan)
