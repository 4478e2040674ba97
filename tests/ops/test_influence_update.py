"""`influence_update` against dense float64 arithmetic."""

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from influences import (
    REGIMES,
    Problem,
    broadcasts,
    compressed_dense,
    compressed_structure,
    default_target,
    multiplied_out,
    problems,
    snap_problem,
)

from tritonsnap import (
    LSTM,
    Compressed,
    CompressedStructure,
    DsmmPlan,
    Factors,
    FactorStructure,
    SnAp,
    SparsityPattern,
    influence_update,
)
from tritonsnap.plan import Regime
from tritonsnap.sparsity import Compression, Projection

torch = pytest.importorskip("torch")


@given(problem=problems(square=True), data=st.data())
def test_equals_dense_arithmetic_with_values(problem: Problem, data: st.DataObject) -> None:
    with default_target(problem.target):
        dense_j, j = problem.influence()
        dense_d, d = problem.dynamics(data.draw(broadcasts(problem.batch)))
        dense_i, added = problem.influence("mask")
        found = influence_update(d, j, added, problem.plan, form=problem.form)
        problem.check(found, dense_d @ dense_j + dense_i)


@given(problem=problems(square=True), parts=st.sampled_from([1, 2]), data=st.data())
def test_equals_dense_arithmetic_with_factors(
    problem: Problem, parts: int, data: st.DataObject
) -> None:
    rows, cols = problem.plan.mask.shape
    parts = parts if rows % parts == 0 else 1
    with default_target(problem.target):
        index = lambda top: problem.random.integers(0, top, cols)  # noqa: E731
        units = rows // parts
        structure = FactorStructure(problem.plan, index(units), index(2), index(3), units, 2, 3)
        lead = broadcasts(problem.batch)
        gains = problem.draw(2, rows, batch=data.draw(lead))
        sources = problem.draw(3, batch=data.draw(lead))
        dense_j, j = problem.influence()
        dense_d, d = problem.dynamics(data.draw(lead))
        factors = Factors(problem.to_library(gains), problem.to_library(sources), structure)
        expected = dense_d @ dense_j + multiplied_out(Factors(gains, sources, structure))
        found = influence_update(d, j, factors, problem.plan, form=problem.form)
        problem.check(found, expected)


@given(problem=problems(square=True), share=st.floats(0, 1), data=st.data())
def test_equals_dense_arithmetic_with_a_compressed_jacobian(
    problem: Problem, share: float, data: st.DataObject
) -> None:
    with default_target(problem.target):
        structure = compressed_structure(problem.plan, problem.random, share)
        lead = data.draw(broadcasts(problem.batch))
        values, dense_i = compressed_dense(structure, problem.random, lead)
        dense_j, j = problem.influence()
        dense_d, d = problem.dynamics(data.draw(broadcasts(problem.batch)))
        compressed = Compressed(problem.to_library(values), structure)
        found = influence_update(d, j, compressed, problem.plan, form=problem.form)
        problem.check(found, dense_d @ dense_j + dense_i)


