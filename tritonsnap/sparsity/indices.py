"""Small index arithmetic that patterns and plans share."""

from __future__ import annotations

from collections.abc import Sequence

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


def stable_order(keys: NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """The stable order of keys in ``range(size)``."""
    if size <= 1 << 16:
        keys = keys.astype(np.uint16)  # NumPy has a radix sort for these, ten times faster
    return np.argsort(keys, kind="stable")


def sorted_unique(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort keys and drop duplicates; free of cost where they are so already."""
    if len(keys) < 2 or np.all(keys[1:] > keys[:-1]):
        return keys
    keys = np.sort(keys)  # np.unique hashes integers, which is ten times slower here
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])]


def joint_kinds(
    kinds: Sequence[NDArray[np.integer]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct combinations of several labels per column.

    Returns
    -------
    column_kind : int64 [columns]
        The combination that each column has.
    members : int64 [len(kinds), combinations]
        The labels of each combination.
    """
    joint, count = np.zeros(len(kinds[0]), np.int64), 1
    for labels in kinds:
        size = int(labels.max(initial=0)) + 1
        joint, count = _numbered(joint * size + labels, count * size)
    member = np.empty(count, np.int64)
    member[joint] = np.arange(len(joint))  # any column of the combination
    return joint, np.stack([labels[member] for labels in kinds]).astype(np.int64)


def _numbered(keys: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
    """Keys below `size` as 0, 1, 2, ... in their order, and how many distinct ones there are."""
    if size > 4 * len(keys):
        distinct, number = np.unique(keys, return_inverse=True)
        return number, len(distinct)
    present = np.zeros(size, np.int64)
    present[keys] = 1
    number = np.cumsum(present)
    return number[keys] - 1, int(present.sum())
