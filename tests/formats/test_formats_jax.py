from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO, BCSR

from tritonsnap.jax import from_bcoo, from_bcsr, to_bcoo, to_bcsr
from tritonsnap.sparsity import SparsityPattern

PATTERNS = [
    SparsityPattern.random((6, 9), 0.3),
    SparsityPattern.identity(4),
    SparsityPattern.from_coo([2, 2], [0, 3], (3, 5)),
    SparsityPattern.from_coo([], [], (3, 5)),
]


def values_of(pattern: SparsityPattern) -> jax.Array:
    return jnp.arange(1.0, pattern.nnz + 1)


def shares_memory(one: jax.Array, other: jax.Array) -> bool:
    return one.unsafe_buffer_pointer() == other.unsafe_buffer_pointer()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("to", [to_bcoo, to_bcsr])
def test_to_and_from(pattern: SparsityPattern, to: object) -> None:
    values = values_of(pattern)
    dense = pattern.to_dense(values)
    matrix, transposed = to(values, pattern), to(values, pattern, transposed=True)
    np.testing.assert_array_equal(matrix.todense(), dense)
    np.testing.assert_array_equal(transposed.todense(), dense.T)
    vector = jnp.arange(1.0, pattern.shape[1] + 1)
    np.testing.assert_allclose(matrix @ vector, dense @ np.asarray(vector))
    assert shares_memory(transposed.data, values)
    back = from_bcoo if to is to_bcoo else from_bcsr
    for sparse, expected in ((matrix, dense), (transposed, dense.T)):
        found, of = back(sparse)
        assert of == SparsityPattern.from_dense(expected)
        np.testing.assert_array_equal(of.to_dense(found), expected)


def test_bcoo_shares_the_values_both_ways() -> None:
    pattern = PATTERNS[0]
    values = values_of(pattern)
    matrix = to_bcoo(values, pattern)
    assert shares_memory(matrix.data, values)
    assert not matrix.indices_sorted
    assert to_bcoo(values, pattern, transposed=True).indices_sorted
    assert shares_memory(from_bcoo(matrix)[0], values)


def test_padding_and_duplicates() -> None:
    indices = jnp.array([[1, 0], [0, 0], [1, 0], [2, 2], [2, 2]])
    matrix = BCOO((jnp.arange(1.0, 6), indices), shape=(2, 2))
    values, pattern = from_bcoo(matrix)
    np.testing.assert_array_equal(values, [2, 4])
    np.testing.assert_array_equal(pattern.to_dense(), [[True, False], [True, False]])
    padded = BCOO.fromdense(jnp.eye(3), nse=7)
    np.testing.assert_array_equal(from_bcoo(padded)[0], jnp.ones(3))
    np.testing.assert_array_equal(from_bcsr(BCSR.fromdense(jnp.eye(3), nse=7))[0], jnp.ones(3))


def test_gradients_go_through() -> None:
    pattern = PATTERNS[0]
    gradient = jax.grad(lambda values: (to_bcsr(values, pattern) @ jnp.ones(9)).sum())
    np.testing.assert_array_equal(gradient(values_of(pattern)), jnp.ones(pattern.nnz))


def test_errors() -> None:
    with pytest.raises(ValueError, match="`values`"):
        to_bcoo(jnp.ones(3), PATTERNS[0])
    with pytest.raises(ValueError, match="n_batch"):
        from_bcoo(BCOO.fromdense(jnp.ones((2, 3, 4)), n_batch=1))
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda matrix: from_bcoo(matrix)[0])(to_bcoo(jnp.ones(4), PATTERNS[1]))
