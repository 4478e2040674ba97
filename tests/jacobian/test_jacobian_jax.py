"""Sparse Jacobians in JAX are those of `jax.jacrev`, whatever the tree, dtype and mask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental.sparse import BCOO
from jax_cases import INPUT, assert_trees_close, case, mask_of
from sparse_functions import CASES

from tritonsnap.jax import (
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.sparsity import SparsityPattern, color_rows

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "auto") for name in CASES), *(("gru", mode) for mode in ("row", "column", "both"))],
)
def test_equals_jacrev(name: str, mode: str) -> None:
    f, args, mask, expected = case(name)
    projection = make_jacobian_projection(mask, mode=mode)

    @jax.jit
    def found(*args: Any) -> Any:
        whole = sp_jacrev(f, projection, format="dense")(*args)
        in_chunks = sp_jacrev(f, projection, format="dense", chunk_size=2)(*args)
        return whole, in_chunks, sp_jacfwd(f, projection, format="dense")(*args)

    for jacobian in found(*args):
        assert_trees_close(jacobian, expected)


def test_arrows_take_both_kinds_of_passes() -> None:
    projection = make_jacobian_projection(case("arrow")[2])
    assert projection[""].compression.mode == "both"
    assert projection.num_passes == 3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2), (jnp.float16, 3e-3)]
)
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "convolution", "stencil"])
def test_low_precision(name: str, dtype: Any, tolerance: float) -> None:
    f, args, mask, expected = case(name, dtype)
    projection = make_jacobian_projection(mask)
    found = jax.jit(sp_jacrev(f, projection, format="dense"))(*args)
    assert_trees_close(found, expected, tolerance)
    if name == "gru":
        verify_projection(jax.jit(f), projection, *args)


def test_formats_agree() -> None:
    f, args, mask, expected = case("rnn")
    projection = make_jacobian_projection(mask)
    data = sp_jacrev(f, projection, format="data")(*args)
    bcoo = sp_jacrev(f, projection)(*args)
    for name, leaf in args[0].items():
        pattern = projection[f"[{name!r}]"].pattern
        dense = expected[name].reshape(-1, leaf.size)
        np.testing.assert_allclose(pattern.to_dense(data[name]), dense, atol=1e-15)
        np.testing.assert_allclose(bcoo[name].todense(), dense, atol=1e-15)
        assert not bcoo[name].indices_sorted


def test_argnums() -> None:
    f, args, _, _ = case("gru")
    masks = tuple(mask_of(jax.jacrev(f, argnums=number)(*args), args[number]) for number in (0, 1))
    both = make_jacobian_projection(masks)
    found = sp_jacrev(f, both, argnums=(0, 1), format="dense")(*args)
    assert_trees_close(found, jax.jacrev(f, argnums=(0, 1))(*args))
    state = make_jacobian_projection(masks[1])
    found = sp_jacrev(f, state, argnums=-3, format="dense")(*args)
    assert_trees_close(found, jax.jacrev(f, argnums=1)(*args))
    verify_projection(f, both, *args, argnums=(0, 1))


def test_aux_and_keyword_arguments() -> None:
    def f(x: jax.Array, *, scale: float) -> tuple[jax.Array, dict[str, Any]]:
        return scale * jnp.sin(x), {"twice": 2 * x, "note": "any object"}

    x = jnp.asarray(INPUT)
    for mode in ("row", "column"):
        projection = make_jacobian_projection(np.eye(6), mode=mode)
        data, aux = sp_jacrev(f, projection, has_aux=True, format="data")(x, scale=3.0)
        np.testing.assert_allclose(data, 3 * np.cos(INPUT))
        np.testing.assert_allclose(aux["twice"], 2 * INPUT)
        assert aux["note"] == "any object"
        _, aux = sp_jacfwd(f, projection, has_aux=True)(x, scale=3.0)
        assert aux["note"] == "any object"


@pytest.mark.parametrize("mode", ["row", "column", "both"])
def test_complex(mode: str) -> None:
    z = jnp.asarray(INPUT + 1j * INPUT[::-1])
    band = np.eye(6) + np.eye(6, k=-1)
    projection = make_jacobian_projection(band, mode=mode)

    def holomorphic(z: jax.Array) -> jax.Array:
        return jnp.sin(z) * (1 + 2j) + jnp.concatenate([z[:1] * 0, z[:-1] ** 2])

    def real(z: jax.Array) -> jax.Array:
        return z.real**2 * z.imag + jnp.concatenate([z[:1].real * 0, z[:-1].imag])

    found = sp_jacrev(holomorphic, projection, holomorphic=True, format="dense")(z)
    assert_trees_close(found, jax.jacrev(holomorphic, holomorphic=True)(z))
    found = sp_jacfwd(holomorphic, projection, holomorphic=True, format="dense")(z)
    assert_trees_close(found, jax.jacfwd(holomorphic, holomorphic=True)(z))
    verify_projection(holomorphic, projection, z, holomorphic=True)
    found = sp_jacrev(real, projection, format="dense")(z)
    assert_trees_close(found, jax.jacrev(real)(z))
    verify_projection(real, projection, z)
    found = sp_jacfwd(lambda x: holomorphic(x + 0j), projection, format="dense")(z.real)
    assert_trees_close(found, jax.jacfwd(lambda x: holomorphic(x + 0j))(z.real))


def test_allow_int() -> None:
    def f(tree: dict[str, jax.Array]) -> jax.Array:
        return tree["x"][tree["i"]] ** 2

    args = ({"x": jnp.asarray(INPUT), "i": jnp.array([1, 3])},)
    projection = make_jacobian_projection({"x": np.eye(6)[[1, 3]], "i": np.ones((2, 2))})
    dense = sp_jacrev(f, projection, allow_int=True, format="dense")(*args)
    expected = jax.jacrev(f, allow_int=True)(*args)
    np.testing.assert_allclose(dense["x"], expected["x"])
    assert (dense["i"].dtype, dense["i"].shape) == (expected["i"].dtype, expected["i"].shape)
    sparse = sp_jacrev(f, projection, allow_int=True)(*args)
    np.testing.assert_array_equal(sparse["i"].todense(), np.zeros((2, 2)))
    verify_projection(f, projection, *args)


def test_sparse_leaf() -> None:
    pattern = SparsityPattern.random((5, 5), 0.4)
    weights = BCOO(
        (jnp.arange(1.0, 11.0), jnp.stack([pattern.rows, pattern.cols], axis=1)), shape=(5, 5)
    )
    state = jnp.linspace(-1, 1, 5)

    def f(params: dict[str, Any]) -> jax.Array:
        return jnp.tanh(params["w"].T @ state + params["b"])

    def of_values(values: jax.Array) -> jax.Array:
        return f({"w": BCOO((values, weights.indices), shape=(5, 5)), "b": jnp.zeros(5)})

    params = {"w": weights, "b": jnp.zeros(5)}
    mask = {"w": (pattern.cols, np.arange(10), (5, 10)), "b": np.eye(5)}
    projection = make_jacobian_projection(mask)
    assert projection.num_passes == 1
    found = jax.jit(sp_jacrev(f, projection))(params)
    np.testing.assert_allclose(found["w"].todense(), jax.jacrev(of_values)(weights.data))
    verify_projection(f, projection, params)
    found = sp_jacfwd(f, projection, format="data")(params)
    np.testing.assert_allclose(
        found["w"], projection["['w']"].pattern.values_of(jax.jacrev(of_values)(weights.data))
    )


def test_masks_of_every_kind() -> None:
    dense = np.tri(6, 6, 1) * np.tri(6, 6, 1).T
    rows, cols = np.nonzero(dense)
    twice = np.r_[rows, rows[::-1]], np.r_[cols, cols[::-1]]  # unsorted, with duplicates
    padded = np.concatenate([np.stack([rows, cols], 1), [[6, 6], [6, 6]]])
    kinds = [
        dense.astype(bool),
        jnp.asarray(dense),
        scipy.sparse.csr_array(dense),
        scipy.sparse.coo_array((np.ones(2 * len(rows)), twice), (6, 6)),
        BCOO((jnp.ones(len(padded)), jnp.asarray(padded)), shape=(6, 6)),
        (*twice, (6, 6)),
        SparsityPattern.from_dense(dense),
    ]

    def f(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, 1)
        return jnp.sin(padded[:-2]) + x**2 + jnp.cos(padded[2:])

    x = jnp.asarray(INPUT)
    expected = jax.jacrev(f)(x)
    for mask in kinds:
        projection = make_jacobian_projection({"x": mask})
        assert projection.num_passes == 3
        found = sp_jacrev(lambda tree: f(tree["x"]), projection, format="dense")({"x": x})
        np.testing.assert_allclose(found["x"], expected, atol=1e-15)


def test_keep_truncates_after_decompression() -> None:
    f, args, mask, expected = case("two_steps")
    keep = {"w": np.tile(np.eye(5), (1, 5)), "u": np.tile(np.eye(5), (1, 3))}
    truncated = make_jacobian_projection(mask, keep=keep)
    found = sp_jacrev(f, truncated, format="dense")(*args)
    for name in keep:
        np.testing.assert_allclose(
            found[name].reshape(5, -1), keep[name] * expected[name].reshape(5, -1), atol=1e-15
        )
    np.testing.assert_allclose(found["b"], expected["b"])
    verify_projection(f, truncated, *args)


def test_keep_may_leave_the_mask() -> None:
    f, args, mask, expected = case("rnn")
    keep = jax.tree.map(np.ones_like, mask)
    projection = make_jacobian_projection(mask, keep=keep)
    assert projection.num_passes == 1
    data = sp_jacrev(f, projection, format="data")(*args)
    for name in keep:
        np.testing.assert_allclose(
            data[name], expected[name].reshape(5, -1).T.reshape(-1), atol=1e-15
        )


def test_color_with_the_own_pattern() -> None:
    immediate = np.tile(np.eye(8), (1, 8))
    influence = np.ones((8, 64))
    assert make_jacobian_projection(immediate, keep=influence).num_passes == 1
    assert color_rows(SparsityPattern.from_dense(influence)).num_colors == 8
