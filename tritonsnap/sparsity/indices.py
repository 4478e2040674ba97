"""Small index arithmetic that patterns and plans share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def index_dtype(size: int) -> type[np.int32] | type[np.int64]:
    """The narrowest of int32 and int64 that holds indices below `size`."""
    return np.int32 if size <= np.iinfo(np.int32).max else np.int64


def ranges(starts: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Concatenate ``arange(start, start + size)`` over all pairs.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    offsets = np.asarray(starts, np.int64) - (ends - sizes)
    return np.repeat(offsets, sizes) + np.arange(total)


def pointers(sorted_owner: NDArray[np.integer], num_owners: int) -> NDArray[np.int64]:
    """int64 [num_owners + 1]: where each owner begins in an ascending list of owners."""
    counts = np.bincount(sorted_owner, minlength=num_owners)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def sorted_unique(keys: NDArray[np.int64], limit: int | None = None) -> NDArray[np.int64]:
    """Sort keys and drop duplicates; below a dense `limit` by marking instead of sorting."""
    if limit is not None and limit <= 16 * len(keys):
        marks = np.zeros(limit, bool)
        marks[keys] = True
        return np.flatnonzero(marks)
    if len(keys) > 1 and not np.all(keys[1:] > keys[:-1]):
        keys = np.sort(keys)  # np.unique hashes since NumPy 2.3, several times slower
        return keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    return keys
