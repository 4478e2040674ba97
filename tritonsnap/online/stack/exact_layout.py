"""Influences of an exact `Stack` while it goes through chunks: dense blocks, and back to packed.

Between chunks there is for each cell a tuple with a block [batch, rows, parameters] for each layer
up to it; None for a layer without parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import take, take_or_zero
from tritonsnap.plan.compact import compact
from tritonsnap.plan.dsmm_plan import DsmmPlan

if TYPE_CHECKING:
    from tritonsnap.online.stack.snap import StackInfluence, StackSnAp

Rows = tuple[Any, ...] | None


@dataclass(frozen=True)
class Entries:
    """Where the entries of a pattern [rows, columns] lie in a dense matrix.

    Attributes
    ----------
    shape
        Rows and columns.
    of_dense : [nnz] or None
        The place of each entry in the dense matrix, row by row; None if the pattern is full.
    of_flat : [rows * columns] or None
        The entry at each place of the dense matrix, one past the last where there is none.
    """

    shape: tuple[int, int]
    of_dense: Any
    of_flat: Any

    @classmethod
    def of(cls, plan: DsmmPlan | None) -> Entries | None:
        """Those of the influence of a plan, if there is one."""
        if plan is None:
            return None
        pattern = plan.mask
        num_rows, num_columns = pattern.shape
        if pattern.nnz == num_rows * num_columns:
            return cls(pattern.shape, None, None)
        place = pattern.rows.astype(np.int64) * num_columns + pattern.cols
        entry = np.full(num_rows * num_columns, pattern.nnz, np.int64)
        entry[place] = np.arange(pattern.nnz)
        return cls(pattern.shape, compact(place), compact(entry))

    def dense(self, flat: Any) -> Any:
        """[batch, rows, columns] from the entries [batch, nnz], column by column."""
        num_rows, num_columns = self.shape
        if self.of_flat is None:
            by_column = flat.reshape(-1, num_columns, num_rows)
            return namespace_of(flat).swapaxes(by_column, 1, 2)
        return take_or_zero(flat, self.of_flat).reshape(-1, num_rows, num_columns)

    def flat(self, dense: Any) -> Any:
        """The inverse of `dense`."""
        num_rows, num_columns = self.shape
        if self.of_dense is None:
            by_column = namespace_of(dense).swapaxes(dense, 1, 2)
            return by_column.reshape(-1, num_columns * num_rows)
        return take(dense.reshape(-1, num_rows * num_columns), self.of_dense)


def take_apart(
    learner: StackSnAp, own: Sequence[Any], crossing: Sequence[Any], influence: StackInfluence
) -> tuple[Rows, ...]:
    """The dense blocks of each cell, from the packed ones.

    Parameters
    ----------
    learner
        Whose influence it is.
    own, crossing
        The `Entries` of each cell's influence, and of that of all parameters below it.
    influence
        In the dtype of the parameters.
    """
    found: list[Rows] = []
    for number, one in enumerate(learner.learners):
        if one is None:
            found.append(None)
            continue
        last = own[number].dense(one.plan.unpack(influence.own[number]))
        plan, below = learner.crossing_plans[number], None
        if plan is not None:
            below = crossing[number].dense(plan.unpack(influence.crossing[number]))
        places = learner.stack.columns[:number]
        found.append((*(_at(below, place, last) for place in places), last))
    return tuple(found)


def _at(values: Any, place: slice, like: Any) -> Any:
    """The columns at a place; zeros beside `like` where no parameter below has an influence."""
    if place.start == place.stop:
        return None
    if values is not None:
        return values[..., place]
    xp = namespace_of(like)
    return xp.zeros((*like.shape[:-1], place.stop - place.start), dtype=like.dtype)


def put_together(
    learner: StackSnAp, own: Sequence[Any], crossing: Sequence[Any], rows: Sequence[Rows]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The inverse of `take_apart`: packed blocks of each cell's own parameters, and of others."""
    of_own: list[Any] = []
    of_others: list[Any] = []
    for number, (one, blocks) in enumerate(zip(learner.learners, rows, strict=True)):
        packed = others = None
        if blocks is not None:
            packed = one.plan.pack(own[number].flat(blocks[-1]))
            plan = learner.crossing_plans[number]
            if plan is not None:
                below = [block for block in blocks[:-1] if block is not None]
                whole = namespace_of(*below).concat(below, axis=-1)
                others = plan.pack(crossing[number].flat(whole))
        of_own.append(packed)
        of_others.append(others)
    return tuple(of_own), tuple(of_others)
