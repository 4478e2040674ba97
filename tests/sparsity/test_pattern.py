import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tritonsnap.files import write_arrays
from tritonsnap.sparsity import SparsityPattern

quick = settings(max_examples=60, deadline=None)
shapes = array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=7)
matrices = shapes.flatmap(lambda shape: arrays(bool, shape))


def same_shape(count):
    return shapes.flatmap(lambda shape: st.tuples(*(arrays(bool, shape),) * count))


def shuffled_with_duplicates(matrix, seed):
    rows, cols = np.nonzero(matrix)
    rng = np.random.default_rng(seed)
    order = rng.integers(0, len(rows), len(rows)) if len(rows) else np.empty(0, int)
    order = rng.permutation(np.concatenate([np.arange(len(rows)), order]))
    return rows[order], cols[order]


@quick
@given(matrices, st.integers(0, 99))
def test_every_source_gives_the_same_canonical_pattern(matrix, seed):
    rows, cols = shuffled_with_duplicates(matrix, seed)
    coo = scipy.sparse.coo_array((np.ones(len(rows)), (rows, cols)), shape=matrix.shape)
    expected_cols, expected_rows = np.nonzero(matrix.T)
    for source in (matrix, (rows, cols, matrix.shape), coo, coo.tocsr(), coo.tocsc()):
        pattern = SparsityPattern.of(source)
        np.testing.assert_array_equal(pattern.rows, expected_rows)
        np.testing.assert_array_equal(pattern.cols, expected_cols)
        np.testing.assert_array_equal(pattern.to_dense(), matrix)
        np.testing.assert_array_equal(np.diff(pattern.indptr), matrix.sum(0))
        assert pattern.shape == matrix.shape
        assert pattern.nnz == matrix.sum()
        assert pattern.rows.dtype == pattern.cols.dtype == np.int32
        assert pattern.num_kinds == len({column.tobytes() for column in matrix.T})


