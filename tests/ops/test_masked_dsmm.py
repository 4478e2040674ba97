"""`masked_dsmm` against dense float64 products."""

import importlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from influences import REGIMES, Problem, broadcasts, default_target, problems, snap_problem

from tritonsnap import DsmmPlan, SparsityPattern, masked_dsmm
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.masked_dsmm.numpy import product

torch = pytest.importorskip("torch")


@given(problem=problems(), data=st.data())
def test_equals_the_dense_product(problem: Problem, data: st.DataObject) -> None:
    with default_target(problem.target):
        dense_x, x = problem.influence(batch=problem.batch)
        dense_d, d = problem.dynamics(data.draw(broadcasts(problem.batch)))
        expected = dense_d @ dense_x
        scale = None
        if data.draw(st.booleans()):
            row_scale = problem.draw(
                problem.plan.mask.shape[0], batch=data.draw(broadcasts(problem.batch))
            )
            expected = row_scale[..., None] * expected
            scale = problem.to_library(row_scale)
        found = masked_dsmm(d, x, problem.plan, row_scale=scale, form=problem.form)
        problem.check(found, expected)


@given(problem=problems())
def test_operands_may_have_more_batch_axes_than_x(problem: Problem) -> None:
    with default_target(problem.target):
        dense_x, x = problem.influence(batch=())
        dense_d, d = problem.dynamics(())
        row_scale = problem.draw(problem.plan.mask.shape[0])
        assume(problem.plan.mask.nnz)  # without a position nothing has batch axes but x
        scale = problem.to_library(row_scale)
        found = masked_dsmm(d, x, problem.plan, row_scale=scale, form=problem.form)
        problem.check(found, row_scale[..., None] * (dense_d @ dense_x))


@given(problem=problems())
def test_the_transposed_plan_gives_the_adjoint(problem: Problem) -> None:
    with default_target(problem.target):
        dense_r, r = problem.influence("mask")
        plan = problem.plan.transpose()
        dense_d = problem.draw(*plan.dynamics.shape, batch=())
        found = masked_dsmm(problem.to_library(dense_d), r, plan, form="dense")
        kept = plan.dynamics.to_dense(plan.dynamics.values_of(dense_d))
        problem.check(found, kept @ dense_r, "x")


def test_entries_outside_of_the_dynamics_count_as_zero() -> None:
    full = SparsityPattern.full((2, 1))
    plan = DsmmPlan(full, full, SparsityPattern.identity(2))
    found = masked_dsmm(np.array([[1.0, 9.0], [9.0, 2.0]]), np.array([3.0, 4.0]), plan)
    assert found.tolist() == [3, 8]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("regime", REGIMES)
def test_a_nan_stays_in_its_batch_row(library: str, regime) -> None:
    plan, _, random = snap_problem(2, regime)
    d, x = random.standard_normal((3, 4, 4)), random.standard_normal((3, plan.x.nnz))
    clean = masked_dsmm(d, x, plan)
    d[1] = np.nan
    x[2] = np.inf
    d, x = (torch.from_numpy(d), torch.from_numpy(x)) if library == "torch" else (d, x)
    with np.errstate(invalid="ignore"):
        found = np.asarray(masked_dsmm(d, x, plan))
    np.testing.assert_array_equal(found[0], clean[0])
    assert np.isnan(found[1]).all()
    assert not np.isfinite(found[2]).any()


