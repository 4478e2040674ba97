"""The boolean product: which rows each set of inner indices reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.indices import ranges, sorted_unique

if TYPE_CHECKING:
    from tritonsnap.sparsity.pattern import SparsityPattern

_BYTES_AT_ONCE = 1 << 25
_BYTES_PER_SORTED_PATH = 64


def product_of_supports(
    left: SparsityPattern, indptr: NDArray[np.int64], inner: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each set ``inner[indptr[k]:indptr[k+1]]`` the union of those columns of `left`.

    Returns
    -------
    owner, rows : int64 [total]
        The set and the row of each member of the unions, sorted by set, then by row.
    """
    num_rows = left.shape[0]
    column_sizes = np.diff(left.support_indptr)[left.column_kind]
    paths = int(column_sizes[inner].sum())
    row_bytes = 8 * -(-num_rows // 64)
    by_bits = len(inner) * row_bytes + len(indptr) * num_rows < paths * _BYTES_PER_SORTED_PATH
    bits = _column_bits(left) if by_bits else None
    per_inner = np.full(len(inner), row_bytes) if by_bits else 8 * column_sizes[inner]
    work = np.concatenate([[0], np.cumsum(per_inner)])[indptr]
    work += np.arange(len(indptr)) * (num_rows if by_bits else 0)
    owner, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    start, num_sets = 0, len(indptr) - 1
    while start < num_sets:
        stop = int(np.searchsorted(work, work[start] + _BYTES_AT_ONCE, side="right")) - 1
        stop = min(max(stop, start + 1), num_sets)
        members = inner[indptr[start] : indptr[stop]]
        sizes = np.diff(indptr[start : stop + 1])
        if bits is not None:
            filled = np.flatnonzero(sizes)
            union = np.zeros((stop - start, row_bytes // 8), np.uint64)
            if len(filled):
                begins = indptr[start:stop][filled] - indptr[start]
                union[filled] = np.bitwise_or.reduceat(bits[left.column_kind[members]], begins)
            keys = np.flatnonzero(np.unpackbits(union.view(np.uint8), axis=1, count=num_rows))
        else:
            kinds = left.column_kind[members]
            reached = left.support_rows[ranges(left.support_indptr[kinds], column_sizes[members])]
            sets = np.repeat(np.arange(stop - start), sizes)
            keys = np.repeat(sets, column_sizes[members]) * np.int64(num_rows) + reached
            keys = sorted_unique(keys)
        owner.append(keys // max(num_rows, 1) + start)
        rows.append(keys % max(num_rows, 1))
        start = stop
    return np.concatenate(owner), np.concatenate(rows)


def _column_bits(pattern: SparsityPattern) -> NDArray[np.uint64]:
    """uint64 [kinds, ceil(rows / 64)]: the support of each kind, one bit a row."""
    marks = np.zeros((pattern.num_kinds, 64 * -(-pattern.shape[0] // 64)), bool)
    kind = np.repeat(np.arange(pattern.num_kinds), np.diff(pattern.support_indptr))
    marks[kind, pattern.support_rows] = True
    return np.packbits(marks, axis=1).view(np.uint64)
