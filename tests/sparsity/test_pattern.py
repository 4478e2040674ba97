"""`SparsityPattern` against dense boolean matrices."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from tritonsnap import SparsityPattern

SIZES = st.integers(0, 7)
matrices = st.tuples(SIZES, SIZES).flatmap(lambda shape: hnp.arrays(bool, shape))
pairs = st.tuples(SIZES, SIZES).flatmap(
    lambda shape: st.tuples(hnp.arrays(bool, shape), hnp.arrays(bool, shape))
)
chains = st.tuples(SIZES, SIZES, SIZES).flatmap(
    lambda n: st.tuples(hnp.arrays(bool, n[:2]), hnp.arrays(bool, n[1:]))
)
of = SparsityPattern.from_dense


def test_worked_example() -> None:
    pattern = of([[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    assert pattern.rows.tolist() == [0, 2, 1, 0, 2]
    assert pattern.cols.tolist() == [0, 0, 1, 2, 2]
    assert pattern.indptr.tolist() == [0, 2, 3, 5]
    assert (pattern.nnz, pattern.num_kinds) == (5, 2)
    assert pattern.column(2).tolist() == [0, 2]
    assert repr(pattern) == "SparsityPattern(3 x 3, nnz=5, density=0.5556)"


@given(matrices)
def test_canonical_order(matrix: np.ndarray) -> None:
    pattern = of(matrix)
    cols, rows = np.nonzero(matrix.T)
    np.testing.assert_array_equal(pattern.rows, rows)
    np.testing.assert_array_equal(pattern.cols, cols)
    np.testing.assert_array_equal(pattern.to_dense(), matrix)
    assert pattern.shape == matrix.shape
    assert pattern.nnz == matrix.sum()


@given(matrices, st.randoms())
def test_order_and_duplicates_have_no_effect(matrix: np.ndarray, random) -> None:
    positions = list(zip(*np.nonzero(matrix), strict=True)) * 2
    random.shuffle(positions)
    rows, cols = np.array(positions, int).reshape(-1, 2).T
    pattern = SparsityPattern.from_coo(rows, cols, matrix.shape)
    assert pattern == of(matrix)
    assert hash(pattern) == hash(of(matrix))


@given(pairs)
def test_union_containment_and_equality(pair: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = pair
    np.testing.assert_array_equal((of(one) | of(other)).to_dense(), one | other)
    assert of(one).contains(of(other)) == bool(np.all(one >= other))
    assert (of(one) == of(other)) == np.array_equal(one, other)


@given(chains)
def test_product(chain: tuple[np.ndarray, np.ndarray]) -> None:
    left, right = chain
    expected = left.astype(int) @ right.astype(int) > 0
    np.testing.assert_array_equal((of(left) @ of(right)).to_dense(), expected)


@given(matrices)
def test_transpose(matrix: np.ndarray) -> None:
    np.testing.assert_array_equal(of(matrix).T.to_dense(), matrix.T)


@given(matrices)
def test_values_go_there_and_back(matrix: np.ndarray) -> None:
    pattern = of(matrix)
    values = np.arange(2 * pattern.nnz, dtype=float).reshape(2, -1) + 1
    dense = pattern.to_dense(values)
    np.testing.assert_array_equal(dense != 0, np.stack([matrix] * 2))
    np.testing.assert_array_equal(pattern.values_of(dense), values)


@given(pairs)
def test_positions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = of(pair[0]), of(pair[1])
    whole = one | other
    values = np.arange(whole.nnz) + 1.0
    found = values[whole.positions(one)]
    np.testing.assert_array_equal(found, one.values_of(whole.to_dense(values)))
    if not one.contains(other):
        with pytest.raises(ValueError, match=r"`other` has .* positions that this pattern lacks"):
            one.positions(other)


@given(matrices)
def test_sparse_matrices_of_scipy(matrix: np.ndarray) -> None:
    for kind in (scipy.sparse.coo_matrix, scipy.sparse.csr_array, scipy.sparse.csc_matrix):
        assert SparsityPattern.of(kind(matrix)) == of(matrix)


def test_sparse_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    dense = torch.tensor([[0.0, 1, 2], [3, 0, 0]])
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()):
        assert SparsityPattern.of(sparse) == of(dense)
    with pytest.raises(ValueError, match="`matrix` must be a 2-D sparse tensor of scalars"):
        SparsityPattern.of(torch.ones(2, 3, 4).to_sparse())


def test_bcoo_of_jax() -> None:
    sparse = pytest.importorskip("jax.experimental.sparse")
    jnp = pytest.importorskip("jax.numpy")
    dense = jnp.array([[0.0, 1, 2], [3, 0, 0]])
    padded = sparse.BCOO.fromdense(dense, nse=5)
    assert SparsityPattern.of(padded) == of(np.asarray(dense))
    with pytest.raises(ValueError, match="`matrix` must be a BCOO with n_sparse=2"):
        SparsityPattern.of(sparse.BCOO.fromdense(dense, n_batch=1))


def test_other_sparse_formats_of_jax_raise() -> None:
    sparse = pytest.importorskip("jax.experimental.sparse")
    with pytest.raises(TypeError, match=r"`matrix` must be .* got BCSR"):
        SparsityPattern.from_sparse(sparse.BCSR.fromdense(np.eye(3, dtype=np.float32)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.uint64])
def test_indices_of_any_integer_type(dtype: type) -> None:
    rows, cols = np.array([0, 99, 3], dtype), np.array([98, 98, 0], dtype)
    pattern = SparsityPattern.from_coo(rows, cols, (100, 99))
    assert (pattern.rows.tolist(), pattern.cols.tolist()) == ([3, 0, 99], [0, 98, 98])
    columns = SparsityPattern.from_columns((100, 2), [0, 2], rows[:2], np.zeros(2, dtype))
    assert columns.rows.tolist() == [0, 99, 0, 99]
    assert pattern.take_columns(cols).nnz == 5


def test_other_sources() -> None:
    expected = of([[0, 1], [1, 0]])
    assert SparsityPattern.of(expected) is expected
    assert SparsityPattern.of(([1, 0], [0, 1], (2, 2))) == expected
    assert SparsityPattern.of([[0.0, np.nan], [2, 0]]) == expected
    assert SparsityPattern.full((2, 3)).nnz == 6
    assert np.array_equal(SparsityPattern.identity(3).to_dense(), np.eye(3))
    assert SparsityPattern.full((0, 3)).nnz == SparsityPattern.identity(0).nnz == 0


def test_random_draws_as_many_positions_as_asked_for() -> None:
    pattern = SparsityPattern.random((30, 50), 0.1, seed=3)
    assert pattern.nnz == 150
    assert pattern == SparsityPattern.random((30, 50), 0.1, seed=3)
    assert pattern != SparsityPattern.random((30, 50), 0.1, seed=4)
    assert SparsityPattern.random((3, 4), 1).nnz == 12


@pytest.mark.parametrize("density", [0, -0.1, 1.01, float("nan")])
def test_random_needs_a_density(density: float) -> None:
    with pytest.raises(ValueError, match=r"`density` must lie in \(0, 1\], got"):
        SparsityPattern.random((3, 3), density)


@pytest.mark.parametrize(
    ("rows", "cols", "shape", "message"),
    [
        ([0, 2], [0, 0], (2, 2), r"`rows` must lie in \[0, 2\), got values from 0 to 2"),
        ([0, -1], [0, 0], (2, 2), r"`rows` must lie in \[0, 2\), got values from -1"),
        ([0], [5], (2, 2), r"`cols` must lie in \[0, 2\)"),
        ([0, 1], [0], (2, 2), "`rows` and `cols` must be 1-D and of equal length"),
        ([[0]], [[0]], (2, 2), "`rows` and `cols` must be 1-D"),
        ([0], [0], (2, -1), "`shape` must be at least 0"),
        ([0], [0], 3, "`shape` must be two integers, got 3"),
        ([0], [0], (1, 2, 3), "`shape` must be two integers"),
    ],
)
def test_wrong_coordinates_raise(rows, cols, shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparsityPattern.from_coo(rows, cols, shape)


def test_other_wrong_arguments_raise() -> None:
    with pytest.raises(TypeError, match="`rows` must be integers, got dtype float64"):
        SparsityPattern.from_coo([0.5], [0], (2, 2))
    with pytest.raises(ValueError, match="`matrix` must be 2-D"):
        SparsityPattern.from_dense([1, 0])
    with pytest.raises(TypeError, match="`matrix` must be a SciPy sparse matrix"):
        SparsityPattern.from_sparse(np.eye(2))
    with pytest.raises(ValueError, match="`support_indptr` must be 1-D, begin at 0 and end at 1"):
        SparsityPattern.from_columns((2, 1), [0, 2], [0], [0])
    with pytest.raises(ValueError, match="`support_indptr` must not decrease"):
        SparsityPattern.from_columns((2, 1), [0, 1, 0, 1], [0], [0])
    with pytest.raises(ValueError, match=r"`column_kind` must have shape \(2,\)"):
        SparsityPattern.from_columns((2, 2), [0, 1], [0], [0])
    with pytest.raises(ValueError, match="must have the pattern's shape"):
        SparsityPattern.identity(2) | SparsityPattern.identity(3)
    with pytest.raises(ValueError, match="`other` must have 2 rows"):
        SparsityPattern.identity(2) @ SparsityPattern.identity(3)
    with pytest.raises(ValueError, match=r"`values` must have shape \[..., 2\]"):
        SparsityPattern.identity(2).to_dense(np.ones(3))
    with pytest.raises(ValueError, match="`dense` must be an array"):
        SparsityPattern.identity(2).values_of(np.ones((3, 2)))


def test_arrays_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        SparsityPattern.identity(2).support_rows[0] = 1


@given(matrix=matrices)
def test_files_go_there_and_back(tmp_path_factory, matrix: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("pattern") / "pattern.npz"
    of(matrix).save(path)
    assert SparsityPattern.load(path) == of(matrix)
    assert [file.name for file in path.parent.iterdir()] == ["pattern.npz"]


def test_damaged_files_raise(tmp_path) -> None:
    path = tmp_path / "pattern.npz"
    with pytest.raises(FileNotFoundError):
        SparsityPattern.load(path)
    SparsityPattern.identity(9).save(path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\x03\x04 nonsense", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"pattern\.npz"):
            SparsityPattern.load(path)
    np.savez(path, format=np.asarray("tritonsnap.SparsityPattern/1"), shape=np.array([2, 2]))
    with pytest.raises(ValueError, match="holds no valid sparsity pattern"):
        SparsityPattern.load(path)
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(ValueError, match="File is not a zip file"):
        SparsityPattern.load(tmp_path / "array.npy")
    np.savez(path, format=np.asarray("another/1"))
    with pytest.raises(ValueError, match="holds 'another/1', expected"):
        SparsityPattern.load(path)


def test_a_flipped_byte_raises_or_does_no_harm(tmp_path) -> None:
    path, pattern = tmp_path / "pattern.npz", SparsityPattern.random((6, 5), 0.4)
    pattern.save(path)
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), 2):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            loaded = SparsityPattern.load(path)
        except ValueError:
            refused += 1
        else:
            assert loaded == pattern
    assert refused > len(content) // 4
