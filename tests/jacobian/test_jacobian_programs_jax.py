"""Sparse Jacobians inside other transformations, and what their programs consist of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO
from jax_cases import INPUT, Function, assert_trees_close, case

from tritonsnap.jax import (
    JacobianProjection,
    lower_for,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
)
from tritonsnap.sparsity import SparsityPattern
from tritonsnap.tuning import TARGETS

pytestmark = pytest.mark.usefixtures("double_precision")


def test_transformations() -> None:
    f, args, mask, expected = case("two_steps")
    projection = make_jacobian_projection(mask)
    dense, reference = sp_jacrev(f, projection, format="dense"), jax.jacrev(f)
    tangents = jax.tree.map(jnp.ones_like, args)
    states = jnp.stack([args[1], 2 * args[1], -args[1]])

    def transformed(jacobian: Function) -> Any:
        def of_state(state: jax.Array) -> Any:
            return jacobian(args[0], state, *args[2:])

        def loss(params: Any) -> jax.Array:
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(jacobian(params, *args[1:])))

        return {
            "jacrev": jax.jacrev(of_state)(args[1]),
            "jacfwd": jax.jacfwd(of_state)(args[1]),
            "jvp": jax.jvp(jacobian, args, tangents),
            "grad": jax.grad(loss)(args[0]),
            "vmap": jax.vmap(of_state)(states),
            "scan": jax.lax.scan(lambda carry, state: (carry, of_state(state)), 0, states)[1],
        }

    found, expected = (jax.jit(lambda j=j: transformed(j))() for j in (dense, reference))
    assert_trees_close(found, expected)
    assert_trees_close(found["vmap"], found["scan"])


def test_jacobian_of_jacobian() -> None:
    x = jnp.asarray(INPUT)
    inner = sp_jacrev(lambda x: jnp.sin(x) * x, make_jacobian_projection(np.eye(6)), format="data")
    outer = sp_jacrev(inner, make_jacobian_projection(np.eye(6)), format="data")
    np.testing.assert_allclose(outer(x), 2 * np.cos(INPUT) - INPUT * np.sin(INPUT))


def test_projection_is_an_operand() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(x) + jnp.roll(x, 1) ** 2

    def jacobian(projection: JacobianProjection, x: jax.Array) -> BCOO:
        return sp_jacrev(f, projection)(x)

    texts = []
    for size in (64, 4096):
        mask = SparsityPattern.identity(size).union(
            SparsityPattern.from_coo(
                np.arange(size), np.arange(size) - 1 + size * (np.arange(size) == 0), (size, size)
            )
        )
        projection = make_jacobian_projection(mask)
        x = jnp.linspace(-1, 1, size)
        texts.append(jax.jit(jacobian).lower(projection, x).as_text())
        np.testing.assert_allclose(
            jax.jit(jacobian)(projection, x).todense(), jax.jacrev(f)(x), atol=1e-12
        )
    assert len(texts[1]) < len(texts[0]) + 200
    traces = []
    run = jax.jit(lambda projection, x: traces.append(0) or jacobian(projection, x))
    run(projection, x)
    run(make_jacobian_projection(mask), x)
    assert len(traces) == 1


def test_projection_made_inside_jit() -> None:
    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        projection = make_jacobian_projection(np.eye(6))
        return sp_jacrev(jnp.sin, projection, format="data")(x)

    np.testing.assert_allclose(run(jnp.asarray(INPUT)), np.cos(INPUT))


def test_leaves_with_equal_colors_share_a_pass() -> None:
    calls = []

    def f(params: dict[str, jax.Array]) -> jax.Array:
        calls.append(0)
        return jnp.tanh(params["w"].T @ jnp.ones(4) + params["b"] + params["scalar"])

    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3), "scalar": jnp.ones(())}
    mask = {"w": np.tile(np.eye(3), (1, 4)), "b": np.eye(3), "scalar": np.ones((3, 1))}
    projection = make_jacobian_projection(mask)
    assert projection.num_passes == 2  # one VJP for w and b, one JVP for the scalar
    found = sp_jacrev(f, projection, format="dense")(params)
    assert len(calls) == 2
    assert_trees_close(found, jax.jacrev(f)(params))


def test_no_work_for_other_leaves() -> None:
    sizes = range(3, 12)
    params = {f"w{i}": jnp.ones((i, i)) for i in sizes}
    x = jnp.ones(12)

    def f(params: dict[str, jax.Array]) -> jax.Array:
        return sum(jnp.tanh(jnp.sin(w) @ x[: len(w)])[:3] for w in params.values())

    def of_one(w: jax.Array) -> jax.Array:
        return f({**params, "w7": w})

    mask = np.repeat(np.eye(3, 7), 7, axis=1)

    def flops(function: Function, *args: Any) -> float:
        return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]

    ours = sp_jacrev(of_one, make_jacobian_projection(mask, mode="row"), format="data")
    masks = {name: np.zeros((3, w.size)) for name, w in params.items()} | {"w7": mask}
    projection = make_jacobian_projection(masks, mode="row")
    among_nine = sp_jacrev(f, projection, format="data")

    def asked_for(w7: jax.Array) -> jax.Array:
        return among_nine({**params, "w7": w7})["w7"]

    def alone(w7: jax.Array) -> jax.Array:
        return jax.vjp(of_one, w7)[1](jnp.ones(3))[0]

    assert flops(asked_for, params["w7"]) == flops(ours, params["w7"])
    assert flops(ours, params["w7"]) <= flops(alone, params["w7"]) + 3


@pytest.mark.parametrize("linear", [True, False])
def test_seeds_are_constants_only_where_folding_them_is_cheap(linear: bool) -> None:
    pattern = SparsityPattern.from_dense(np.tri(40, 40, 1) * np.tri(40, 40, 1).T)
    matrix = jnp.asarray(pattern.to_dense().astype(float))
    projection = make_jacobian_projection(pattern)

    def f(x: jax.Array) -> jax.Array:
        return matrix @ x if linear else x + jnp.roll(x, 1) * (jnp.arange(40) > 0)

    text = jax.jit(sp_jacrev(f, projection)).lower(jnp.ones(40)).as_text()
    assert ("constant dense" in text and "tensor<3x40xi1>" in text.split("compare")[0]) != linear


def test_functions_that_apply_a_matrix_take_jvps() -> None:
    offsets = np.arange(40)[:, None] - np.arange(40)
    mask = (np.abs(offsets) % 40 < 4) | (np.abs(offsets) > 36)  # 7 in each row and column
    matrix = jnp.asarray(np.where(mask, np.sin(offsets), 0))
    x = jnp.linspace(-1, 1, 40)
    projection = make_jacobian_projection(mask)
    with_a_full_row = mask.copy()
    with_a_full_row[0] = True

    def f(x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.jit(lambda x: matrix @ x)(jnp.sin(x)))

    @jax.custom_vjp
    def without_jvp(x: jax.Array) -> jax.Array:
        return f(x)

    without_jvp.defvjp(lambda x: jax.vjp(f, x), lambda pull, g: pull(g))

    def by_jvps(f: Function, projection: JacobianProjection, **options: Any) -> bool:
        lowered = jax.jit(sp_jacrev(f, projection, format="dense", **options)).lower(x)
        if "optimization_barrier" not in lowered.as_text():
            return False
        np.testing.assert_allclose(lowered.compile()(x), expected, atol=1e-12)
        return True

    expected = jax.jacrev(f)(x)
    assert by_jvps(f, projection)
    assert by_jvps(f, make_jacobian_projection(mask, mode="column"))
    assert not by_jvps(f, make_jacobian_projection(mask, mode="row"))
    assert not by_jvps(f, make_jacobian_projection(with_a_full_row))
    assert not by_jvps(f, projection, chunk_size=2)
    assert not by_jvps(without_jvp, projection)
    assert not by_jvps(lambda x: jnp.tanh(jnp.sin(x) @ matrix.T), projection)
    with lower_for(TARGETS[1]):
        assert not by_jvps(lambda x: f(1 * x), projection)
    curvature = (
        jax.jacfwd(jacobian)(x)
        for jacobian in (jax.jit(sp_jacrev(f, projection, format="dense")), jax.jacrev(f))
    )
    np.testing.assert_allclose(*curvature, atol=1e-12)


def test_save_and_load(tmp_path: Any) -> None:
    f, args, mask, expected = case("two_steps")
    keep = {"w": np.tile(np.eye(5), (1, 5))}
    for mode in ("auto", "both"):
        projection = make_jacobian_projection(mask, keep=keep, mode=mode, order="dsatur")
        projection.save(tmp_path / "projection.npz")
        loaded = JacobianProjection.load(tmp_path / "projection.npz")
        assert jax.tree.structure(loaded) == jax.tree.structure(projection)
        found, expected = (sp_jacrev(f, p, format="data")(*args) for p in (loaded, projection))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    SparsityPattern.identity(2).save(tmp_path / "pattern.npz")
    with pytest.raises(ValueError, match="JacobianProjection"):
        JacobianProjection.load(tmp_path / "pattern.npz")


def test_forward_only_functions() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[
            1
        ]

    x = jnp.asarray(INPUT)
    projection = make_jacobian_projection(np.eye(6), mode="row")
    found = jax.jit(sp_jacfwd(f, projection, format="dense"))(x)
    np.testing.assert_allclose(found, jax.jacfwd(f)(x))
