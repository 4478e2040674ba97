"""`snap_pattern` against published masks and their sparsity."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import SparsityPattern, snap_pattern


def recurrent_parameters(kernels: list[SparsityPattern]) -> SparsityPattern:
    """The immediate pattern of kernels [inputs, units]: each parameter acts on its unit."""
    units = np.concatenate([kernel.cols for kernel in kernels])
    rows = kernels[0].shape[1]
    return SparsityPattern.from_coo(units, np.arange(len(units)), (rows, len(units)))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (1, ["111000", "000100", "000011"]),
        (2, ["111111", "000100", "111011"]),
        (3, ["111111", "000100", "111111"]),
        (4, ["111111", "000100", "111111"]),
        (None, ["111111", "000100", "111111"]),
    ],
)
def test_published_example(order: int | None, expected: list[str]) -> None:
    weights = SparsityPattern.from_dense([[1, 1, 1], [0, 1, 0], [1, 0, 1]])  # [to, from]
    mask = snap_pattern(weights, recurrent_parameters([weights.T]), order)
    assert ["".join(map(str, row)) for row in mask.to_dense().astype(int)] == expected


@pytest.mark.parametrize("order", [1, 2, 5, None])
def test_a_diagonal_has_a_diagonal_mask(order: int | None) -> None:
    diagonal = SparsityPattern.identity(5)
    assert snap_pattern(diagonal, diagonal, order) == diagonal


@pytest.mark.parametrize("gates", [1, 3])
@pytest.mark.parametrize(
    ("units", "zeros", "percent"),
    [
        (128, 0.75, {1: (99.2, 74.4, 0.0), 3: (99.2, 42.1, 0.0)}),
        (256, 0.938, {1: (99.6, 93.4, 34.5), 3: (99.6, 82.0, 0.0)}),
        (512, 0.984, {1: (99.8, 98.2, 86.6), 3: (99.8, 95.2, 32.1)}),
    ],
)
def test_published_sparsity(units: int, zeros: float, percent: dict, gates: int) -> None:
    kernels = [SparsityPattern.random((units, units), 1 - zeros, seed) for seed in range(gates)]
    dynamics = kernels[0].T.union(*(kernel.T for kernel in kernels[1:]))
    if gates > 1:
        dynamics |= SparsityPattern.identity(units)
    immediate = recurrent_parameters(kernels)
    for order, expected in zip((1, 2, 3), percent[gates], strict=True):
        found = 100 * (1 - snap_pattern(dynamics, immediate, order).density)
        assert found == pytest.approx(expected, abs=0.1 if order == 1 else 2.5)


def test_input_weights_follow_the_recurrent_graph() -> None:
    recurrent = SparsityPattern.from_coo([1, 2], [0, 1], (3, 3))  # 0 -> 1 -> 2
    inputs = SparsityPattern.from_coo([9, 0, 4], [2, 0, 0], (10, 3))  # ten inputs, three units
    mask = snap_pattern(recurrent, recurrent_parameters([inputs]), 2)
    assert [mask.column(index).tolist() for index in range(3)] == [[0, 1], [0, 1], [2]]


@given(
    arrays=st.tuples(st.integers(1, 5), st.integers(0, 6)).flatmap(
        lambda n: st.tuples(hnp.arrays(bool, (n[0], n[0])), hnp.arrays(bool, n))
    ),
    order=st.sampled_from([1, 2, 3, 9, None]),
)
def test_equals_the_sum_of_powers(arrays: tuple[np.ndarray, np.ndarray], order: int | None) -> None:
    dynamics, immediate = (array.astype(int) for array in arrays)
    expected, reached = immediate, immediate
    for _ in range((order or 6) - 1):
        reached = np.minimum(dynamics @ reached, 1)
        expected = expected | reached
    found = snap_pattern(*(SparsityPattern.from_dense(array) for array in arrays), order)
    np.testing.assert_array_equal(found.to_dense(), expected.astype(bool))


def test_wrong_arguments_raise() -> None:
    square, wide = SparsityPattern.identity(3), SparsityPattern.full((2, 3))
    with pytest.raises(ValueError, match="`dynamics` must be square"):
        snap_pattern(wide, wide, 1)
    with pytest.raises(ValueError, match="`immediate` must have 3 rows"):
        snap_pattern(square, wide, 1)
    with pytest.raises(ValueError, match="`order` must be at least 1"):
        snap_pattern(square, square, 0)
    for order in (1.0, True, "2"):
        with pytest.raises(TypeError, match="`order` must be an integer or None"):
            snap_pattern(square, square, order)
