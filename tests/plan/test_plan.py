"""`DsmmPlan`: what it says, its memory, its files."""

import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import DsmmPlan, Regime, SparsityPattern, masked_dsmm, snap_pattern

patterns = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5)).flatmap(
    lambda n: st.tuples(
        hnp.arrays(bool, (n[1], n[2])),
        hnp.arrays(bool, (n[0], n[2])),
        st.none() | hnp.arrays(bool, (n[0], n[1])),
    )
)


def plan_of(arrays: tuple) -> DsmmPlan:
    x, mask, dynamics = (
        None if array is None else SparsityPattern.from_dense(array) for array in arrays
    )
    return DsmmPlan(x, mask, dynamics)


def recurrent_plan(units: int, density: float, order: int, gates: int = 1) -> DsmmPlan:
    """The plan of recurrent weights alone: an RNN's, or those of a GRU's three gates."""
    kernels = [SparsityPattern.random((units, units), density, seed) for seed in range(gates)]
    dynamics = kernels[0].T.union(*(kernel.T for kernel in kernels[1:]))
    if gates > 1:
        dynamics |= SparsityPattern.identity(units)
    unit = np.concatenate([kernel.cols for kernel in kernels])
    immediate = SparsityPattern.from_coo(unit, np.arange(len(unit)), (units, len(unit)))
    mask = snap_pattern(dynamics, immediate, order)
    return DsmmPlan(mask, mask, dynamics)


@given(arrays=patterns)
def test_dynamics_are_the_entries_that_some_column_needs(arrays: tuple) -> None:
    x, mask, dynamics = arrays
    needed = (mask.astype(int) @ x.T.astype(int)) > 0
    needed = needed if dynamics is None else needed & dynamics
    np.testing.assert_array_equal(plan_of(arrays).dynamics.to_dense(), needed)


@given(arrays=patterns)
def test_transpose_twice_is_the_plan(arrays: tuple) -> None:
    plan = plan_of(arrays)
    flipped = plan.transpose()
    assert flipped.transpose() is plan
    assert plan.transpose() is flipped
    assert (flipped.x, flipped.mask) == (plan.mask, plan.x)
    assert flipped.dynamics == plan.dynamics.T
    for target in ("numpy", "scipy", "xla"):
        for regime in (None, Regime.WALK):
            one, other = plan.packing(target, regime), flipped.packing(target, regime)
            assert one.shapes("x") == other.shapes("mask")
            assert one.shapes("mask") == other.shapes("x")
    assert len(flipped.regime) == len(plan.groups)
    assert flipped.flops >= 0


def test_what_a_plan_says() -> None:
    plan = recurrent_plan(16, 0.2, 1)
    assert set(plan.regime) == {Regime.ELEMENTWISE}
    assert plan.flops == plan.mask.nnz
    assert plan.packing().predicted_seconds > 0
    assert repr(plan).startswith("DsmmPlan(M 16 x 51 with 51 nonzeros, X 16 x 51 with 51 nonzeros,")
    dense = DsmmPlan(SparsityPattern.full((8, 9)), SparsityPattern.full((7, 9)))
    assert dense.packing(None, Regime.DENSE).regimes.tolist() == [Regime.DENSE]
    assert dense.dynamics == SparsityPattern.full((7, 8))
    forced = dense.with_packing(dense.packing(None, Regime.DENSE))
    assert forced.flops == 2 * 7 * 8 * 9
    assert forced.packing().wants_dense


@pytest.mark.parametrize(
    ("units", "density", "order", "gates"),
    [
        (256, 1.0, 1, 1),
        (512, 0.1, 2, 1),
        (512, 0.01, 3, 1),
        (1024, 0.01, 2, 1),
        (1024, 0.01, 3, 1),
        (512, 0.1, 2, 3),
    ],
)
def test_structure_costs_under_five_percent_of_the_values(
    units: int, density: float, order: int, gates: int
) -> None:
    plan = recurrent_plan(units, density, order, gates)
    batch, float32 = 8, 4
    assert plan.bytes < 0.05 * batch * float32 * plan.mask.nnz