@pytest.mark.parametrize("target", ["numpy", "scipy"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("order", [1, 2, None])
def test_factors_equal_their_values(target: str, regime, order: int | None) -> None:
    with default_target(target):
        plan, structure, random = snap_problem(order, regime, target)
        factors = Factors(
            random.standard_normal((3, 2, 4)), random.standard_normal((3, 4)), structure
        )
        d, j = random.standard_normal((3, 4, 4)), random.standard_normal((3, plan.x.nnz))
        scale = random.standard_normal((3, 4))
        values = plan.mask.values_of(multiplied_out(factors))
        expected = influence_update(scale[..., None] * d, j, values, plan)
        found = influence_update(d, j, factors, plan, row_scale=scale)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["factors", "compressed"])
@pytest.mark.parametrize("order", [1, 2, None])
def test_one_influence_of_many_immediate_jacobians(order: int | None, kind: str) -> None:
    plan, structure, random = snap_problem(order, None)
    colors = compressed_structure(plan, random)
    d, j = random.standard_normal((1, 4, 4)), random.standard_normal((1, plan.x.nnz))
    matrix = random.standard_normal((3, 2, 4))
    vector = random.standard_normal((3, 4))
    compressed = random.standard_normal((3, colors.num_colors, plan.mask.shape[1]))

    def immediate(rows: slice) -> Factors | Compressed:
        if kind == "factors":
            return Factors(matrix[rows], vector[rows], structure)
        return Compressed(compressed[rows], colors)

    found = influence_update(d, j, immediate(slice(None)), plan)
    expected = [influence_update(d, j, immediate(slice(n, n + 1)), plan) for n in range(3)]
    np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("regime", [Regime.WALK, Regime.DENSE])
@pytest.mark.parametrize("hidden", [1, 5])
@pytest.mark.parametrize(("density", "in_pieces"), [(1.0, True), (0.4, False)])
def test_dense_weights_of_several_parts_are_added_in_pieces(
    regime: Regime, hidden: int, density: float, in_pieces: bool
) -> None:
    structure = SnAp(LSTM(inputs=3, hidden=hidden, density=density, seed=1), 1).structure
    plan = structure.plan.with_packing(structure.plan.packing(None, regime))
    (factor_block,) = structure.layout(plan.packing())
    assert bool(factor_block.pieces) == (in_pieces or hidden == 1)
    random = np.random.default_rng(0)
    shapes = ((structure.num_targets, 2 * hidden), (structure.num_sources,))
    gains, sources = (random.standard_normal((3, *shape)) for shape in shapes)
    d, j = random.standard_normal((3, 2 * hidden, 2 * hidden)), random.standard_normal(plan.x.nnz)
    factors = Factors(gains, sources, structure)
    dynamics = plan.dynamics.to_dense(plan.dynamics.values_of(d))
    expected = dynamics @ plan.x.to_dense(j) + multiplied_out(factors)
    found = influence_update(d, j, factors, plan, form="dense")
    np.testing.assert_allclose(found, plan.mask.values_of(expected), rtol=1e-12, atol=1e-12)


def test_factors_follow_the_packing_of_the_plan() -> None:
    plan, structure, random = snap_problem(2, None)
    gains, sources = random.standard_normal((2, 4)), random.standard_normal(4)
    d, j = random.standard_normal((4, 4)), random.standard_normal(plan.x.nnz)
    expected = influence_update(d, j, Factors(gains, sources, structure), plan)
    for regime in REGIMES[1:]:
        other = plan.with_packing(plan.packing(None, regime))
        found = influence_update(d, j, Factors(gains, sources, structure), other)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_packed_influence_takes_flat_values_and_the_reverse() -> None:
    plan, _, random = snap_problem(2, None)
    d, (j, i) = random.standard_normal((4, 4)), random.standard_normal((2, plan.x.nnz))
    expected = influence_update(d, j, i, plan)
    packed = plan.pack(j)
    np.testing.assert_array_equal(plan.unpack(influence_update(d, packed, i, plan)), expected)
    np.testing.assert_array_equal(influence_update(d, j, plan.pack(i), plan), expected)


@pytest.mark.parametrize("regime", REGIMES)
def test_jax(regime) -> None:
    jnp = pytest.importorskip("jax.numpy")
    plan, structure, random = snap_problem(2, regime, "xla")
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    d, j, gains, sources = draw(3, 4, 4), draw(3, plan.x.nnz), draw(3, 2, 4), draw(3, 4)
    expected = influence_update(d, j, Factors(gains, sources, structure), plan)
    factors = Factors(jnp.asarray(gains), jnp.asarray(sources), structure)
    found = influence_update(jnp.asarray(d), jnp.asarray(j), factors, plan)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.2, 0.9])
