"""`BlockColumns`: which columns of the influence a block holds, without a list of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.compact import compact
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import ranges

_MOST_RUNS = 16


class Stretch(NamedTuple):
    """Equally long runs, one a group, that lie one behind the other: ``[groups, length]``."""

    column: int
    x_value: int
    mask_value: int
    length: int


@dataclass(frozen=True, eq=False)
class BlockColumns:
    """The columns of the groups of one block, each group padded to `width` columns.

    Attributes
    ----------
    num_columns
        Columns of the whole influence; also the index that padding has.
    num_groups, width
        Groups, and columns in each, C.
    single
        Whether every run is a single column.
    stretches
        Set where the runs of all groups are regular (dense weights): then nothing else is read.
    run_length : [G, K]
        Columns in each run, 0 where a group has fewer.
    run_column, run_x, run_mask : [G, K]
        First column of each run, and where its values begin in the flat values of X and of M.
    x_size, mask_size : [G]
        Values per column of X and of M.
    """

    num_columns: int
    num_groups: int
    width: int
    single: bool
    stretches: tuple[Stretch, ...] | None
    run_length: Any
    run_column: Any
    run_x: Any
    run_mask: Any
    x_size: Any
    mask_size: Any

    ARRAYS: ClassVar = ("run_length", "run_column", "run_x", "run_mask", "x_size", "mask_size")

    @classmethod
    def build(cls, groups: ColumnGroups, members: NDArray[np.int64]) -> BlockColumns:
        """Collect the columns of the groups `members`."""
        columns = cls.collect(groups, members)
        stretches = columns._find_stretches()
        arrays: dict[str, Any] = {name: compact(getattr(columns, name)) for name in cls.ARRAYS}
        if stretches is not None:
            arrays = dict.fromkeys(cls.ARRAYS, np.empty(0, np.uint8))
        return replace(columns, stretches=stretches, **arrays)

    @classmethod
    def collect(cls, groups: ColumnGroups, members: NDArray[np.int64]) -> BlockColumns:
        """The same as lists, int64, even where stretches would do."""
        counts = groups.num_columns[members]
        width = int(counts.max(initial=0))
        begin, end = groups.run_indptr[members], groups.run_indptr[members + 1]
        run = ranges(begin, end - begin)
        owner = np.repeat(np.arange(len(members)), end - begin)
        slot = run - begin[owner]
        length, column = groups.run_length[run], groups.run_start[run]
        num_runs = int(slot.max(initial=-1)) + 1
        if num_runs > _MOST_RUNS:  # a run for each column is no larger, and simpler to read
            single = ranges(column, length)
            owner, length = np.repeat(owner, length), np.ones(len(single), np.int64)
            column = single
            slot = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
            num_runs = width

        def table(values: NDArray[np.integer], padding: int = 0) -> NDArray[Any]:
            padded = np.full((len(members), num_runs), padding, np.int64)
            padded[owner, slot] = values
            return padded

        x_start, mask_start = groups.x.column_starts(), groups.mask.column_starts()
        return cls(
            num_columns=groups.mask.shape[1],
            num_groups=len(members),
            width=width,
            single=bool(length.max(initial=0) <= 1),
            stretches=None,
            run_length=table(length),
            run_column=table(column),
            run_x=table(x_start[column]),
            run_mask=table(mask_start[column]),
            x_size=groups.x_sizes[members],
            mask_size=groups.mask_sizes[members],
        )

    def _find_stretches(self) -> tuple[Stretch, ...] | None:
        """The stretches, if few, and if every run lies right behind that of the group before."""
        if self.run_length.shape[1] > _MOST_RUNS:  # each of them is some operations of a program
            return None
        if not self.run_length.size or np.any(self.run_length != self.run_length[0]):
            return None
        if np.any(self.x_size != self.x_size[0]) or np.any(self.mask_size != self.mask_size[0]):
            return None
        group = np.arange(len(self.run_length))[:, None]
        length = self.run_length[0]
        for run, step in (
            (self.run_column, length),
            (self.run_x, length * self.x_size[0]),
            (self.run_mask, length * self.mask_size[0]),
        ):
            if not np.array_equal(run, run[0] + group * step):
                return None
        firsts = (self.run_column[0], self.run_x[0], self.run_mask[0], length)
        return tuple(Stretch(*map(int, stretch)) for stretch in zip(*firsts, strict=True))

    def index(self, xp: Any) -> Any:
        """[G, C]: the column at each place, `num_columns` at padding."""
        if self.stretches is not None:
            group = xp.arange(self.num_groups)[:, None]
            pieces = [s.column + group * s.length + xp.arange(s.length) for s in self.stretches]
            return xp.concatenate(pieces, axis=1)
        run, offset, inside = self._locate(xp)
        column = xp.take_along_axis(_wide(xp, self.run_column), run, axis=1) + offset
        return xp.where(inside, column, self.num_columns)

    def value_starts(self, xp: Any, side: str) -> tuple[Any, Any]:
        """Where the values of each column begin in the flat values of `side` ("x" or "mask").

        Returns
        -------
        start : [G, C]
        inside : bool [G, C]
            False at padding, where `start` means nothing.
        """
        first = self.run_x if side == "x" else self.run_mask
        size = self.x_size if side == "x" else self.mask_size
        run, offset, inside = self._locate(xp)
        start = xp.take_along_axis(_wide(xp, first), run, axis=1)
        return start + offset * _wide(xp, size)[:, None], inside

    def _locate(self, xp: Any) -> tuple[Any, Any, Any]:
        """The run, the offset in it, and whether there is one, for each place [G, C]."""
        length = _wide(xp, self.run_length)
        end = xp.cumsum(length, axis=1)
        place = xp.arange(self.width)[None, :]
        if self.single:
            run, shift = xp.broadcast_to(place, length.shape), place
        else:
            run = xp.sum(place[:, :, None] >= end[:, None, :], axis=2)
            run = xp.minimum(run, length.shape[1] - 1)
            shift = xp.take_along_axis(end - length, run, axis=1)
        return run, place - shift, place < end[:, -1:]


def _wide(xp: Any, array: Any) -> Any:
    """Indices wide enough to add and multiply."""
    return array.astype(xp.int64 if xp is np or array.dtype == xp.int64 else xp.int32)