def test_building_a_plan_allocates_no_dense_influence() -> None:
    units, inputs = 512, 1024
    dynamics = SparsityPattern.random((units, units), 0.01)
    unit = np.repeat(np.arange(units), inputs)
    tracemalloc.start()
    each = np.arange(units + 1)
    immediate = SparsityPattern.from_columns((units, len(unit)), each, each[:-1], unit)
    mask = snap_pattern(dynamics, immediate, 3)
    plan = DsmmPlan(mask, mask, dynamics)
    plan.packing()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < units * len(unit) / 4  # a dense mask has one byte an entry


def test_equal_content_is_equal() -> None:
    one, other = recurrent_plan(8, 0.3, 2), recurrent_plan(8, 0.3, 2)
    assert one == other
    assert hash(one) == hash(other)
    assert one != recurrent_plan(8, 0.3, 3)
    assert one.packing().digest == other.packing().digest
    forced = one.packing(None, Regime.WALK), one.packing(None, Regime.DENSE)
    assert forced[0].digest != forced[1].digest
    segmented = DsmmPlan(one.x, one.mask, one.dynamics, segments=[4])
    assert segmented != one


@given(arrays=patterns, segments=st.lists(st.integers(0, 4)))
def test_files_go_there_and_back(tmp_path_factory, arrays: tuple, segments: list[int]) -> None:
    plan = plan_of(arrays)
    plan = DsmmPlan(
        plan.x, plan.mask, None if arrays[2] is None else plan.dynamics, segments=segments
    )
    path = tmp_path_factory.mktemp("plan") / "plan.npz"
    plan.save(path)
    loaded = DsmmPlan.load(path)
    assert loaded == plan
    assert loaded.restricted == plan.restricted
    d, x = np.ones(plan.dynamics.shape), np.ones((1, 1, plan.x.nnz))
    np.testing.assert_array_equal(
        masked_dsmm(d, x, loaded, form="dense"), masked_dsmm(d, x, plan, form="dense")
    )


def test_damaged_files_raise(tmp_path) -> None:
    path = tmp_path / "plan.npz"
    with pytest.raises(FileNotFoundError):
        DsmmPlan.load(path)
    recurrent_plan(8, 0.3, 2).save(path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"plan\.npz"):
            DsmmPlan.load(path)
    path.write_bytes(content)
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, value in (
        ("mask.shape", np.array([8, 3])),
        ("dynamics.shape", np.array([9, 8])),
        ("x.column_kind", arrays["x.column_kind"] + 99),
        ("segments", np.array(["a"])),
    ):
        np.savez(path, **{**arrays, name: value})
        with pytest.raises(ValueError, match="holds no valid"):
            DsmmPlan.load(path)
    del arrays["restricted"]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="holds no valid plan"):
        DsmmPlan.load(path)
    SparsityPattern.identity(2).save(path)
    with pytest.raises(ValueError, match=r"expected 'tritonsnap.DsmmPlan/1'"):
        DsmmPlan.load(path)


def test_wrong_arguments_raise() -> None:
    x, mask = SparsityPattern.full((2, 3)), SparsityPattern.full((4, 3))
    with pytest.raises(TypeError, match="`x` must be a SparsityPattern, got ndarray"):
        DsmmPlan(np.ones((2, 3)), mask)
    with pytest.raises(ValueError, match="`x` and `mask` must have equally many columns"):
        DsmmPlan(x, SparsityPattern.full((4, 2)))
    with pytest.raises(ValueError, match=r"`dynamics` must have shape \(4, 2\)"):
        DsmmPlan(x, mask, SparsityPattern.full((2, 4)))
    with pytest.raises(ValueError, match=r"`target` must be one of .*'cupy'"):
        DsmmPlan(x, mask).packing("cupy")
