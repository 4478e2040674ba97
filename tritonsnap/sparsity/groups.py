"""`ColumnGroups`: the columns of an influence that share their supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.indices import joint_kinds, pointers, ranges
from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True, eq=False)
class ColumnGroups:
    """Columns whose supports are equal both before and after a product with D.

    A group `g` is the unit of work of ``M * (D X)``: with R the rows of X and S the rows of M that
    its columns have, its part of the product is the small ``D[S, R] @ X[R, C]``. Columns that M
    leaves empty belong to no group.

    The columns of a group are kept as runs of consecutive columns, in ascending order.

    Attributes
    ----------
    x_kind, mask_kind : int64 [groups]
        Which distinct column of X and of M the group's columns are.
    segment : int64 [groups]
        The segment of a group of one row, 0 for all others (see `build`).
    run_indptr : int64 [groups + 1]
        Where the runs of each group begin.
    run_start, run_length : int64 [runs]
        First column and number of columns of each run.

    Examples
    --------
    >>> pattern = SparsityPattern.from_dense([[1, 1, 0, 1], [0, 0, 1, 0]])
    >>> groups = ColumnGroups.build(pattern, pattern)
    >>> groups.run_indptr, groups.run_start, groups.run_length
    (array([0, 2, 3]), array([0, 3, 2]), array([2, 1, 1]))
    """

    x: SparsityPattern
    mask: SparsityPattern
    x_kind: NDArray[np.int64]
    mask_kind: NDArray[np.int64]
    segment: NDArray[np.int64]
    run_indptr: NDArray[np.int64]
    run_start: NDArray[np.int64]
    run_length: NDArray[np.int64]

    @classmethod
    def build(
        cls, x: SparsityPattern, mask: SparsityPattern, segments: Sequence[int] = ()
    ) -> ColumnGroups:
        """Group the columns of X and M.

        Parameters
        ----------
        x, mask
            Patterns with equal numbers of columns.
        segments
            Columns at which a new segment begins. Groups of a single row do not reach across
            segments, so that what is added to each of them is one outer product.
        """
        num_cols = mask.shape[1]
        x_sizes = np.diff(x.support_indptr)[x.column_kind]
        mask_sizes = np.diff(mask.support_indptr)[mask.column_kind]
        single = (x_sizes == 1) & (mask_sizes == 1)
        begins = np.zeros(num_cols, np.int64)
        begins[[start for start in segments if start < num_cols]] = 1
        label = np.where(single, np.cumsum(begins), 0)
        column_group, (x_kind, mask_kind, segment) = joint_kinds(
            [x.column_kind, mask.column_kind, label]
        )
        kept = np.diff(mask.support_indptr)[mask_kind] > 0
        number = np.cumsum(kept) - 1

        is_start = np.ones(num_cols, bool)
        is_start[1:] = column_group[1:] != column_group[:-1]
        start = np.flatnonzero(is_start)
        length = np.diff(np.append(start, num_cols))
        inside = kept[column_group[start]]
        start, length = start[inside], length[inside]
        owner = number[column_group[start]]
        order = np.argsort(owner, kind="stable")
        return cls(
            x=x,
            mask=mask,
            x_kind=x_kind[kept],
            mask_kind=mask_kind[kept],
            segment=segment[kept],
            run_indptr=pointers(owner, int(kept.sum())),
            run_start=start[order],
            run_length=length[order],
        )

    @property
    def transposed(self) -> ColumnGroups:
        """The same groups with X and M exchanged; some may have no rows of M then."""
        return replace(self, x=self.mask, mask=self.x, x_kind=self.mask_kind, mask_kind=self.x_kind)

    def split(self, pieces: NDArray[np.int64]) -> ColumnGroups:
        """The same columns in more groups.

        Parameters
        ----------
        pieces : int64 [groups]
            Into how many groups of about equally many columns each group is split, at least 1;
            a group of fewer columns is split into single ones.

        Examples
        --------
        >>> pattern = SparsityPattern.full((2, 5))
        >>> halves = ColumnGroups.build(pattern, pattern).split(np.array([2]))
        >>> halves.run_start, halves.run_length
        (array([0, 2]), array([2, 3]))
        """
        run_begin = np.concatenate([[0], np.cumsum(self.run_length)])
        columns = self.num_columns
        pieces = np.minimum(pieces, columns)
        owner = np.repeat(np.arange(len(self)), pieces)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        cut = run_begin[self.run_indptr[owner]] + number * columns[owner] // pieces[owner]
        begin = np.union1d(run_begin[:-1], cut)
        run = np.searchsorted(run_begin, begin, side="right") - 1
        return replace(
            self,
            x_kind=self.x_kind[owner],
            mask_kind=self.mask_kind[owner],
            segment=self.segment[owner],
            run_indptr=np.searchsorted(begin, np.append(cut, run_begin[-1])),
            run_start=self.run_start[run] + begin - run_begin[run],
            run_length=np.diff(np.append(begin, run_begin[-1])),
        )

    def columns_of(self, members: NDArray[np.integer]) -> NDArray[np.int64]:
        """int64 [columns]: the columns of the groups `members`, one group behind the other."""
        begin = self.run_indptr[members]
        run = ranges(begin, self.run_indptr[members + 1] - begin)
        return ranges(self.run_start[run], self.run_length[run])

    def __len__(self) -> int:
        return len(self.mask_kind)

    @property
    def num_columns(self) -> NDArray[np.int64]:
        """int64 [groups]: columns of each group."""
        total = np.concatenate([[0], np.cumsum(self.run_length)])
        return np.diff(total[self.run_indptr])

    @property
    def x_sizes(self) -> NDArray[np.int64]:
        """int64 [groups]: rows of X that each group reads."""
        return np.diff(self.x.support_indptr)[self.x_kind]

    @property
    def mask_sizes(self) -> NDArray[np.int64]:
        """int64 [groups]: rows of M that each group writes."""
        return np.diff(self.mask.support_indptr)[self.mask_kind]

    def x_support(self, group: int) -> NDArray[np.integer]:
        """The rows of X that a group reads, ascending."""
        begin, end = self.x.support_indptr[self.x_kind[group] : self.x_kind[group] + 2]
        return self.x.support_rows[begin:end]

    def mask_support(self, group: int) -> NDArray[np.integer]:
        """The rows of M that a group writes, ascending."""
        begin, end = self.mask.support_indptr[self.mask_kind[group] : self.mask_kind[group] + 2]
        return self.mask.support_rows[begin:end]