@pytest.mark.parametrize("target", ["numpy", "scipy"])
@pytest.mark.parametrize("regime", REGIMES)
def test_writes_where_it_is_told_to(target: str, regime) -> None:
    with default_target(target):
        plan, _, random = snap_problem(2, regime, target)
        packing = plan.packing()
        d, scale = random.standard_normal((4, 4)), random.standard_normal((3, 4))
        blocks = plan.pack(random.standard_normal((3, plan.x.nnz)))
        out = tuple(np.full((3, *shape), np.nan) for shape in packing.shapes("mask"))
        for row_scale in (None, scale):
            dynamics = Dynamics(d, "dense", packing, np)
            results = product(packing, dynamics, blocks, row_scale, out)
            expected = masked_dsmm(d, blocks, plan, row_scale=row_scale)
            for one, result, right in zip(out, results, expected, strict=True):
                assert result is one
                np.testing.assert_allclose(one, right, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_torch_computes_16_bit_floats_in_32_and_rounds_once(dtype: str) -> None:
    kind = getattr(torch, dtype)
    plan, _, _ = snap_problem(None, None)
    d, x = torch.randn(4, 4).to(kind), torch.randn(5, plan.x.nnz).to(kind)
    found = masked_dsmm(d, x, plan)
    assert found.dtype == kind
    assert torch.equal(found, masked_dsmm(d.float(), x.float(), plan).to(kind))


def test_torch_shares_the_memory_of_its_inputs_and_copies_no_result() -> None:
    plan, _, random = snap_problem(1, None)
    d, x = random.standard_normal(plan.dynamics.nnz), random.standard_normal((2, plan.x.nnz))
    found = masked_dsmm(torch.from_numpy(d), torch.from_numpy(x), plan)
    np.testing.assert_array_equal(found.numpy(), masked_dsmm(d, x, plan))


@pytest.mark.parametrize("form", ["values", "dense"])
def test_jax(form: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    plan, _, random = snap_problem(2, None)
    d = random.standard_normal((3, 4, 4)).astype(np.float32)
    d = d if form == "dense" else plan.dynamics.values_of(d)
    x = random.standard_normal((3, plan.x.nnz)).astype(np.float32)
    scale = random.standard_normal((3, 4)).astype(np.float32)
    expected = masked_dsmm(d, x, plan, row_scale=scale)
    d, x, scale = map(jnp.asarray, (d, x, scale))
    found = masked_dsmm(d, x, plan, row_scale=scale)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    packed = masked_dsmm(d, plan.pack(x), plan, row_scale=scale)
    np.testing.assert_array_equal(plan.unpack(packed), found)


def convert(library: str, *arrays: np.ndarray) -> list:
    if library == "numpy":
        return list(arrays)
    if library == "torch":
        return [torch.from_numpy(array) for array in arrays]
    return [importlib.import_module("jax.numpy").asarray(array) for array in arrays]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_wrong_arguments(library: str) -> None:
    pytest.importorskip(library)
    plan, _, _ = snap_problem(2, None)
    nnz, needed = plan.x.nnz, plan.dynamics.nnz
    ones = lambda *shape: convert(library, np.ones(shape, np.float32))[0]  # noqa: E731
    integers = convert(library, np.ones(nnz, np.int32))[0]
    d, x = ones(4, 4), ones(nnz)
    with pytest.raises(ValueError, match=rf"`x` must have shape \[..., {nnz}\].*got \[{nnz + 1}\]"):
        masked_dsmm(d, ones(nnz + 1), plan)
    with pytest.raises(ValueError, match=r"`x` must be a tuple of \d blocks, got 0"):
        masked_dsmm(d, (), plan)
    blocks = plan.pack(x)
    with pytest.raises(ValueError, match=r"`x\[0\]` must have shape"):
        masked_dsmm(d, (blocks[0][..., :-1], *blocks[1:]), plan)
    with pytest.raises(TypeError, match="`x` must have a floating-point dtype, got int32"):
        masked_dsmm(d, integers, plan)
    with pytest.raises(ValueError, match=rf"`d` must have shape .*{needed}.* got \[3, 3\]"):
        masked_dsmm(ones(3, 3), x, plan)
    with pytest.raises(ValueError, match=r"`d` must have .* broadcast with \[3\], got \[2, 4, 4\]"):
        masked_dsmm(ones(2, 4, 4), ones(3, nnz), plan)
    with pytest.raises(ValueError, match=r"got \[4, 4\] as values"):
        masked_dsmm(d, x, plan, form="values")
    with pytest.raises(ValueError, match="`form` must be"):
        masked_dsmm(d, x, plan, form="sparse")
    with pytest.raises(ValueError, match=r"`row_scale` must have shape \[..., 4\]"):
        masked_dsmm(d, x, plan, row_scale=ones(3))
    with pytest.raises(ValueError, match="`precision` must be one of"):
        masked_dsmm(d, x, plan, precision="tf16")
    with pytest.raises(TypeError, match="`plan` must be a DsmmPlan, got 'plan'"):
        masked_dsmm(d, x, "plan")


def test_mixed_libraries_raise() -> None:
    plan, _, _ = snap_problem(1, None)
    with pytest.raises(TypeError, match=r"one library, got numpy .* torch"):
        masked_dsmm(np.ones(4), torch.ones(plan.x.nnz), plan)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_a_shape_that_fits_both_forms_must_say_which(library: str) -> None:
    pytest.importorskip(library)
    plan = DsmmPlan(*[SparsityPattern.identity(3)] * 2)  # three values; a batch of three
    d, x = np.arange(9, dtype=np.float32).reshape(3, 3), np.ones((3, 3), np.float32)
    values, dense = d, np.broadcast_to(d.diagonal(), (3, 3))
    given = convert(library, d, x)
    with pytest.raises(ValueError, match=r"`d` of shape .* say which by `form="):
        masked_dsmm(*given, plan)
    np.testing.assert_array_equal(np.asarray(masked_dsmm(*given, plan, form="values")), values)
    np.testing.assert_array_equal(np.asarray(masked_dsmm(*given, plan, form="dense")), dense)
