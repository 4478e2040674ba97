"""`ColumnGroups`: every column in one group, equal supports together."""

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import ColumnGroups, SparsityPattern

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 8)).flatmap(
    lambda n: st.tuples(hnp.arrays(bool, (n[0], n[2])), hnp.arrays(bool, (n[1], n[2])))
)


def columns_of(groups: ColumnGroups, group: int) -> list[int]:
    runs = range(groups.run_indptr[group], groups.run_indptr[group + 1])
    return [
        column
        for run in runs
        for column in range(groups.run_start[run], groups.run_start[run] + groups.run_length[run])
    ]


@given(pair=pairs)
def test_groups_are_the_classes_of_equal_supports(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, mask = pair
    groups = ColumnGroups.build(*(SparsityPattern.from_dense(one) for one in pair))
    members = [columns_of(groups, group) for group in range(len(groups))]
    expected: dict[tuple[bytes, bytes], list[int]] = {}
    for column in range(x.shape[1]):
        if mask[:, column].any():
            key = x[:, column].tobytes(), mask[:, column].tobytes()
            expected.setdefault(key, []).append(column)
    assert sorted(members) == sorted(expected.values())
    for group, columns in enumerate(members):
        assert groups.num_columns[group] == len(columns)
        for column in columns:
            assert groups.x_support(group).tolist() == np.flatnonzero(x[:, column]).tolist()
            assert groups.mask_support(group).tolist() == np.flatnonzero(mask[:, column]).tolist()
        assert groups.x_sizes[group] == x[:, columns[0]].sum()
        assert groups.mask_sizes[group] == mask[:, columns[0]].sum()


def test_groups_of_one_row_end_with_their_segment() -> None:
    pattern = SparsityPattern.from_dense([[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]])
    groups = ColumnGroups.build(pattern, pattern, segments=[0, 2])
    members = [columns_of(groups, group) for group in range(len(groups))]
    assert sorted(members) == [[0, 1], [2, 3], [4]]
    assert groups.segment[members.index([0, 1])] != groups.segment[members.index([2, 3])]


def test_larger_groups_reach_across_segments() -> None:
    pattern = SparsityPattern.full((2, 4))
    groups = ColumnGroups.build(pattern, pattern, segments=[0, 2])
    assert [columns_of(groups, group) for group in range(len(groups))] == [[0, 1, 2, 3]]


def test_transposed_exchanges_the_two_patterns() -> None:
    x, mask = SparsityPattern.full((2, 3)), SparsityPattern.full((1, 3))
    groups = ColumnGroups.build(x, mask).transposed
    assert groups.x_support(0).tolist() == [0]
    assert groups.mask_support(0).tolist() == [0, 1]
