"""Packed values: there and back, padding, and what does not fit."""

import importlib

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import DsmmPlan, Regime, SparsityPattern

patterns = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 6)).flatmap(
    lambda n: st.tuples(hnp.arrays(bool, (n[1], n[2])), hnp.arrays(bool, (n[0], n[2])))
)
targets = st.sampled_from(["numpy", "scipy", "xla"])
regimes = st.sampled_from([None, Regime.WALK, Regime.DENSE])


def packing_of(arrays: tuple, target: str, regime: Regime | None):
    plan = DsmmPlan(*(SparsityPattern.from_dense(array) for array in arrays))
    return plan.packing(target, regime)


@given(arrays=patterns, target=targets, regime=regimes, batch=st.sampled_from([(), (2,), (2, 1)]))
def test_there_and_back(arrays: tuple, target: str, regime, batch: tuple[int, ...]) -> None:
    packing = packing_of(arrays, target, regime)
    for side in ("x", "mask"):
        pattern = packing.pattern(side)
        values = np.arange(1, 1 + pattern.nnz) + 100.0 * np.ones((*batch, 1))
        blocks = packing.pack(values, side)
        assert [block.shape[len(batch) :] for block in blocks] == packing.shapes(side)
        found = packing.unpack(blocks, side, like=values)
        in_a_group = arrays[1].any(axis=0)[pattern.cols]  # columns that M leaves empty are not
        np.testing.assert_array_equal(found, np.where(in_a_group, values, 0))
        assert sum(block.sum() for block in blocks) == found.sum()  # padding holds zeros


@given(arrays=patterns, target=targets, regime=regimes)
def test_every_group_lies_in_one_block(arrays: tuple, target: str, regime) -> None:
    packing = packing_of(arrays, target, regime)
    members = [group for block in packing.blocks for group in block.groups]
    assert sorted(members) == list(range(len(packing.groups)))
    for block in packing.blocks:
        if regime is not None and block.regime != Regime.ELEMENTWISE:
            readable = packing.groups.x_sizes[block.groups] > 0
            assert block.regime == regime or not readable.all()


@given(arrays=patterns, target=targets, regime=regimes)
def test_columns_there_and_back(arrays: tuple, target: str, regime) -> None:
    packing = packing_of(arrays, target, regime)
    columns = np.arange(1.0, 1 + arrays[1].shape[1])
    bordered = np.append(columns, 0)
    blocks = tuple(bordered[block.columns.index(np)] for block in packing.blocks)
    found = packing.unpack_columns(blocks, like=columns.sum())
    np.testing.assert_array_equal(found, columns * arrays[1].any(axis=0))


@pytest.mark.parametrize("name", ["torch", "jax.numpy"])
@pytest.mark.parametrize("density", [0.4, 1.0])
def test_other_libraries_pack_alike(name: str, density: float) -> None:
    xp = pytest.importorskip(name)
    pattern = SparsityPattern.random((4, 10), density)
    plan = DsmmPlan(pattern, pattern)
    values = np.arange(2.0 * pattern.nnz, dtype=np.float32).reshape(2, -1)
    given = xp.asarray(values)
    packing = plan.packing_for(given)
    blocks = plan.pack(given)
    for block, expected in zip(blocks, packing.pack(values), strict=True):
        assert type(block) is type(given)
        np.testing.assert_array_equal(np.asarray(block), expected)
    np.testing.assert_array_equal(np.asarray(plan.unpack(blocks)), values)


def test_packing_copies_what_it_shares() -> None:
    torch = pytest.importorskip("torch")
    plan = DsmmPlan(*[SparsityPattern.identity(4)] * 2)
    values = torch.ones(4)
    (block,) = plan.pack(values)
    block.zero_()
    assert values.tolist() == [1] * 4


def test_a_plan_keeps_the_packing_it_is_given() -> None:
    pattern = SparsityPattern.full((3, 5))
    plan = DsmmPlan(pattern, pattern)
    forced = plan.with_packing(plan.packing(None, Regime.WALK))
    assert forced.regime == [Regime.WALK]
    assert forced.transpose().regime == [Regime.WALK]
    assert forced.host is forced
    assert plan.with_packing(plan.packing(None, Regime.DENSE)).regime == [Regime.DENSE]


@pytest.mark.parametrize("name", ["numpy", "torch", "jax.numpy"])
def test_wrong_values_raise(name: str) -> None:
    xp = pytest.importorskip(name)
    ones = importlib.import_module(name).ones
    pattern = SparsityPattern.random((4, 10), 0.4)
    plan = DsmmPlan(pattern, pattern)
    with pytest.raises(ValueError, match=r"`values` must have shape \[..., 16\]"):
        plan.pack(ones((15,)))
    blocks = plan.pack(xp.ones((2, 16)))
    with pytest.raises(ValueError, match=r"`blocks` must be a tuple of \d blocks, got \d"):
        plan.unpack((*blocks, blocks[0]))
    with pytest.raises(ValueError, match=r"`blocks\[0\]` must have shape"):
        plan.unpack((blocks[0][..., :-1], *blocks[1:]))
    if len(blocks) > 1:
        with pytest.raises(ValueError, match="`blocks` must have equal batch axes"):
            plan.unpack((blocks[0][:1], *blocks[1:]))


def test_no_blocks_need_something_like_them() -> None:
    empty = SparsityPattern.from_coo([], [], (2, 3))
    packing = DsmmPlan(empty, empty).packing()
    with pytest.raises(ValueError, match="`like` must be given to unpack no blocks"):
        packing.unpack(())
    assert packing.unpack((), like=np.ones((5, 1), np.float32)).shape == (5, 0)


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (10, (64, 16)),
        (30, (64, 32)),
        (60, (128, 64)),
        (100, (64, 128)),
        (160, (128, 64)),
        (250, (64, 256)),
        (320, (128, 64)),
        (1024, (64, 128)),
    ],
)
def test_dense_tiles_fit_the_rows(rows: int, shape: tuple[int, int]) -> None:
    mask = SparsityPattern.full((rows, 3))
    (block,) = DsmmPlan(mask, mask).packing("triton", Regime.DENSE).blocks
    assert block.dense_shape == shape


def test_dense_tiles_cover_their_groups_and_the_longest_sums_come_first() -> None:
    heights = np.repeat([40, 150, 90], [70, 5, 130])
    mask = SparsityPattern.from_dense(np.arange(150)[:, None] < heights)
    (block,) = DsmmPlan(mask, mask).packing("triton", Regime.DENSE).blocks
    run, column, row = block.dense_tiles.astype(int).T
    begin, end = block.run_column.astype(int)[[run, run + 1]]
    sizes = heights[begin]
    assert np.all(np.diff(sizes) <= 0)
    covered = np.zeros(mask.shape, int)
    across, down = block.dense_shape
    for left, right, top, size in zip(begin + column, end, row, sizes, strict=True):
        covered[top : min(top + down, size), left : min(left + across, right)] += 1
    np.testing.assert_array_equal(covered, mask.to_dense())


def test_scattered_columns_of_one_group_are_no_stretches_of_a_program():
    supports = np.zeros((4, 80), bool)
    supports[:, ::2] = True
    supports[0, 1::2] = True
    pattern = SparsityPattern.from_dense(supports)
    plan = DsmmPlan(pattern, pattern)
    blocks = plan.packing("xla").blocks
    assert all(len(block.columns.stretches or ()) <= 16 for block in blocks)
    values = np.arange(pattern.nnz, dtype=float)
    packed = plan.pack(values)
    assert any(block.columns.num_groups == 1 for block in blocks)
    np.testing.assert_array_equal(plan.unpack(packed), values)
