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
    """Where the entries of an influence [rows, columns] lie in a dense matrix.

    Attributes
    ----------
    shape
        Rows and columns.
    of_dense : [nnz] or None
        The place of each entry in the dense matrix, row by row; None where it is packed as that.
    of_flat : [rows * columns] or None
        The entry at each place of the dense matrix, one past the last where there is none.
    """

    shape: tuple[int, int]
    of_dense: Any
    of_flat: Any

    @classmethod
    def of(cls, plan: DsmmPlan | None, target: str) -> Entries | None:
        """Those of the influence of a plan, if there is one."""
        if plan is None:
            return None
        mask, (num_rows, num_columns) = plan.mask, plan.mask.shape
        size = num_rows * num_columns
        if mask.nnz == size and plan.packing(target).shapes("mask") == [(1, *mask.shape)]:
            return cls(mask.shape, None, None)
        place = mask.rows.astype(np.int64) * num_columns + mask.cols
        entry = np.full(size, mask.nnz, np.int64)
        entry[place] = np.arange(mask.nnz)
        return cls(mask.shape, compact(place), compact(entry))

    def unpack(self, plan: DsmmPlan, blocks: tuple[Any, ...]) -> Any:
        """[batch, rows, columns] from packed values."""
        if self.of_flat is None:
            return blocks[0][:, 0]
        return take_or_zero(plan.unpack(blocks), self.of_flat).reshape(-1, *self.shape)

    def pack(self, plan: DsmmPlan, dense: Any) -> tuple[Any, ...]:
        """The inverse of `unpack`."""
        if self.of_dense is None:
            return (dense[:, None],)
        return plan.pack(take(dense.reshape(dense.shape[0], -1), self.of_dense))


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
        last = own[number].unpack(one.plan, influence.own[number])
        plan, below = learner.crossing_plans[number], None
        if plan is not None:
            below = crossing[number].unpack(plan, influence.crossing[number])
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
            packed = own[number].pack(one.plan, blocks[-1])
            plan = learner.crossing_plans[number]
            if plan is not None:
                below = [block for block in blocks[:-1] if block is not None]
                whole = namespace_of(*below).concat(below, axis=-1)
                others = crossing[number].pack(plan, whole)
        of_own.append(packed)
        of_others.append(others)
    return tuple(of_own), tuple(of_others)
