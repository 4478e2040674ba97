"""The JAX ops on the GPU at hand, by Triton kernels, against the same ops on the CPU."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import tritonsnap as ts
from tritonsnap.jax import (
    coo_to_csr,
    influence_gradient,
    influence_step,
    influence_update,
    make_jacobian_projection,
    masked_dsmm,
    masked_outer,
    sp_jacrev,
)
from tritonsnap.sparsity import Compression, Projection

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() == "cpu", reason="JAX sees no CUDA or ROCm device"),
]


@pytest.mark.parametrize("order", [1, 2, None])
def test_ops_and_their_gradients(order: int | None) -> None:
    learner = ts.SnAp(ts.GRU(inputs=5, hidden=40, density=0.1, seed=0), order=order)
    structure, plan = learner.structure, learner.plan
    random = np.random.default_rng(0)
    batch, rows, nnz = 3, plan.mask.shape[0], plan.mask.nnz
    d, j, r = (random.standard_normal((batch, n)) for n in (plan.dynamics.nnz, nnz, nnz))
    delta = random.standard_normal((batch, rows))
    gains = random.standard_normal((batch, structure.num_targets, rows))
    sources = random.standard_normal((batch, structure.num_sources))

    def results(structure: Any, *operands: Any) -> list[Any]:
        def scalars(d: Any, j: Any, r: Any, delta: Any, gains: Any, sources: Any) -> Any:
            plan, factors = structure.plan, ts.Factors(gains, sources, structure)
            outputs = [
                masked_dsmm(d, j, plan, form="values"),
                masked_outer(r, j, plan),
                influence_update(d, j, factors, plan, form="values"),
                influence_gradient(delta, j, plan, sum_batch=True),
            ]
            return sum(jnp.sin(one).sum() for one in outputs), outputs

        (_, outputs), gradients = jax.value_and_grad(scalars, range(6), has_aux=True)(*operands)
        return [*outputs, *gradients]

    found = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_device(device):
            operands = [jnp.asarray(one, jnp.float32) for one in (d, j, r, delta, gains, sources)]
            found.append(jax.jit(results)(structure, *operands))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4 * np.abs(one).max())


def test_a_step_of_snap1_and_a_compressed_jacobian() -> None:
    learner = ts.SnAp(ts.GRU(inputs=5, hidden=40, density=0.1, seed=0), order=1)
    structure, plan = learner.structure, learner.plan
    random = np.random.default_rng(0)
    batch, (rows, columns) = 3, plan.mask.shape
    own = np.concatenate([structure.unit + 40 * part for part in range(rows // 40)])
    every = np.tile(np.arange(columns), rows // 40)
    mask = ts.SparsityPattern.from_coo(own, every, plan.mask.shape)
    projection = Projection.of(Compression.of(mask, mode="row"))
    colored = ts.CompressedStructure(plan, projection)

    def results(structure: Any, colored: Any, d: Any, j: Any, delta: Any, *added: Any) -> Any:
        gains, sources, values = added
        factors = ts.Factors(gains, sources, structure)
        compressed = ts.Compressed(values, colored)
        return [
            *influence_step(d, j, factors, delta, structure.plan, form="values"),
            *influence_step(d, j, compressed, delta, colored.plan, form="values"),
        ]

    shapes = (
        (batch, plan.dynamics.nnz),
        (batch, plan.mask.nnz),
        (batch, rows),
        (batch, structure.num_targets, rows),
        (batch, structure.num_sources),
        (batch, colored.num_colors, columns),
    )
    drawn = [random.standard_normal(shape) for shape in shapes]
    found = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_device(device):
            operands = [jnp.asarray(one, jnp.float32) for one in drawn]
            found.append(jax.jit(results)(structure, colored, *operands))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4 * np.abs(one).max())


@pytest.mark.parametrize("order", [1, None])
def test_an_influence_is_laid_over_the_old_one(order: int | None) -> None:
    structure = ts.SnAp(ts.RNN(inputs=5, hidden=48), order=order).structure
    plan, random = structure.plan, np.random.default_rng(0)
    assert plan.packing("triton").in_place
    rows = plan.mask.shape[0]
    shapes = (2, plan.dynamics.nnz), (2, plan.mask.nnz), (2, 1, rows), (2, structure.num_sources)
    d, j, gains, sources = (jnp.asarray(random.standard_normal(n), jnp.float32) for n in shapes)

    def run(structure: Any, over: bool) -> Any:
        factors = ts.Factors(gains, sources, structure)

        def body(j: Any, _: Any) -> Any:
            out = j if over else None
            new, own = influence_step(
                d / rows, j, factors, gains[:, 0], structure.plan, form="values", out=out
            )
            return new, own

        return jax.lax.scan(body, structure.plan.pack(j), None, length=4)

    found = [jax.jit(run, static_argnums=1)(structure, over) for over in (False, True)]
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_row_pointers_and_sparse_jacobians() -> None:
    rows = np.random.default_rng(0).integers(0, 500, 20_000).astype(np.int32)
    expected = np.append(0, np.cumsum(np.bincount(rows, minlength=500)))
    for is_sorted in (False, True):
        given = jnp.asarray(np.sort(rows) if is_sorted else rows)
        found = jax.jit(lambda r, s=is_sorted: coo_to_csr(r, 500, indices_are_sorted=s))(given)
        np.testing.assert_array_equal(found, expected)
    pattern = ts.SparsityPattern.random((200, 400), 0.02)
    matrix = pattern.to_dense(np.ones(pattern.nnz, np.float32))
    projection = make_jacobian_projection(pattern, mode="row")
    jacobian = jax.jit(sp_jacrev(lambda x: matrix @ jnp.sin(x), projection, format="data"))
    np.testing.assert_allclose(
        jacobian(jnp.ones(400)), np.full(pattern.nnz, np.cos(1.0)), rtol=1e-5
    )
