from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tritonsnap.ops.mix import mix
from tritonsnap.sparsity import SparsityPattern

torch = pytest.importorskip("torch")

SMALL = SparsityPattern.random((6, 9), 0.2)
LARGE = SMALL | SparsityPattern.random((6, 9), 0.3, 1)
POSITIONS = LARGE.positions(SMALL)
LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "jax": jnp.asarray,
    "torch": torch.as_tensor,
}


def values(batch: tuple[int, ...] = (), dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(
        rng.standard_normal((*batch, pattern.nnz)).astype(dtype) for pattern in (LARGE, SMALL)
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_equals_dense(library: str, batch: tuple[int, ...]) -> None:
    a, b = values(batch)
    before = a.copy()
    mixed = mix(LIBRARIES[library](a), LIBRARIES[library](b), POSITIONS)
    expected = LARGE.values_of(LARGE.to_dense(a) + SMALL.to_dense(b))
    np.testing.assert_array_equal(np.asarray(mixed), expected)
    np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("library", LIBRARIES)
def test_dtypes_are_promoted(library: str) -> None:
    a, b = (LIBRARIES[library](array) for array in values())
    complex_b = b * 1j
    assert mix(a, complex_b, POSITIONS).dtype == complex_b.dtype
    assert mix(complex_a := a * 1j, b, POSITIONS).dtype == complex_a.dtype


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_shapes(library: str) -> None:
    a, b = (LIBRARIES[library](array) for array in values((2,)))
    with pytest.raises(ValueError, match=r"`a`, `b` and `positions`"):
        mix(a, a, POSITIONS)
    with pytest.raises(ValueError, match="leading axes"):
        mix(a[0], b, POSITIONS)


def test_derivatives() -> None:
    a, b = (jnp.asarray(array) for array in values((2,)))
    check_grads(lambda a, b: mix(a, b, POSITIONS), (a, b), order=2, rtol=1e-2, atol=1e-2)
    mapped = jax.jit(jax.vmap(lambda a, b: mix(a, b, POSITIONS)))(a, b)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, mix(*row, POSITIONS)), 0, (a, b))
    for found in (mapped, scanned):
        np.testing.assert_array_equal(found, mix(a, b, POSITIONS))
    tensors = [torch.tensor(array, requires_grad=True) for array in values((2,), "float64")]
    assert torch.autograd.gradcheck(
        lambda a, b: mix(a, b, POSITIONS), tensors, check_forward_ad=True
    )