@pytest.mark.parametrize("regime", REGIMES)
def test_jax_with_a_compressed_jacobian(regime, share: float) -> None:
    jnp = pytest.importorskip("jax.numpy")
    plan, _, random = snap_problem(2, regime, "xla")
    structure = compressed_structure(plan, random, share)
    values, dense_i = compressed_dense(structure, random, (3,))
    d, j = random.standard_normal((4, 4)), random.standard_normal(plan.x.nnz)
    expected = d * plan.dynamics.to_dense() @ plan.x.to_dense(j) + dense_i
    compressed = Compressed(jnp.asarray(values, np.float32), structure)
    j32 = jnp.asarray(j, np.float32)
    found = influence_update(jnp.asarray(d, np.float32), j32, compressed, plan)
    np.testing.assert_allclose(found, plan.mask.values_of(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_wrong_arguments(library: str) -> None:
    pytest.importorskip(library)
    names = {"torch": "torch", "jax": "jax.numpy", "numpy": "numpy"}
    xp = importlib.import_module(names[library])
    ones = lambda *shape: xp.ones(shape, dtype=xp.float32)  # noqa: E731
    plan, structure, _ = snap_problem(2, None)
    d, j = ones(4, 4), ones(plan.x.nnz)
    factors = Factors(ones(2, 4), ones(4), structure)
    with pytest.raises(ValueError, match="`j` must have shape"):
        influence_update(d, ones(3), factors, plan)
    with pytest.raises(ValueError, match="`immediate` must have shape"):
        influence_update(d, j, ones(3), plan)
    with pytest.raises(ValueError, match=r"`immediate.gains` must have shape \[..., 2, 4\]"):
        influence_update(d, j, factors._replace(gains=ones(2, 3)), plan)
    with pytest.raises(ValueError, match=r"`immediate.sources` must have shape \[..., 4\]"):
        influence_update(d, j, factors._replace(sources=ones(3)), plan)
    other = DsmmPlan(*[SparsityPattern.full((4, 12))] * 2)
    with pytest.raises(ValueError, match="made for another plan"):
        influence_update(d, ones(48), factors, other)
    with pytest.raises(ValueError, match="`row_scale` must have shape"):
        influence_update(d, j, factors, plan, row_scale=ones(5))
    with pytest.raises(ValueError, match="`precision` must be one of"):
        influence_update(d, j, factors, plan, precision="low")
    structure = compressed_structure(plan, np.random.default_rng(0))
    colors = structure.num_colors
    with pytest.raises(ValueError, match=rf"`immediate.values` must have .* {colors}, 12\]"):
        influence_update(d, j, Compressed(ones(colors, 11), structure), plan)
    with pytest.raises(ValueError, match="made for another plan"):
        influence_update(d, ones(48), Compressed(ones(colors, 12), structure), other)


def test_a_wrong_compressed_structure_raises() -> None:
    plan, _, _ = snap_problem(1, None)
    with pytest.raises(TypeError, match="`projection` must be a Projection, got SparsityPattern"):
        CompressedStructure(plan, plan.mask)
    for mask, mode, message in (
        (plan.mask, "column", 'mode "row"'),
        (SparsityPattern.full((5, 12)), "row", r"must have shape \(4, 12\)"),
        (SparsityPattern.full((4, 12)), "row", "positions that the plan's mask lacks"),
    ):
        with pytest.raises(ValueError, match=message):
            CompressedStructure(plan, Projection.of(Compression.of(mask, mode=mode)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("unit", np.zeros(3, int), r"`unit` must have shape \(12,\), got \(3,\)"),
        ("unit", np.full(12, 4), r"`unit` must lie in \[0, 4\)"),
        ("target", np.full(12, -1), r"`target` must lie in \[0, 2\)"),
        ("source", np.full(12, 4), r"`source` must lie in \[0, 4\)"),
        ("num_units", 5, "`num_units` must divide the 4 rows of the plan, got 5"),
    ],
)
def test_a_wrong_factor_structure_raises(name: str, value, message: str) -> None:
    plan, structure, _ = snap_problem(1, None)
    names = ("unit", "target", "source", "num_units", "num_targets", "num_sources")
    arguments = {one: getattr(structure, one) for one in names}
    with pytest.raises(ValueError, match=message):
        FactorStructure(plan, **{**arguments, name: value})