@settings(max_examples=15, deadline=None)
@given(matrices, st.integers(0, 99))
def test_torch_sources(matrix, seed):
    torch = pytest.importorskip("torch")
    expected = SparsityPattern.from_dense(matrix)
    rows, cols = shuffled_with_duplicates(matrix, seed)
    index = torch.from_numpy(np.stack([rows, cols]))
    coo = torch.sparse_coo_tensor(index, torch.ones(len(rows)), matrix.shape)
    dense = torch.from_numpy(matrix.astype(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sparse CSR support is in beta
        sources = (coo, coo.coalesce(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense)
    for source in sources:
        assert SparsityPattern.of(source) == expected


def test_jax_bcoo_padding_is_no_position():
    sparse = pytest.importorskip("jax.experimental.sparse")
    dense = np.array([[0, 2.0, 0], [1, 0, 0]])
    padded = sparse.BCOO.fromdense(dense, nse=5)
    assert (np.asarray(padded.indices) >= np.array([2, 3])).any()
    assert SparsityPattern.of(padded) == SparsityPattern.from_dense(dense)


def test_stored_zeros_count_and_so_does_nan():
    stored = scipy.sparse.coo_array(([0.0], ([1], [0])), shape=(2, 2))
    assert SparsityPattern.from_sparse(stored).nnz == 1
    assert SparsityPattern.from_dense([[np.nan, 0], [0, 0]]).nnz == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.int32, np.uint64])
def test_indices_of_any_integer_type(dtype):
    rows, cols = np.array([0, 99, 3], dtype), np.array([98, 98, 0], dtype)
    pattern = SparsityPattern.from_coo(rows, cols, (100, 99))
    assert pattern.rows.tolist() == [3, 0, 99]
    assert pattern.cols.tolist() == [0, 98, 98]
    columns = SparsityPattern.from_columns((100, 2), [0, 2], rows[:2], np.zeros(2, dtype))
    assert columns.rows.tolist() == [0, 99, 0, 99]
    assert pattern.take_columns(cols).nnz == 5


@quick
@given(same_shape(3))
def test_union_and_containment(matrices):
    one, two, three = map(SparsityPattern.from_dense, matrices)
    union = one.union(two, three)
    np.testing.assert_array_equal(union.to_dense(), np.logical_or.reduce(matrices))
    assert one | two == SparsityPattern.from_dense(matrices[0] | matrices[1])
    assert all(union.contains(part) for part in (one, two, three, union))
    assert one.contains(two) == bool(np.all(matrices[0] | ~matrices[1]))


@quick
@given(st.tuples(*(st.integers(0, 7),) * 3), st.data())
def test_product_and_transpose(sizes, data):
    m, k, n = sizes
    left, right = data.draw(arrays(bool, (m, k))), data.draw(arrays(bool, (k, n)))
    one, other = SparsityPattern.from_dense(left), SparsityPattern.from_dense(right)
    expected = left.astype(int) @ right.astype(int) > 0
    assert one @ other == SparsityPattern.from_dense(expected)
    assert one.T == SparsityPattern.from_dense(left.T)
    assert one.T.T == one


@pytest.mark.parametrize("density", [0.002, 0.3])
def test_product_of_large_patterns_by_either_way(density):
    left = SparsityPattern.random((700, 300), density, 1)
    right = SparsityPattern.random((300, 500), 0.02, 2)
    expected = left.to_dense().astype(np.float32) @ right.to_dense().astype(np.float32) > 0
    assert left @ right == SparsityPattern.from_dense(expected)


@quick
@given(matrices, st.data())
def test_positions_and_columns(matrix, data):
    pattern = SparsityPattern.from_dense(matrix)
    part = matrix & data.draw(arrays(bool, matrix.shape))
    values = np.arange(pattern.nnz)
    dense = pattern.to_dense(values)
    smaller = SparsityPattern.from_dense(part)
    np.testing.assert_array_equal(
        values[pattern.positions(smaller)], dense[smaller.rows, smaller.cols]
    )
    columns = st.integers(0, max(matrix.shape[1] - 1, 0))
    chosen = data.draw(st.lists(columns, max_size=9 * (matrix.shape[1] > 0)))
    taken = pattern.take_columns(np.array(chosen, int))
    np.testing.assert_array_equal(taken.to_dense(), matrix[:, np.array(chosen, int)])
    for column in range(matrix.shape[1]):
        np.testing.assert_array_equal(pattern.column(column), np.flatnonzero(matrix[:, column]))
    distinct = pattern.distinct_columns()
    assert distinct.shape[1] == pattern.num_kinds
    assert distinct.take_columns(pattern.column_kind) == pattern


@quick
@given(same_shape(2))
def test_values_keep_batch_axes_and_equality_is_by_content(matrices):
    matrix, other = matrices
    pattern = SparsityPattern.from_dense(matrix)
    dense = np.random.default_rng(0).normal(size=(2, 3, *matrix.shape))
    back = pattern.to_dense(pattern.values_of(dense))
    np.testing.assert_array_equal(back, np.where(matrix, dense, 0))

    again = SparsityPattern.from_columns(  # every column its own kind, rows twice and backwards
        matrix.shape,
        2 * np.concatenate([[0], np.cumsum(matrix.sum(0))]).astype(int),
        np.concatenate([np.tile(np.flatnonzero(c), 2)[::-1] for c in matrix.T] or [[]]).astype(int),
        np.arange(matrix.shape[1]),
    )
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert again.digest == pattern.digest
    assert (SparsityPattern.from_dense(other) == pattern) == np.array_equal(matrix, other)
    assert pattern != matrix.tolist()


def test_shapes_tell_empty_patterns_apart():
    empty = {SparsityPattern.from_dense(np.zeros(shape)) for shape in [(0, 3), (3, 0), (1, 3)]}
    assert len(empty) == 3


def test_digest_is_equal_in_every_process():
    code = (
        "from tritonsnap import SparsityPattern as P; print(P.random((9, 7), 0.3, seed=4).digest)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == SparsityPattern.random((9, 7), 0.3, seed=4).digest


def test_full_identity_and_random():
    assert SparsityPattern.full((3, 4)) == SparsityPattern.from_dense(np.ones((3, 4)))
    assert SparsityPattern.identity(3) == SparsityPattern.from_dense(np.eye(3))
    drawn = SparsityPattern.random((40, 30), 0.1, seed=3)
    assert drawn.nnz == 120
    assert drawn == SparsityPattern.random((40, 30), 0.1, seed=3)
    assert drawn != SparsityPattern.random((40, 30), 0.1, seed=4)
    assert drawn.density == 0.1


def test_large_patterns_of_equal_columns_stay_small():
    pattern = SparsityPattern.full((1000, 100_000))
    assert pattern.nnz == 100_000_000
    assert pattern.nbytes < 1_000_000


def test_arrays_cannot_be_changed():
    pattern = SparsityPattern.identity(3)
    with pytest.raises(ValueError, match="read-only"):
        pattern.support_rows[0] = 1


@quick
@given(matrices)
def test_save_and_load(tmp_path_factory, matrix):
    path = tmp_path_factory.mktemp("pattern") / "pattern.npz"
    pattern = SparsityPattern.from_dense(matrix)
    pattern.save(path)
    assert SparsityPattern.load(path) == pattern
    assert [file.name for file in path.parent.iterdir()] == ["pattern.npz"]


def test_damaged_files_never_load_as_another_pattern(tmp_path):
    pattern = SparsityPattern.random((6, 5), 0.4)
    path = tmp_path / "pattern.npz"
    pattern.save(path)
    good = path.read_bytes()
    damaged = [good[:length] for length in range(0, len(good), 97)]
    damaged += [
        good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :]
        for place in range(0, len(good), 3)
    ]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert SparsityPattern.load(path) == pattern
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(damaged) // 2


def test_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        SparsityPattern.load(tmp_path / "none.npz")
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, a=np.arange(3))
    with pytest.raises(ValueError, match="no format"):
        SparsityPattern.load(foreign)
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(ValueError, match="not an .npz archive"):
        SparsityPattern.load(tmp_path / "array.npy")
    np.save(tmp_path / "pickle.npy", np.array([{}], object))
    with pytest.raises(ValueError, match="damaged or not a tritonsnap file"):
        SparsityPattern.load(tmp_path / "pickle.npy")
    arrays = SparsityPattern.identity(3)._arrays()
    for name, value in (
        ("support_rows", np.array([0, 1, 7])),
        ("support_rows", np.array([0.0, 1, 2])),
        ("support_indptr", np.array([0, 2, 1, 3])),
        ("support_indptr", np.array("text")),
        ("column_kind", np.array([0, 1, -1])),
        ("shape", np.array([3])),
        ("shape", np.array(3)),
    ):
        path = tmp_path / "wrong.npz"
        write_arrays(path, "tritonsnap.SparsityPattern/1", {**arrays, name: value})
        with pytest.raises(ValueError, match="holds no valid sparsity pattern"):
            SparsityPattern.load(path)
    del arrays["column_kind"]
    write_arrays(path, "tritonsnap.SparsityPattern/1", arrays)
    with pytest.raises(ValueError, match="column_kind"):
        SparsityPattern.load(path)


