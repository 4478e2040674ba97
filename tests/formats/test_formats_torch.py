from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tritonsnap.sparsity import SparsityPattern

torch = pytest.importorskip("torch")
from tritonsnap.torch import from_sparse, to_coo, to_csc, to_csr

PATTERNS = [
    SparsityPattern.random((6, 9), 0.3),
    SparsityPattern.identity(4),
    SparsityPattern.from_coo([2, 2], [0, 3], (3, 5)),
    SparsityPattern.from_coo([], [], (3, 5)),
]


def values_of(pattern: SparsityPattern) -> torch.Tensor:
    return torch.arange(1.0, pattern.nnz + 1)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("to", [to_coo, to_csc, to_csr])
def test_to_and_from(pattern: SparsityPattern, to: Callable[..., torch.Tensor]) -> None:
    values = values_of(pattern)
    matrix = to(values, pattern)
    np.testing.assert_array_equal(matrix.to_dense(), pattern.to_dense(values))
    found, of = from_sparse(matrix)
    assert of == pattern
    torch.testing.assert_close(found, values)


def test_values_are_shared_where_the_order_allows() -> None:
    pattern = PATTERNS[0]
    values = values_of(pattern)
    transposed = to_csr(values, pattern, transposed=True)
    np.testing.assert_array_equal(transposed.to_dense(), pattern.to_dense(values).T)
    csc = to_csc(values, pattern)
    for stored in (transposed.values(), csc.values(), to_coo(values, pattern)._values()):
        assert stored.data_ptr() == values.data_ptr()
    assert from_sparse(csc)[0].data_ptr() == values.data_ptr()
    assert not to_coo(values, pattern).is_coalesced()


def test_duplicates_are_summed() -> None:
    matrix = torch.sparse_coo_tensor([[1, 0, 1], [0, 0, 0]], torch.tensor([1.0, 2, 3]), (2, 2))
    values, pattern = from_sparse(matrix)
    torch.testing.assert_close(values, torch.tensor([2.0, 4]))
    assert pattern == SparsityPattern.from_coo([0, 1], [0, 0], (2, 2))


def test_gradients_go_through() -> None:
    pattern = PATTERNS[0]
    values = values_of(pattern).requires_grad_()
    (to_csr(values, pattern) @ torch.ones(9)).sum().backward()
    torch.testing.assert_close(values.grad, torch.ones(pattern.nnz))


def test_errors() -> None:
    with pytest.raises(ValueError, match="`values`"):
        to_csr(torch.ones(3), PATTERNS[0])
    with pytest.raises(TypeError, match="layout"):
        from_sparse(torch.eye(3))
    with pytest.raises(TypeError, match="2-D"):
        from_sparse(torch.ones(2, 2, 2).to_sparse())
