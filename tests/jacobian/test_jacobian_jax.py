from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental.sparse import BCOO
from sparse_functions import CASES

from tritonsnap.jax import (
    JacobianProjection,
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.sparsity import SparsityPattern, color_rows

Function = Callable[..., Any]
INPUT = np.linspace(-1, 1, 6)


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@functools.cache
def case(name: str, dtype: Any = jnp.float64) -> tuple[Function, tuple[Any, ...], Any, Any]:
    """A function, its arguments, the mask of its Jacobian in the first, and that Jacobian."""
    function, args = CASES[name]
    f = functools.partial(function, jnp)
    args = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), args)
    jacobian = jax.jit(jax.jacrev(f))
    exact = jacobian(*jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), args))
    return f, args, mask_of(exact, args[0]), jacobian(*args)


def mask_of(jacobian: Any, argument: Any) -> Any:
    """The masks [m, p] of a dense Jacobian whose outer tree is the output's."""
    outer = jax.tree.structure(argument)
    blocks = jax.tree.leaves(jacobian)
    leaves = jax.tree.leaves(argument)
    per_output = [blocks[i : i + len(leaves)] for i in range(0, len(blocks), len(leaves))]
    masks = [
        np.concatenate([np.reshape(block[i], (-1, leaf.size)) for block in per_output]) != 0
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(outer, masks)


def assert_trees_close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(
            np.asarray(one, np.complex128), np.asarray(other, np.complex128), tolerance, tolerance
        )


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


@pytest.mark.parametrize("name", ["two_steps", "arrow"])
def test_right_masks_are_verified(name: str) -> None:
    f, args, mask, _ = case(name)
    verify_projection(f, make_jacobian_projection(mask), *args, probes=2)


def test_arrows_take_both_kinds_of_passes() -> None:
    projection = make_jacobian_projection(case("arrow")[2])
    assert projection[""].compression.mode == "both"
    assert projection.num_passes == 3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2), (jnp.float16, 3e-3)]
)
def test_low_precision(dtype: Any, tolerance: float) -> None:
    f, args, mask, expected = case("gru", dtype)
    projection = make_jacobian_projection(mask)
    found = jax.jit(sp_jacrev(f, projection, format="dense"))(*args)
    assert_trees_close(found, expected, tolerance)
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


def test_dtypes_that_cannot_be_differentiated() -> None:
    projection = make_jacobian_projection({"x": np.eye(6)})
    x, z = jnp.asarray(INPUT), jnp.asarray(INPUT + 0j)

    def same(tree: dict[str, jax.Array]) -> jax.Array:
        return tree["x"] * 1

    for run, value, message in (
        (sp_jacrev(same, projection), jnp.arange(6), "allow_int"),
        (sp_jacrev(same, projection, holomorphic=True), x, "holomorphic"),
        (sp_jacrev(same, projection), z, "real outputs"),
        (sp_jacfwd(same, projection), z, "real inputs"),
        (sp_jacfwd(same, projection), jnp.arange(6), "real or complex"),
        (sp_jacrev(lambda t: jnp.arange(6), projection), x, "outputs of `f`"),
    ):
        with pytest.raises(TypeError, match=message):
            run({"x": value})
    with pytest.raises(TypeError, match=r"\['x'\]"):
        sp_jacrev(same, projection)({"x": jnp.arange(6)})


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


def test_one_missing_nonzero_is_caught() -> None:
    f, args, mask, _ = case("gru")
    for name in mask:
        rows, cols = np.nonzero(mask[name])
        spoiled = {**mask, name: mask[name].copy()}
        spoiled[name][rows[4], cols[4]] = False
        projection = make_jacobian_projection(spoiled)
        with pytest.raises(ValueError, match=rf"\['{name}'\].*\({rows[4]}"):
            verify_projection(jax.jit(f), projection, *args)
    with pytest.raises(TypeError, match="jit"):
        jax.jit(lambda x: verify_projection(jnp.sin, projection, x))(jnp.ones(3))


def test_errors_name_the_path() -> None:
    f, args, mask, _ = case("rnn")
    projection = make_jacobian_projection(mask)
    with pytest.raises(ValueError, match=r"lacks the leaves .*\['b'\]"):
        sp_jacrev(f, projection)({name: args[0][name] for name in ("w", "u")}, *args[1:])
    wide = {**args[0], "u": jnp.ones((4, 1, 5))}
    with pytest.raises(ValueError, match=r"\['u'\].* 20 entries.* 15 columns"):
        sp_jacrev(f, projection)(wide, *args[1:])
    with pytest.raises(ValueError, match=r"`f` returns 1 entries.* 5 rows"):
        sp_jacrev(lambda *xs: f(*xs).sum(), projection)(*args)
    with pytest.raises(ValueError, match=r"same number of rows.*\['w'\]"):
        make_jacobian_projection({**mask, "w": np.ones((4, 25))})
    with pytest.raises(ValueError, match=r"`mask` at leaf .*\['w'\].*2-D"):
        make_jacobian_projection({**mask, "w": np.ones(25)})
    with pytest.raises(ValueError, match=r"\['u'\].*`keep` has shape"):
        make_jacobian_projection(mask, keep={"u": np.ones((5, 16))})
    with pytest.raises(ValueError, match="`keep` has leaves that `mask` lacks"):
        make_jacobian_projection(mask, keep={"v": np.ones((5, 16))})
    with pytest.raises(TypeError, match=r"`mask` at leaf .*\['w'\].* traced"):
        jax.jit(lambda m: make_jacobian_projection({"w": m}))(jnp.ones((2, 2)))
    for options, message in (
        ({"mode": "rows"}, "`mode`"),
        ({"order": "best"}, "`order`"),
        ({"dense_threshold": 0}, "`dense_threshold`"),
    ):
        with pytest.raises(ValueError, match=message):
            make_jacobian_projection(mask, **options)
    with pytest.raises(ValueError, match="no leaves"):
        make_jacobian_projection({})
    with pytest.raises(ValueError, match="`format`"):
        sp_jacrev(f, projection, format="csr")
    with pytest.raises(ValueError, match="`chunk_size`"):
        sp_jacrev(f, projection, chunk_size=0)
    for argnums in (7, (0, 0)):
        with pytest.raises(ValueError, match="`argnums`"):
            sp_jacrev(f, projection, argnums=argnums)(*args)
    with pytest.raises(TypeError, match="`argnums`"):
        sp_jacrev(f, projection, argnums="0")(*args)


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


def test_color_with_the_own_pattern() -> None:
    immediate = np.tile(np.eye(8), (1, 8))
    influence = np.ones((8, 64))
    assert make_jacobian_projection(immediate, keep=influence).num_passes == 1
    assert color_rows(SparsityPattern.from_dense(influence)).num_colors == 8


@pytest.mark.parametrize("name", ["gru", "stencil"])
def test_detect_pattern(name: str) -> None:
    pytest.importorskip("asdex", reason="finding patterns in JAX is an extra")
    f, args, mask, _ = case(name)
    found = detect_pattern(f, *args)
    for pattern, expected in zip(jax.tree.leaves(found), jax.tree.leaves(mask), strict=True):
        assert pattern.contains(SparsityPattern.from_dense(expected))
    verify_projection(f, make_jacobian_projection(found), *args)
