"""NumPy arrays of another machine's byte order: refused by name, or computed on rightly."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.ops import kan_step
from tritonsnap.sparsity import Compression, Projection

PATTERN = ts.SparsityPattern.full((3, 4))
PLAN = ts.DsmmPlan(PATTERN, PATTERN)
D, J = np.ones((3, 3)), np.ones(12)


def foreign(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Ones in the byte order that this machine does not have."""
    return np.ones(shape, np.dtype(dtype).newbyteorder("S"))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "d": (lambda: ts.masked_dsmm(foreign(3, 3), J, PLAN), "float64"),
    "x": (lambda: ts.masked_dsmm(D, foreign(12, dtype=np.float32), PLAN), "float32"),
    "row_scale": (lambda: ts.masked_dsmm(D, J, PLAN, row_scale=foreign(3)), "float64"),
    "x[0]": (lambda: ts.masked_dsmm(D, tuple(foreign(*b.shape) for b in PLAN.pack(J)), PLAN), ""),
    "r": (lambda: ts.masked_outer(foreign(12), J, PLAN), "float64"),
    "immediate": (lambda: ts.influence_update(D, J, foreign(12), PLAN), "float64"),
    "delta": (lambda: ts.influence_gradient(foreign(3), J, PLAN), "float64"),
    "rows": (lambda: ts.coo_to_csr(foreign(3, dtype=np.int32), 5), "int32"),
    "positions": (lambda: kan_step.inner_sums(foreign(4, 3), foreign(3, 2, 4)), "float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    call, dtype = REFUSED[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert f"`{name}`" in str(caught.value)
    assert f"{dtype} in another byte order than this machine's" in str(caught.value)
    assert re.search(r"must (all )?(be|have)", str(caught.value))


def test_what_only_moves_values_takes_it() -> None:
    positions = np.array([0, 3]).astype(foreign(dtype=np.int64).dtype)
    mixed = ts.mix(foreign(5), foreign(2), positions)
    np.testing.assert_array_equal(mixed, [2, 1, 1, 2, 1])
    projection = Projection.of(Compression.of(PATTERN, mode="row"))
    values = ts.gather_compressed(foreign(*projection.compression.compressed_shape), projection)
    np.testing.assert_array_equal(values, np.ones(12))
