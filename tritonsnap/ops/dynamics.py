"""D as the blocks read it: values on `plan.dynamics`, or a dense matrix with a border of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritonsnap.arrays import library_of
from tritonsnap.ops.arguments import Form
from tritonsnap.plan.packing import Packing


class Dynamics:
    """One D, given dense or as values, converted once to what the blocks of a packing read."""

    def __init__(self, d: Any, form: Form, packing: Packing, xp: Any) -> None:
        self._given = d
        self._form = form
        self._packing = packing
        self._xp = xp
        self._values: Any = d if form == "values" else None
        self._dense: Any = d if form == "dense" and not packing.restricted else None

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return tuple(self._given.shape[: -2 if self._form == "dense" else -1])

    @property
    def values(self) -> Any:
        """The values on `plan.dynamics`, [..., nnz]."""
        if self._values is None:
            rows, cols = self._packing.dynamics_row, self._packing.dynamics_col
            self._values = self._given[..., rows, cols]
        return self._values

    @property
    def dense(self) -> Any:
        """The matrix, [..., m, k]."""
        if self._dense is None:
            packing, values = self._packing, self.values
            shape = (*values.shape[:-1], *packing.dynamics.shape)
            rows, cols = packing.dynamics.rows, packing.dynamics.cols
            if len(packing.dynamics_row):
                rows, cols = packing.dynamics_row, packing.dynamics_col
            zeros = self._xp.zeros(shape, dtype=values.dtype)
            if library_of(values) == "numpy":
                zeros[..., rows, cols] = values
                self._dense = zeros
            else:
                self._dense = zeros.at[..., rows, cols].set(values, unique_indices=True)
        return self._dense

    def bordered(self) -> Any:
        """[..., m + 1, k + 1]: `dense` with zeros where padded supports point to."""
        dense = self.dense
        return self._xp.pad(dense, [(0, 0)] * (dense.ndim - 2) + [(0, 1), (0, 1)])

    def scaled(self, row_scale: Any) -> Dynamics:
        """The same D with its rows multiplied by `row_scale` [..., m]."""
        if self._form == "values":
            scaled = self.values * self._of_rows(row_scale)
        else:
            scaled = self._given * row_scale[..., None]
        return Dynamics(scaled, self._form, self._packing, self._xp)

    def _of_rows(self, row_scale: Any) -> Any:
        """[..., nnz(dynamics)]: what each entry's row has."""
        if self._packing.rows_in_order:
            return row_scale
        rows = self._packing.dynamics_row
        return row_scale[..., rows if len(rows) else self._packing.dynamics.rows]


def gather_groups(dynamics: Dynamics, block: Any, xp: Any) -> Any:
    """[..., G, S, R]: D[S, R] of the groups of a dense block."""
    if block.whole:
        return dynamics.dense[..., None, :, :]
    matrix = dynamics.bordered() if block.padded else dynamics.dense
    flat = matrix.reshape(*matrix.shape[:-2], matrix.shape[-2] * matrix.shape[-1])
    integer = np.int64 if xp is np else xp.int32
    rows, cols = block.mask_support.astype(integer), block.x_support.astype(integer)
    index = rows[:, :, None] * matrix.shape[-1] + cols[:, None, :]
    return xp.take(flat, index, axis=-1)
