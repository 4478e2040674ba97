import numpy as np
import pytest
import torch

from benchmarks.naive import NaiveDsmm
from tritonsnap.sparsity import SparsityPattern


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "density"), [(9, 7, 40, 0.3), (5, 5, 33, 1.0), (6, 4, 3, 0.1)]
)
def test_equals_the_masked_dense_product(rows, inner, columns, density, dtype):
    rng = np.random.default_rng(0)
    x_pattern = SparsityPattern.random((inner, columns), density, 1)
    mask = SparsityPattern.random((rows, columns), density, 2)
    d = rng.standard_normal((3, rows, inner))
    x = rng.standard_normal((3, x_pattern.nnz))
    naive = NaiveDsmm(x_pattern, mask)
    out = naive(torch.tensor(d, dtype=dtype), torch.tensor(x, dtype=dtype))
    expected = mask.values_of(d @ x_pattern.to_dense(x))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(out.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_flops_count_the_walked_nonzeros():
    x = SparsityPattern.from_dense([[1, 0], [1, 1], [1, 0]])
    mask = SparsityPattern.from_dense([[1, 1], [0, 1]])
    assert NaiveDsmm(x, mask).flops == 2 * (3 + 1 + 1)


def test_wrong_operands_are_named():
    pattern = SparsityPattern.full((3, 4))
    naive = NaiveDsmm(pattern, pattern)
    d, x = torch.zeros(2, 3, 3), torch.zeros(2, 12)
    with pytest.raises(ValueError, match="`x` must be contiguous"):
        naive(d, x[:, :11])
    with pytest.raises(ValueError, match="`d` must be contiguous"):
        naive(d.mT, x)
    with pytest.raises(TypeError, match="`d` must be float32"):
        naive(d.half(), x)
    with pytest.raises(ValueError, match="as many columns"):
        NaiveDsmm(pattern, SparsityPattern.full((3, 5)))
