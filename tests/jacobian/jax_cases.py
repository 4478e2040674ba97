"""Functions with sparse Jacobians as JAX functions, and how to compare trees of arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sparse_functions import CASES

Function = Callable[..., Any]
INPUT = np.linspace(-1, 1, 6)


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
