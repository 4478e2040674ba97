"""`SparsityPattern`: where a matrix may be nonzero."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tritonsnap.checks import MOST, check_instance, check_integer, check_share, generator_of
from tritonsnap.files import read_arrays, write_arrays
from tritonsnap.sparsity.arguments import array_of, check_range, checked_shape, integers
from tritonsnap.sparsity.indices import index_dtype, joint_kinds, pointers, ranges, sorted_unique
from tritonsnap.sparsity.reach import product_of_supports
from tritonsnap.sparsity.stored import is_sparse_torch, stored_coordinates
from tritonsnap.sparsity.supports import merged_supports

FORMAT = "tritonsnap.SparsityPattern/1"


@dataclass(frozen=True, eq=False, repr=False)
class SparsityPattern:
    """The positions of a matrix that may be nonzero, in canonical order.

    Canonical means sorted by column, then by row, without duplicates. It is the order in which
    the flat values ``[..., nnz]`` of every sparse matrix of this library are stored. Build one
    with `from_coo`, `from_dense`, `from_sparse`, `from_columns` or `SparsityPattern.of`.

    Columns that have the same support are stored once: `supports` holds the rows of each distinct
    column kind and `column_kind` says which kind each column is. So the pattern of an influence
    with ten million nonzeros costs a few hundred kilobytes until `rows` or `cols` are asked for.

    Parameters
    ----------
    shape
        ``(rows, columns)`` of the matrix.
    support_indptr : int64 [kinds + 1]
        Where each kind's rows begin in `support_rows`.
    support_rows : int32 or int64 [sum of support sizes]
        The rows of each kind, ascending.
    column_kind : int32 or int64 [columns]
        The kind of each column.

    Examples
    --------
    The matrix ``[[a, 0, b], [0, c, 0], [d, 0, e]]`` has two kinds of columns:

    >>> pattern = SparsityPattern.from_coo([0, 0, 1, 2, 2], [0, 2, 1, 0, 2], (3, 3))
    >>> pattern.support_rows, pattern.support_indptr, pattern.column_kind
    (array([0, 2, 1], dtype=int32), array([0, 2, 3]), array([0, 1, 0], dtype=int32))
    >>> pattern.rows, pattern.cols
    (array([0, 2, 1, 0, 2], dtype=int32), array([0, 0, 1, 2, 2], dtype=int32))
    """

    shape: tuple[int, int]
    support_indptr: NDArray[np.int64]
    support_rows: NDArray[np.integer]
    column_kind: NDArray[np.integer]

    def __post_init__(self) -> None:
        for array in (self.support_indptr, self.support_rows, self.column_kind):
            array.flags.writeable = False

    # ---- construction ------------------------------------------------------------------------

    @classmethod
    def from_columns(
        cls,
        shape: tuple[int, int],
        support_indptr: ArrayLike,
        support_rows: ArrayLike,
        column_kind: ArrayLike,
    ) -> SparsityPattern:
        """Build a pattern from supports and the support each column has.

        Equal supports are merged, unused ones dropped, rows sorted and duplicates removed; kinds
        are numbered in the order of their first column.

        Raises
        ------
        ValueError
            If a row, a kind or a pointer is out of range.
        """
        num_rows, num_cols = shape = checked_shape(shape)
        indptr = integers("support_indptr", support_indptr).astype(np.int64)
        rows = integers("support_rows", support_rows)
        kind = integers("column_kind", column_kind)
        if rows.ndim != 1:
            raise ValueError(f"`support_rows` must be 1-D, got shape {rows.shape}")
        if indptr.ndim != 1 or not len(indptr) or indptr[0] != 0 or indptr[-1] != len(rows):
            raise ValueError(
                f"`support_indptr` must be 1-D, begin at 0 and end at {len(rows)}, got {indptr!r}"
            )
        if np.any(np.diff(indptr) < 0):
            raise ValueError("`support_indptr` must not decrease")
        if kind.shape != (num_cols,):
            raise ValueError(f"`column_kind` must have shape ({num_cols},), got {kind.shape}")
        check_range("support_rows", rows, num_rows)
        check_range("column_kind", kind, len(indptr) - 1)

        supports = merged_supports(indptr, rows, kind, num_rows)
        return cls(
            shape,
            supports.indptr,
            supports.rows.astype(index_dtype(num_rows)),
            supports.column_kind.astype(index_dtype(num_cols)),
        )

    @classmethod
    def from_coo(cls, rows: ArrayLike, cols: ArrayLike, shape: tuple[int, int]) -> SparsityPattern:
        """Build a pattern from coordinates in any order; duplicates are merged.

        Raises
        ------
        ValueError
            If the coordinates differ in length or lie outside `shape`.
        TypeError
            If they are not integers.
        """
        num_rows, num_cols = shape = checked_shape(shape)
        rows, cols = integers("rows", rows), integers("cols", cols)
        if rows.ndim != 1 or rows.shape != cols.shape:
            raise ValueError(
                "`rows` and `cols` must be 1-D and of equal length, "
                f"got shapes {rows.shape} and {cols.shape}"
            )
        check_range("rows", rows, num_rows)
        check_range("cols", cols, num_cols)
        keys = sorted_unique(cols.astype(np.int64) * num_rows + rows)
        return cls.from_columns(
            shape,
            pointers(keys // max(num_rows, 1), num_cols),
            keys % max(num_rows, 1),
            np.arange(num_cols),
        )

    @classmethod
    def from_dense(cls, matrix: ArrayLike) -> SparsityPattern:
        """Build the pattern of the nonzeros of a matrix (NaN counts as nonzero)."""
        matrix = array_of("matrix", matrix)
        if matrix.ndim != 2:
            raise ValueError(f"`matrix` must be 2-D, got shape {matrix.shape}")
        if matrix.dtype.kind not in "?biufc":
            raise TypeError(f"`matrix` must hold numbers, got dtype {matrix.dtype}")
        cols, rows = np.nonzero(matrix.T)
        return cls.from_coo(rows, cols, matrix.shape)

    @classmethod
    def from_sparse(cls, matrix: Any) -> SparsityPattern:
        """Build the *stored* pattern of a SciPy, JAX (BCOO) or torch (COO, CSR, CSC) matrix.

        Stored zeros count; the padding of a BCOO (indices past the shape) does not.
        """
        return cls.from_coo(*stored_coordinates(matrix))

    @classmethod
    def of(cls, source: Any) -> SparsityPattern:
        """Build a pattern from whatever describes one.

        `source` is a `SparsityPattern`, a sparse matrix (see `from_sparse`), a tuple
        ``(rows, cols, shape)`` or a dense array.
        """
        if isinstance(source, cls):
            return source
        if isinstance(source, tuple) and len(source) == 3 and isinstance(source[2], tuple):
            return cls.from_coo(*source)
        if hasattr(source, "tocoo") or hasattr(source, "n_sparse") or is_sparse_torch(source):
            return cls.from_sparse(source)
        return cls.from_dense(source)

    @classmethod
    def full(cls, shape: tuple[int, int]) -> SparsityPattern:
        """Build the pattern of a dense matrix."""
        num_rows, num_cols = checked_shape(shape)
        return cls.from_columns(
            shape, [0, num_rows], np.arange(num_rows), np.zeros(num_cols, np.int64)
        )

    @classmethod
    def identity(cls, size: int) -> SparsityPattern:
        """Build the pattern of a diagonal matrix."""
        check_integer("size", size, 0, MOST)
        return cls.from_coo(np.arange(size), np.arange(size), (size, size))

    @classmethod
    def random(
        cls, shape: tuple[int, int], density: float, seed: int | np.random.Generator = 0
    ) -> SparsityPattern:
        """Draw ``round(density * rows * columns)`` positions without replacement.

        Raises
        ------
        ValueError
            If `density` is not in (0, 1].
        """
        num_rows, num_cols = checked_shape(shape)
        check_share("density", density)
        rng = generator_of("seed", seed)
        size = num_rows * num_cols
        keys = rng.choice(size, round(density * size), replace=False, shuffle=False)
        return cls.from_coo(keys % max(num_rows, 1), keys // max(num_rows, 1), shape)

    # ---- what it holds -----------------------------------------------------------------------

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """int64 [columns + 1]: where each column begins among the values (CSC)."""
        return self.column_starts()

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """int32 or int64 [nnz]: the row of each value."""
        sizes = np.diff(self.support_indptr)[self.column_kind]
        return self.support_rows[ranges(self.support_indptr[self.column_kind], sizes)]

    @cached_property
    def cols(self) -> NDArray[np.integer]:
        """int32 or int64 [nnz]: the column of each value."""
        columns = np.arange(self.shape[1], dtype=index_dtype(self.shape[1]))
        return np.repeat(columns, np.diff(self.indptr))

    @cached_property
    def nnz(self) -> int:
        """Number of positions."""
        return int(np.diff(self.support_indptr)[self.column_kind].sum())

    @property
    def density(self) -> float:
        """`nnz` over the number of entries (0 for an empty shape)."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def num_kinds(self) -> int:
        """Number of distinct columns."""
        return len(self.support_indptr) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the stored structure (without `rows`, `cols` and `indptr`)."""
        return self.support_indptr.nbytes + self.support_rows.nbytes + self.column_kind.nbytes

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        hasher = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        for array in (self.support_indptr, self.support_rows, self.column_kind):
            hasher.update(np.ascontiguousarray(array, np.int64).data)
        return hasher.hexdigest()

    def column_starts(self) -> NDArray[np.int64]:
        """The same as `indptr`, not kept: plans of many columns ask once."""
        sizes = np.diff(self.support_indptr)[self.column_kind]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def column(self, index: int) -> NDArray[np.integer]:
        """The rows of one column."""
        kind = self.column_kind[index]
        return self.support_rows[self.support_indptr[kind] : self.support_indptr[kind + 1]]

    def distinct_columns(self) -> SparsityPattern:
        """The pattern [rows, num_kinds] that has each distinct column once."""
        return self.take_columns(np.unique(self.column_kind, return_index=True)[1])

    def take_columns(self, columns: ArrayLike) -> SparsityPattern:
        """The pattern whose columns are those of this one at the given indices."""
        columns = integers("columns", columns)
        if columns.ndim != 1:
            raise ValueError(f"`columns` must be 1-D, got shape {columns.shape}")
        check_range("columns", columns, self.shape[1])
        return self.kinds_as_columns(self.column_kind[columns])

    def kinds_as_columns(self, kinds: ArrayLike) -> SparsityPattern:
        """The pattern whose columns are distinct columns of this one, given by their kinds."""
        kinds = integers("kinds", kinds)
        return SparsityPattern.from_columns(
            (self.shape[0], len(kinds)), self.support_indptr, self.support_rows, kinds
        )

    def contains(self, other: SparsityPattern) -> bool:
        """Whether every position of `other` is one of this pattern."""
        _check_same_shape(self, other)
        return bool(np.isin(other._pair_keys(self), self._pair_keys(other)).all())

    def positions(self, other: SparsityPattern) -> NDArray[np.int64]:
        """Where the values of `other` lie among the values of this pattern.

        Returns
        -------
        int64 [other.nnz]

        Raises
        ------
        ValueError
            If `other` is not contained in this pattern.
        """
        _check_same_shape(self, other)
        keys, wanted = self._keys(), other._keys()
        found = np.searchsorted(keys, wanted)
        inside = found < len(keys)
        if not (inside.all() and np.array_equal(keys[found], wanted)):
            missing = int(np.count_nonzero(~np.isin(wanted, keys)))
            raise ValueError(f"`other` has {missing} positions that this pattern lacks")
        return found

    # ---- algebra -----------------------------------------------------------------------------

    def transpose(self) -> SparsityPattern:
        """The pattern of the transposed matrix."""
        return SparsityPattern.from_coo(self.cols, self.rows, self.shape[::-1])

    @property
    def T(self) -> SparsityPattern:  # noqa: N802 - as in NumPy
        """Same as `transpose`."""
        return self.transpose()

    def union(self, *others: SparsityPattern) -> SparsityPattern:
        """Every position that is in this pattern or in one of `others`."""
        for other in others:
            _check_same_shape(self, other)
        # Columns with equal kinds in all operands are equal in the union: merge kinds only.
        patterns = (self, *others)
        column_kind, joint = joint_kinds([pattern.column_kind for pattern in patterns])
        sizes = [
            np.diff(pattern.support_indptr)[kinds]
            for pattern, kinds in zip(patterns, joint, strict=True)
        ]
        full = np.any([size == self.shape[0] for size in sizes], axis=0)  # one kind, all rows
        number = np.where(full, len(full), np.arange(len(full)))
        owner = [np.full(self.shape[0], len(full))]
        rows: list[NDArray[np.integer]] = [np.arange(self.shape[0])]
        for pattern, kinds, size in zip(patterns, joint, sizes, strict=True):
            own, kinds, size = np.flatnonzero(~full), kinds[~full], size[~full]
            owner.append(np.repeat(own, size))
            rows.append(pattern.support_rows[ranges(pattern.support_indptr[kinds], size)])
        return SparsityPattern._from_owned_rows(
            self.shape,
            np.concatenate(owner),
            np.concatenate(rows),
            number[column_kind.ravel()],
            len(full) + 1,
        )

    def __or__(self, other: SparsityPattern) -> SparsityPattern:
        return self.union(other)

    def product(self, other: SparsityPattern) -> SparsityPattern:
        """The pattern of the matrix product: where some path leads from row to column.

        Works on slices of the distinct columns of `other`: no dense matrix of all columns.
        """
        check_instance("other", other, SparsityPattern)
        if self.shape[1] != other.shape[0]:
            raise ValueError(
                f"`other` must have {self.shape[1]} rows, the columns of this pattern, "
                f"got shape {other.shape}"
            )
        # equal columns of this matrix are one, so columns of `other` that meet the same are one too
        inner = SparsityPattern.from_columns(
            (self.num_kinds, other.num_kinds),
            other.support_indptr,
            self.column_kind[other.support_rows],
            np.arange(other.num_kinds),
        )
        distinct = self.distinct_columns()
        owner, rows = product_of_supports(distinct, inner.support_indptr, inner.support_rows)
        return SparsityPattern.from_columns(
            (self.shape[0], other.shape[1]),
            pointers(owner, inner.num_kinds),
            rows,
            inner.column_kind[other.column_kind],
        )

    def __matmul__(self, other: SparsityPattern) -> SparsityPattern:
        return self.product(other)

    # ---- conversion --------------------------------------------------------------------------

    def to_dense(self, values: ArrayLike | None = None) -> NDArray[Any]:
        """A bool [rows, columns] matrix, or the dense matrices of `values` [..., nnz]."""
        if values is None:
            values = np.ones(self.nnz, bool)
        values = array_of("values", values)
        self.check_values("values", values)
        dense = np.zeros((*values.shape[:-1], *self.shape), values.dtype)
        dense[..., self.rows, self.cols] = values
        return dense

    def values_of(self, dense: Any) -> Any:
        """The values ``[..., nnz]`` at this pattern of ``[..., rows, columns]`` matrices."""
        shape = getattr(dense, "shape", None)
        if shape is None or tuple(shape[-2:]) != self.shape:
            given = type(dense).__name__ if shape is None else f"shape {tuple(shape)}"
            raise ValueError(f"`dense` must be an array [..., {self.shape}], got {given}")
        return dense[..., self.rows, self.cols]

    def check_values(self, name: str, values: Any) -> None:
        """Raise a `ValueError` that names `name` unless `values` is ``[..., nnz]``."""
        if values.ndim == 0 or values.shape[-1] != self.nnz:
            raise ValueError(
                f"`{name}` must have shape [..., {self.nnz}] (the pattern's nnz), "
                f"got {list(values.shape)}"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pattern to an ``.npz`` file, atomically."""
        write_arrays(path, FORMAT, self._arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SparsityPattern:
        """Read a pattern that `save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a pattern, or is damaged.
        """
        return cls._from_arrays(read_arrays(path, FORMAT), Path(path))

    def _arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        return {
            f"{prefix}shape": np.asarray(self.shape, np.int64),
            f"{prefix}support_indptr": self.support_indptr,
            f"{prefix}support_rows": self.support_rows,
            f"{prefix}column_kind": self.column_kind,
        }

    @classmethod
    def _from_arrays(
        cls, arrays: dict[str, NDArray[Any]], path: Path, prefix: str = ""
    ) -> SparsityPattern:
        try:
            num_rows, num_cols = arrays[f"{prefix}shape"].tolist()
            return cls.from_columns(
                (num_rows, num_cols),
                arrays[f"{prefix}support_indptr"],
                arrays[f"{prefix}support_rows"],
                arrays[f"{prefix}column_kind"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid sparsity pattern: {error}") from error

    # ---- identity ----------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparsityPattern):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        rows, cols = self.shape
        return f"SparsityPattern({rows} x {cols}, nnz={self.nnz}, density={self.density:.4g})"

    # ---- internals ---------------------------------------------------------------------------

    @classmethod
    def _from_owned_rows(
        cls,
        shape: tuple[int, int],
        owner: NDArray[np.integer],
        rows: NDArray[np.integer],
        column_kind: NDArray[np.integer],
        num_kinds: int | None = None,
    ) -> SparsityPattern:
        num_kinds = int(column_kind.max(initial=-1)) + 1 if num_kinds is None else num_kinds
        order = np.argsort(owner, kind="stable")
        return cls.from_columns(shape, pointers(owner[order], num_kinds), rows[order], column_kind)

    def _keys(self) -> NDArray[np.int64]:
        return self.cols.astype(np.int64) * self.shape[0] + self.rows

    def _pair_keys(self, other: SparsityPattern) -> NDArray[np.int64]:
        """Keys (joint kind, row): a column comparison that never expands equal columns."""
        joint = self.column_kind, other.column_kind
        first, second = joint if id(self) < id(other) else joint[::-1]
        _, pairs = joint_kinds([first, second])
        kinds = pairs[0] if first is self.column_kind else pairs[1]
        sizes = np.diff(self.support_indptr)[kinds]
        rows = self.support_rows[ranges(self.support_indptr[kinds], sizes)]
        return np.repeat(np.arange(len(kinds)), sizes) * np.int64(self.shape[0]) + rows


def _check_same_shape(one: SparsityPattern, other: SparsityPattern) -> None:
    check_instance("other", other, SparsityPattern)
    if one.shape != other.shape:
        raise ValueError(f"`other` must have the pattern's shape {one.shape}, got {other.shape}")
