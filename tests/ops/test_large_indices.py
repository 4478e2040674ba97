"""Indices past what 8 and 16 bits hold: units, sources, columns of a group, values."""

import importlib

import numpy as np
import pytest
from influences import REGIMES, default_target

from tritonsnap import RNN, Factors, FactorStructure, SnAp, influence_gradient, influence_update

UNITS = INPUTS = 300
LEARNER = SnAp(RNN(inputs=INPUTS, hidden=UNITS, density=0.01, input_density=0.9, seed=1), 2)


@pytest.fixture(scope="module")
def expected():
    """Operands in float32, and what the ops give by dense arithmetic in float64."""
    rng, structure, plan = np.random.default_rng(0), LEARNER.structure, LEARNER.plan
    columns = np.arange(plan.mask.shape[1])
    assert len(columns) > 1 << 16
    assert plan.groups.num_columns.max() > 1 << 8
    d, j, gains, sources, delta = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in (plan.dynamics.nnz, plan.x.nnz, (1, UNITS), structure.num_sources, UNITS)
    )
    dense_d, dense_j = plan.dynamics.to_dense(d.astype(float)), plan.x.to_dense(j.astype(float))
    immediate = np.zeros(plan.mask.shape)
    immediate[structure.unit, columns] = gains[0, structure.unit] * sources[structure.source]
    update = plan.mask.values_of(dense_d @ dense_j + immediate)
    return (d, j, gains, sources, delta), update, delta @ dense_j


@pytest.mark.parametrize("target", ["numpy", "scipy", "torch", "xla"])
@pytest.mark.parametrize("regime", REGIMES)
def test_update_and_gradient(expected, target: str, regime) -> None:
    operands, update, gradient = expected
    name = {"torch": "torch", "xla": "jax.numpy"}.get(target, "numpy")
    pytest.importorskip(name)
    d, j, gains, sources, delta = map(importlib.import_module(name).asarray, operands)
    host = "scipy" if target == "torch" else target
    with default_target("numpy" if target == "numpy" else "scipy"):
        plan = LEARNER.plan.with_packing(LEARNER.plan.packing(host, regime))
        one = LEARNER.structure
        structure = FactorStructure(
            *(plan, one.unit, one.target, one.source),
            *(one.num_units, one.num_targets, one.num_sources),
        )
        immediate = Factors(gains, sources, structure)
        found = influence_update(d, j, immediate, plan)
        np.testing.assert_allclose(np.asarray(found), update, rtol=1e-5, atol=1e-5)
        found = influence_gradient(delta, j, plan)
        np.testing.assert_allclose(np.asarray(found), gradient, rtol=1e-5, atol=1e-5)