@pytest.mark.parametrize(
    ("rows", "cols", "shape", "kind", "message"),
    [
        ([3], [0], (3, 3), ValueError, r"`rows` must lie in \[0, 3\)"),
        ([-1], [0], (3, 3), ValueError, r"`rows` must lie in \[0, 3\)"),
        ([0], [3], (3, 3), ValueError, r"`cols` must lie in \[0, 3\)"),
        ([0], [0], (0, 3), ValueError, r"`rows` must lie in \[0, 0\)"),
        ([0, 1], [0], (3, 3), ValueError, "equal length"),
        ([[0]], [[0]], (3, 3), ValueError, "1-D"),
        ([0.0], [0], (3, 3), TypeError, "`rows` must be integers"),
        ([0], [True], (3, 3), TypeError, "`cols` must be integers"),
        ([0], [0], (3,), ValueError, "`shape` must be two integers"),
        ([0], [0], "ab", ValueError, "`shape` must be two integers"),
        ([0], [0], (3, -1), ValueError, "`shape` must not be negative"),
    ],
)
def test_coordinates_that_are_wrong(rows, cols, shape, kind, message):
    with pytest.raises(kind, match=message):
        SparsityPattern.from_coo(rows, cols, shape)


def test_other_wrong_arguments():
    square, wide = SparsityPattern.identity(3), SparsityPattern.full((3, 4))
    with pytest.raises(ValueError, match="`matrix` must be 2-D"):
        SparsityPattern.of(np.zeros(3))
    with pytest.raises(TypeError, match="`matrix` must be a SciPy sparse"):
        SparsityPattern.from_sparse(np.zeros((3, 3)))
    for density in (0, -1, 2, float("nan")):
        with pytest.raises(ValueError, match="`density`"):
            SparsityPattern.random((3, 3), density)
    with pytest.raises(ValueError, match="same shape"):
        square.union(wide)
    with pytest.raises(ValueError, match="same shape"):
        square.contains(wide)
    with pytest.raises(ValueError, match="cannot multiply"):
        wide @ wide
    with pytest.raises(ValueError, match="`other` has 6 positions that this pattern lacks"):
        square.positions(SparsityPattern.full((3, 3)))
    with pytest.raises(ValueError, match=r"`columns` must lie in \[0, 3\)"):
        square.take_columns([3])
    with pytest.raises(ValueError, match=r"\[\.\.\., 3\]"):
        square.to_dense(np.zeros(4))
    with pytest.raises(ValueError, match="`dense` must end in"):
        square.values_of(np.zeros((3, 4)))


def test_sparse_matrices_of_the_wrong_kind():
    torch = pytest.importorskip("torch")
    sparse = pytest.importorskip("jax.experimental.sparse")
    hybrid = torch.ones(2, 3, 4).to_sparse(2)
    with pytest.raises(ValueError, match="2-D sparse tensor of scalars"):
        SparsityPattern.of(hybrid)
    batched = sparse.BCOO.fromdense(np.ones((2, 3, 4), np.float32), n_batch=1)
    with pytest.raises(ValueError, match="n_batch=1"):
        SparsityPattern.of(batched)
    compressed = sparse.BCSR.fromdense(np.eye(3, dtype=np.float32))
    with pytest.raises(TypeError, match="BCSR"):
        SparsityPattern.of(compressed)
