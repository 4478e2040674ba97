"""The problems whose traffic is counted: the influence of a sparse recurrent network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity import SparsityPattern, snap_pattern

ITEMSIZE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Problem:
    """One SnAp-n update ``J' = M * (D J)`` of a recurrent network, or a sample of its columns.

    Parameters
    ----------
    dynamics : pattern [hidden, hidden]
        Where D may be nonzero.
    mask : pattern [hidden, columns]
        Where J and J' may be nonzero, for the sampled columns.
    unit : int [columns]
        The unit that each column's weight feeds.
    batch
        Batch rows.
    scale
        Nonzeros of the whole influence over those of `mask`.
    """

    dynamics: SparsityPattern
    mask: SparsityPattern
    unit: NDArray[np.int64]
    batch: int
    scale: float

    @property
    def influence_bytes(self) -> float:
        """Bytes to read the whole J once and to write it once, in float32, without padding."""
        return 2 * ITEMSIZE * self.batch * self.mask.nnz * self.scale


def snap_problem(
    hidden: int,
    density: float,
    batch: int,
    order: int | None = 2,
    *,
    seed: int = 0,
    most_nonzeros: int = 1 << 21,
) -> Problem:
    """Make the update of a recurrent network with random sparse weights.

    The pattern of D is `density` random positions and the diagonal; each of its nonzeros is a
    weight. If the influence has more than `most_nonzeros`, only the weights of some units, spread
    evenly, are kept, but at least one unit's: whole groups of columns with equal support.
    """
    dynamics = SparsityPattern.random((hidden, hidden), density, seed) | SparsityPattern.identity(
        hidden
    )
    unit = np.repeat(np.arange(hidden), np.bincount(dynamics.rows, minlength=hidden))
    immediate = SparsityPattern.from_columns(
        (hidden, len(unit)), np.arange(hidden + 1), np.arange(hidden), unit
    )
    whole = snap_pattern(dynamics, immediate, order)
    units = spread_sample(hidden, max(1, hidden * most_nonzeros // whole.nnz))
    columns = np.flatnonzero(np.isin(unit, units))
    mask = whole.take_columns(columns)
    return Problem(dynamics, mask, unit[columns], batch, whole.nnz / mask.nnz)


def spread_sample(size: int, most: int | None) -> NDArray[np.int64]:
    """Choose up to `most` of the numbers below `size`: one out of each of `most` equal slices.

    The place within the slices moves by the golden ratio, so that neither the order of the
    numbers nor a period in it (a batch axis, an alignment) leaves its mark.
    """
    if most is None or size <= most:
        return np.arange(size)
    slices = np.arange(most)
    places = slices * (math.sqrt(5) - 1) / 2 % 1
    return ((slices + places) * size / most).astype(np.int64)
