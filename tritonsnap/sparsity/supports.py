"""The distinct supports of a pattern's columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.indices import pointers, ranges, sorted_unique


class Supports(NamedTuple):
    """Sets of rows, and which of them each column has; see `SparsityPattern`."""

    indptr: NDArray[np.int64]
    rows: NDArray[np.integer]
    column_kind: NDArray[np.integer]


def merged_supports(
    indptr: NDArray[np.int64],
    rows: NDArray[np.integer],
    column_kind: NDArray[np.integer],
    num_rows: int,
) -> Supports:
    """Sort the rows of each support, drop duplicates and unused supports, merge equal ones.

    Supports are numbered in the order of their first column.
    """
    owner = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    keys = sorted_unique(owner * np.int64(num_rows) + rows)
    owner, rows = keys // max(num_rows, 1), keys % max(num_rows, 1)
    indptr = pointers(owner, len(indptr) - 1)

    first: dict[bytes, int] = {}
    canonical = np.empty(len(indptr) - 1, np.int64)
    used, first_column = np.unique(column_kind, return_index=True)
    order = used[np.argsort(first_column, kind="stable")]
    kept: list[int] = []
    for kind in order:
        content = rows[indptr[kind] : indptr[kind + 1]].tobytes()
        if content not in first:
            first[content] = len(kept)
            kept.append(int(kind))
        canonical[kind] = first[content]
    kept_array = np.asarray(kept, np.int64)
    sizes = np.diff(indptr)[kept_array]
    return Supports(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        rows[ranges(indptr[:-1][kept_array], sizes)],
        canonical[column_kind],
    )
