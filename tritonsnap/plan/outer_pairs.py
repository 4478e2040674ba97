"""`OuterPairs`: which pairs of rows of R and X the gradient of each entry of D sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tritonsnap.plan.blocks import _concatenated, _nonzeros
from tritonsnap.plan.canonical import _runs
from tritonsnap.plan.compact import signed
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import ranges
from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True, eq=False)
class OuterPairs:
    """Pairs for values in canonical order, those of one entry of D behind those of the one before.

    Attributes
    ----------
    pair_begin : [nnz(dynamics) + 1]
        Where the pairs of each entry begin.
    pair_run : [pairs]
        A run of columns in which the entry is used; see `CanonicalBlock`.
    pair_row, pair_inner : [pairs]
        Which of the run's rows of M and of X the entry connects.
    """

    pair_begin: Any
    pair_run: Any
    pair_row: Any
    pair_inner: Any

    ARRAYS: ClassVar = ("pair_begin", "pair_run", "pair_row", "pair_inner")

    @classmethod
    def build(cls, groups: ColumnGroups, dynamics: SparsityPattern) -> OuterPairs:
        """List the pairs of the entries of D."""
        mask_row, row_begin = _concatenated(groups.mask, groups.mask_kind)
        x_row, x_begin = _concatenated(groups.x, groups.x_kind)
        row, x_index, entry = _nonzeros(dynamics, mask_row, row_begin, x_row, x_begin)
        group = np.searchsorted(row_begin, row, side="right") - 1
        _, run_group = _runs(groups)
        runs = np.argsort(run_group, kind="stable")
        begin = np.searchsorted(run_group[runs], np.arange(len(groups) + 1))
        count = np.diff(begin)[group]
        pair = np.repeat(np.arange(len(entry)), count)
        run = runs[ranges(begin[group], count)]
        order = np.lexsort((row[pair], run, entry[pair]))
        pair, run = pair[order], run[order]
        entry = entry[pair]
        return cls(
            pair_begin=signed(np.searchsorted(entry, np.arange(dynamics.nnz + 1))),
            pair_run=signed(run),
            pair_row=signed((row - row_begin[group])[pair]),
            pair_inner=signed((x_index - x_begin[group])[pair]),
        )

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        return [getattr(self, name) for name in self.ARRAYS]
