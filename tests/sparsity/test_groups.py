import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tritonsnap.sparsity import ColumnGroups, SparsityPattern


def columns_of(groups):
    """The columns of each group."""
    runs = [
        np.arange(start, start + length)
        for start, length in zip(groups.run_start, groups.run_length, strict=True)
    ]
    return [
        np.concatenate(runs[begin:end])
        for begin, end in zip(groups.run_indptr[:-1], groups.run_indptr[1:], strict=True)
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9), st.data())
def test_groups_are_the_columns_with_equal_supports(m, k, p, data):
    x, mask = data.draw(arrays(bool, (k, p))), data.draw(arrays(bool, (m, p)))
    segments = data.draw(st.lists(st.integers(0, p + 1), max_size=3))
    groups = ColumnGroups.build(
        SparsityPattern.from_dense(x), SparsityPattern.from_dense(mask), segments
    )
    expected = {}
    for column in np.flatnonzero(mask.any(axis=0)):
        single = x[:, column].sum() == mask[:, column].sum() == 1
        segment = sum(start <= column for start in set(segments)) if single else -1
        key = (x[:, column].tobytes(), mask[:, column].tobytes(), segment)
        expected.setdefault(key, []).append(column)
    found = columns_of(groups)
    assert sorted(map(list, found)) == sorted(expected.values())
    assert len(groups) == len(found)
    np.testing.assert_array_equal(groups.num_columns, [len(columns) for columns in found])
    for group, columns in enumerate(found):
        np.testing.assert_array_equal(groups.x_support(group), np.flatnonzero(x[:, columns[0]]))
        np.testing.assert_array_equal(
            groups.mask_support(group), np.flatnonzero(mask[:, columns[0]])
        )
        assert groups.x_sizes[group] == x[:, columns[0]].sum()
        assert groups.mask_sizes[group] == mask[:, columns[0]].sum()


def test_runs_are_as_long_as_can_be():
    pattern = SparsityPattern.from_dense([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    groups = ColumnGroups.build(pattern, pattern)
    assert groups.run_start.tolist() == [0, 3, 2]
    assert groups.run_length.tolist() == [2, 2, 1]
