"""`masked_outer` against dense float64 products."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from influences import REGIMES, Problem, broadcasts, default_target, problems, snap_problem

from tritonsnap import masked_dsmm, masked_outer

torch = pytest.importorskip("torch")


@given(problem=problems(), data=st.data())
def test_equals_the_dense_product(problem: Problem, data: st.DataObject) -> None:
    with default_target(problem.target):
        pattern = problem.plan.dynamics
        dense_r, r = problem.influence("mask")
        dense_x, x = problem.influence(batch=data.draw(broadcasts(problem.batch)))
        if problem.packed and not r:
            return
        values = pattern.values_of(dense_r @ np.swapaxes(dense_x, -1, -2))
        found = masked_outer(r, x, problem.plan, form=problem.form)
        expected = values if problem.form == "values" else pattern.to_dense(values)
        problem.compare(found, expected)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", ["values", "dense"])
def test_is_the_adjoint_of_masked_dsmm_in_d(regime, form: str) -> None:
    plan, _, random = snap_problem(2, regime)
    d = random.standard_normal((4, 4))
    d = d if form == "dense" else plan.dynamics.values_of(d)
    r, x = random.standard_normal((2, plan.x.nnz))
    left = (r * masked_dsmm(d, x, plan)).sum()
    np.testing.assert_allclose((d * masked_outer(r, x, plan, form=form)).sum(), left, rtol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_same_input_gives_the_same_bits(regime) -> None:
    plan, _, random = snap_problem(None, regime)
    r, x = random.standard_normal((2, 3, plan.x.nnz)).astype(np.float32)
    first = masked_outer(r, x, plan)
    assert masked_outer(r.copy(), x.copy(), plan).tobytes() == first.tobytes()


@pytest.mark.parametrize("form", ["values", "dense"])
@pytest.mark.parametrize("regime", REGIMES)
def test_jax(form: str, regime) -> None:
    jnp = pytest.importorskip("jax.numpy")
    plan, _, random = snap_problem(2, regime, "xla")
    r, x = random.standard_normal((2, 3, plan.x.nnz)).astype(np.float32)
    expected = masked_outer(r, x, plan, form=form)
    found = masked_outer(jnp.asarray(r), jnp.asarray(x), plan, form=form)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_wrong_arguments(library: str) -> None:
    pytest.importorskip(library)
    plan, _, _ = snap_problem(2, None)
    names = {"torch": "torch", "jax": "jax.numpy", "numpy": "numpy"}
    xp = importlib.import_module(names[library])
    ones = lambda *shape: xp.ones(shape, dtype=xp.float32)  # noqa: E731
    r = x = ones(plan.x.nnz)
    with pytest.raises(ValueError, match=r"`r` must have shape"):
        masked_outer(ones(3), x, plan)
    with pytest.raises(ValueError, match=r"`x` must have shape"):
        masked_outer(r, ones(3), plan)
    with pytest.raises(ValueError, match="`r` and `x` must be both flat or both packed"):
        masked_outer(plan.pack(r), x, plan)
    with pytest.raises(ValueError, match=r"`r` must have batch axes that broadcast with the \[2\]"):
        masked_outer(ones(3, plan.x.nnz), ones(2, plan.x.nnz), plan)
    with pytest.raises(TypeError, match="`x` must have a floating-point dtype, got int32"):
        masked_outer(r, xp.ones(plan.x.nnz, dtype=xp.int32), plan)
    with pytest.raises(ValueError, match="`form` must be one of"):
        masked_outer(r, x, plan, form="csr")
    with pytest.raises(TypeError, match="`plan` must be a DsmmPlan"):
        masked_outer(r, x, None)
