"""`OuterPairs`: which pairs of rows of R and X the gradient of each entry of D sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tritonsnap.plan.blocks import _concatenated, _nonzeros
from tritonsnap.plan.compact import signed
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity.indices import ranges


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
    def build(cls, packing: Packing) -> OuterPairs:
        """List the pairs of a packing for Triton."""
        groups = packing.groups
        mask_row, row_begin = _concatenated(groups.mask, groups.mask_kind)
        x_row, x_begin = _concatenated(groups.x, groups.x_kind)
        row, x_index, entry = _nonzeros(packing.dynamics, mask_row, row_begin, x_row, x_begin)
        group = np.searchsorted(row_begin, row, side="right") - 1
        run_group = packing.blocks[0].run_group
        runs = np.argsort(run_group, kind="stable")
        begin = np.searchsorted(run_group[runs], np.arange(len(groups) + 1))
        count = np.diff(begin)[group]
        pair = np.repeat(np.arange(len(entry)), count)
        run = runs[ranges(begin[group], count)]
        order = np.lexsort((row[pair], run, entry[pair]))
        pair, run = pair[order], run[order]
        entry = entry[pair]
        return cls(
            pair_begin=signed(np.searchsorted(entry, np.arange(packing.dynamics.nnz + 1))),
            pair_run=signed(run),
            pair_row=signed((row - row_begin[group])[pair]),
            pair_inner=signed((x_index - x_begin[group])[pair]),
        )
