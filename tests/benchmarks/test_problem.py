import numpy as np
import pytest

from benchmarks.traffic.problem import snap_problem, spread_sample
from tritonsnap.sparsity import SparsityPattern


def test_a_weight_reaches_its_unit_and_all_that_the_unit_feeds():
    problem = snap_problem(hidden=12, density=0.2, batch=3)
    a = problem.dynamics.to_dense()
    assert a.diagonal().all()
    columns = iter(problem.mask.to_dense().T)
    for unit in range(12):
        for _ in range(np.count_nonzero(a[unit])):
            assert np.array_equal(next(columns), a[:, unit])
    assert next(columns, None) is None
    assert problem.scale == 1
    assert problem.influence_bytes == 2 * 4 * 3 * problem.mask.nnz


def test_large_problems_keep_whole_units():
    whole = snap_problem(hidden=64, density=0.2, batch=1)
    part = snap_problem(hidden=64, density=0.2, batch=1, most_nonzeros=whole.mask.nnz // 4 + 1)
    assert len(np.unique(part.unit)) == 16
    kept = np.isin(whole.unit, part.unit)
    assert part.mask == whole.mask.take_columns(np.flatnonzero(kept))
    assert part.influence_bytes == pytest.approx(whole.influence_bytes)


def test_the_densest_problem_is_dense():
    problem = snap_problem(hidden=32, density=1.0, batch=1, most_nonzeros=1)
    assert problem.mask == SparsityPattern.full((32, 32))
    assert problem.scale == 32


@pytest.mark.parametrize(("size", "most"), [(10, None), (10, 10), (7, 20)])
def test_small_sizes_are_taken_whole(size, most):
    assert spread_sample(size, most).tolist() == list(range(size))


def test_samples_are_distinct_spread_and_aperiodic():
    sample = spread_sample(8 * 1000, 64)
    assert np.array_equal(sample // 125, np.arange(64))
    assert np.array_equal(sample, spread_sample(8 * 1000, 64))
    assert np.bincount(sample % 8).min() >= 5
