"""Columns over devices: each on one, balanced by cost, laid out alike."""

from dataclasses import fields

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import GRU, RNN, RTRL, DsmmPlan, Regime, SnAp, SparsityPattern, masked_dsmm
from tritonsnap.plan import Partition
from tritonsnap.plan.alignment import align_factors, align_packings
from tritonsnap.plan.blocks import WalkBlock
from tritonsnap.plan.packing import collect
from tritonsnap.sparsity.groups import ColumnGroups

patterns = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 8)).flatmap(
    lambda n: st.tuples(hnp.arrays(bool, (n[1], n[2])), hnp.arrays(bool, (n[0], n[2])))
)
LEARNERS = [
    pytest.param(SnAp(GRU(3, 20)), id="elementwise"),
    pytest.param(SnAp(RNN(5, 20, density=0.3, seed=3)), id="ragged elementwise"),
    pytest.param(SnAp(GRU(30, 20, density=0.2, input_density=0.3, seed=1), 2), id="dense"),
    pytest.param(SnAp(RNN(5, 64, density=0.05, seed=1), 3), id="walk"),
    pytest.param(RTRL(RNN(4, 16)), id="one group"),
]


@given(arrays=patterns, pieces=st.lists(st.integers(1, 5), min_size=300, max_size=300))
def test_split_groups_have_the_columns_of_the_whole(arrays, pieces) -> None:
    groups = ColumnGroups.build(*(SparsityPattern.from_dense(array) for array in arrays))
    wanted = np.array(pieces[: len(groups)], np.int64)
    split = groups.split(wanted)
    sizes = np.minimum(wanted, groups.num_columns)
    assert len(split) == sizes.sum()
    owner = np.repeat(np.arange(len(groups)), sizes)
    for group in range(len(groups)):
        parts = np.flatnonzero(owner == group)
        np.testing.assert_array_equal(split.columns_of(parts), groups.columns_of(np.array([group])))
        counts = split.num_columns[parts]
        assert counts.max() - counts.min() <= 1
        assert (split.mask_kind[parts] == groups.mask_kind[group]).all()


@given(
    arrays=patterns,
    devices=st.integers(1, 5),
    target=st.sampled_from(["numpy", "xla", "triton"]),
    even=st.booleans(),
)
def test_every_column_is_on_one_device(arrays, devices, target, even) -> None:
    plan = DsmmPlan(*(SparsityPattern.from_dense(array) for array in arrays))
    present = np.flatnonzero(arrays[1].any(axis=0))
    if devices > max(len(present), 1):
        with pytest.raises(ValueError, match="`num_devices`"):
            Partition.build(plan.packing(target), devices, even=even)
        return
    partition = Partition.build(plan.packing(target), devices, even=even)
    columns = np.concatenate([partition.columns(device) for device in range(devices)])
    np.testing.assert_array_equal(np.sort(columns), present)
    assert partition.values.sum() == plan.mask.nnz
    assert 0 <= partition.balance <= 1 + 1e-12


@given(
    arrays=patterns,
    devices=st.integers(1, 3),
    regime=st.sampled_from([None, Regime.WALK, Regime.DENSE]),
)
def test_aligned_packings_hold_each_value_once(arrays, devices, regime) -> None:
    packing = DsmmPlan(*(SparsityPattern.from_dense(a) for a in arrays)).packing("xla", regime)
    if devices > max(arrays[1].any(axis=0).sum(), 1):
        return
    aligned = align_packings(packing, Partition.build(packing, devices, even=True))
    for side in ("x", "mask"):
        assert len({str(own.shapes(side)) for own in aligned}) == 1
        values = np.arange(1.0, 1 + packing.pattern(side).nnz)
        together = np.zeros_like(values)
        for own in aligned:
            together += own.unpack(own.pack(values, side), side, like=values)
        whole = packing.unpack(packing.pack(values, side), side, like=values)
        np.testing.assert_array_equal(together, whole)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("devices", [1, 3, 4])
def test_aligned_packings_differ_in_contents_only(learner, devices) -> None:
    packing = learner.plan.packing("xla")
    aligned = align_packings(packing, Partition.build(packing, devices, even=True))
    layouts = align_factors(learner.structure, aligned)
    assert len({str([(a.shape, a.dtype) for a in own.arrays()]) for own in aligned}) == 1
    for block, *others in zip(*layouts, strict=True):
        for other in others:
            assert [a.shape for a in collect(other)] == [a.shape for a in collect(block)]
            assert (other.outer, other.target) == (block.outer, block.target)
            assert other.stretches == block.stretches
    for blocks in zip(*(own.blocks for own in aligned), strict=True):
        assert len({str(_static(block)) for block in blocks}) == 1
        assert len({str(_static(block.columns)) for block in blocks}) == 1


def _static(node) -> dict:
    skipped = {*node.ARRAYS, "groups", "columns", "classes"}
    return {f.name: getattr(node, f.name) for f in fields(node) if f.name not in skipped}


def test_a_walk_is_among_them() -> None:
    assert any(isinstance(b, WalkBlock) for b in LEARNERS[3].values[0].plan.packing("xla").blocks)


@pytest.mark.parametrize("learner", LEARNERS)
def test_devices_compute_their_columns_of_the_product(learner) -> None:
    plan, rng = learner.plan, np.random.default_rng(0)
    d = rng.normal(size=(2, *plan.dynamics.shape)) * plan.dynamics.to_dense()
    j = rng.normal(size=(2, plan.mask.nnz))
    whole = masked_dsmm(d, j, plan)
    partition = Partition.build(plan.packing(), 3)
    for device in range(3):
        columns = partition.columns(device)
        own = plan.take_columns(columns)
        matrices = (np.stack([plan.mask.to_dense(row) for row in values]) for values in (j, whole))
        x, expected = (
            np.stack([own.mask.values_of(matrix[:, columns]) for matrix in stacked])
            for stacked in matrices
        )
        np.testing.assert_allclose(masked_dsmm(d, x, own), expected, rtol=1e-13, atol=1e-13)
        assert own.dynamics.nnz <= plan.dynamics.nnz


def test_columns_that_do_not_ascend_are_refused() -> None:
    plan = LEARNERS[0].values[0].plan
    with pytest.raises(ValueError, match="`columns` must ascend"):
        plan.take_columns([1, 1])
    with pytest.raises(ValueError, match="`columns`"):
        plan.take_columns([-1])


def test_balance_of_many_devices() -> None:
    """Longest first is within 4/3 of the best (Graham, 1969)."""
    packing = SnAp(RNN(32, 256, density=0.05, seed=1), 2).plan.packing("triton")
    assert Partition.build(packing, 1).efficiency == pytest.approx(1.0)
    packing_flops = Partition.build(packing, 1).flops[0]
    longest = np.inf
    for devices in (2, 16, 128, 512):
        partition = Partition.build(packing, devices)
        if devices < len(packing.groups):  # beyond, pieces of a group gather D several times
            assert partition.efficiency > 3 / 4
            assert partition.values.max() < 4 / 3 * packing.groups.mask.nnz / devices
        assert partition.seconds.max() < longest
        assert partition.flops.sum() == packing_flops
        longest = partition.seconds.max()
