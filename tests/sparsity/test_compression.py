from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonsnap.sparsity import Compression, SparsityPattern, color_columns, color_rows


def chosen(mask: SparsityPattern, **options: object) -> tuple[str, int]:
    compression = Compression.of(mask, **options)
    return compression.mode, compression.num_passes


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 14),
    cols=st.integers(1, 14),
    density=st.floats(0.05, 0.7),
    seed=st.integers(0, 99),
)
def test_takes_the_fewest_passes(rows: int, cols: int, density: float, seed: int) -> None:
    mask = SparsityPattern.random((rows, cols), density, seed)
    mode, passes = chosen(mask)
    by_rows, by_columns = color_rows(mask).num_colors, color_columns(mask).num_colors
    if mode == "both":
        assert 2 * passes <= min(by_rows, by_columns)
    else:
        assert passes == min(by_rows, by_columns) == {"row": by_rows, "column": by_columns}[mode]
        assert by_rows != by_columns or mode == "row"


def test_known_choices() -> None:
    arrow = np.eye(20)
    arrow[0] = arrow[:, 0] = 1
    tall, wide = np.ones((9, 1)), np.ones((1, 9))
    assert chosen(SparsityPattern.from_dense(arrow)) == ("both", 3)
    assert chosen(SparsityPattern.from_dense(tall)) == ("column", 1)
    assert chosen(SparsityPattern.from_dense(wide)) == ("row", 1)
    assert chosen(SparsityPattern.full((3, 5))) == ("row", 3)
    assert chosen(SparsityPattern.full((5, 3))) == ("column", 3)
    assert chosen(SparsityPattern.from_coo([], [], (3, 5)))[1] == 0


def test_dense_masks_are_not_colored() -> None:
    nearly_full = SparsityPattern.random((6, 6), 0.9)
    assert Compression.of(nearly_full).rows.order == "natural"
    colored = Compression.of(nearly_full, dense_threshold=0.95)
    assert (colored.rows or colored.columns).order == "largest_first"


def test_runs_are_pieces_of_equal_columns() -> None:
    kinds = np.repeat([0, 1, 0], [300, 20, 40])
    mask = SparsityPattern.from_columns((5, 360), [0, 3, 5], [0, 2, 4, 1, 3], kinds)
    runs = Compression.of(mask, mode="row").runs
    assert runs is not None
    np.testing.assert_array_equal(runs.first_column, [0, 256, 300, 320])
    np.testing.assert_array_equal(runs.columns, [256, 44, 20, 40])
    np.testing.assert_array_equal(runs.support, [3, 3, 2, 3])
    np.testing.assert_array_equal(runs.first_value, [0, 768, 900, 940])
    assert Compression.of(mask, mode="column").runs is None
    assert Compression.of(SparsityPattern.random((9, 9), 0.3), mode="row").runs is None


def test_equality_is_by_content() -> None:
    mask = SparsityPattern.random((8, 9), 0.2)
    same = Compression.of(SparsityPattern.from_dense(mask.to_dense()))
    assert Compression.of(mask) == same
    assert hash(Compression.of(mask)) == hash(same)
    assert Compression.of(mask) != Compression.of(mask, mode="both")
    assert Compression.of(mask) != Compression.of(mask, SparsityPattern.full((8, 9)))


def test_errors() -> None:
    mask = SparsityPattern.identity(3)
    with pytest.raises(ValueError, match="`mode`"):
        Compression.of(mask, mode="columns")
    with pytest.raises(ValueError, match="`keep`"):
        Compression.of(mask, SparsityPattern.identity(4))
