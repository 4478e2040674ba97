"""The order of stored entries, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True)
class CanonicalOrder:
    """How entries stored in any order become the values of a pattern.

    Parameters
    ----------
    pattern
        The pattern of the entries.
    source : int64 [nnz] or None
        Which entry each value is; None if some values are sums of several entries.
    target : int64 [entries inside]
        Which value each entry belongs to.
    inside : int64 [entries inside] or None
        Which entries count, padding left out; None if all do.
    """

    pattern: SparsityPattern
    source: NDArray[np.int64] | None
    target: NDArray[np.int64]
    inside: NDArray[np.int64] | None

    @property
    def is_identity(self) -> bool:
        """Whether the entries are the values already."""
        return (
            self.inside is None
            and self.source is not None
            and bool(np.all(self.source == np.arange(len(self.source))))
        )


def canonical_order(
    rows: NDArray[np.integer], cols: NDArray[np.integer], shape: tuple[int, int]
) -> CanonicalOrder:
    """Find the canonical order of entries; those outside of `shape` are padding."""
    kept = np.flatnonzero((rows < shape[0]) & (cols < shape[1]))
    inside = kept if len(kept) < len(rows) else None
    rows, cols = rows[kept], cols[kept]
    pattern = SparsityPattern.from_coo(rows, cols, shape)
    keys = cols.astype(np.int64) * shape[0] + rows
    target = np.searchsorted(pattern.cols.astype(np.int64) * shape[0] + pattern.rows, keys)
    source = None
    if pattern.nnz == len(keys):
        source = np.empty(len(keys), np.int64)
        source[target] = kept
    return CanonicalOrder(pattern, source, target, inside)


def row_major(pattern: SparsityPattern) -> NDArray[np.int64]:
    """int64 [nnz]: which value comes at each place when values are sorted by row, then column."""
    return np.argsort(pattern.rows, kind="stable")


def row_pointers(pattern: SparsityPattern) -> NDArray[np.int64]:
    """int64 [rows + 1]: where each row begins in row-major order."""
    counts = np.bincount(pattern.rows, minlength=pattern.shape[0])
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
