"""What sparse Jacobians in JAX refuse, and what `verify_projection` finds."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import INPUT, case

from tritonsnap.jax import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.sparsity import SparsityPattern

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("name", ["two_steps", "arrow"])
def test_right_masks_are_verified(name: str) -> None:
    f, args, mask, _ = case(name)
    verify_projection(f, make_jacobian_projection(mask), *args, probes=2)


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


def test_without_asdex_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asdex", None)
    with pytest.raises(ImportError, match=r"asdex.*pip install 'tritonsnap\[detect\]'"):
        detect_pattern(jnp.sin, jnp.ones(3))


@pytest.mark.parametrize("name", ["gru", "stencil"])
def test_detect_pattern(name: str) -> None:
    pytest.importorskip("asdex", reason="an extra, not for every JAX", exc_type=ImportError)
    f, args, mask, _ = case(name)
    found = detect_pattern(f, *args)
    for pattern, expected in zip(jax.tree.leaves(found), jax.tree.leaves(mask), strict=True):
        assert pattern.contains(SparsityPattern.from_dense(expected))
    verify_projection(f, make_jacobian_projection(found), *args)
