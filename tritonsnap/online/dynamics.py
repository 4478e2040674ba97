"""The dynamics ``ds_t/ds_{t-1}`` of a cell, built from its gains as a plan wants them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import index_like
from tritonsnap.online.cell import Cell, Linearization, Params
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.plan.compact import compact
from tritonsnap.sparsity.pattern import SparsityPattern


class Operand(NamedTuple):
    """D as the influence ops take it: ``diag(row_scale) d``, or `d` where there is no scale."""

    d: Any
    row_scale: Any


def preactivation_pattern(cell: Cell) -> SparsityPattern:
    """Where the influence of one step is kept, by preactivation: [rows, targets * units].

    What feeds unit i has all parts of unit i, those too that its derivative leaves at zero: a
    unit's parts stay together, and SnAp-1 is BPTT without the paths between units.
    """
    units, parts = np.arange(cell.hidden), np.arange(len(cell.parts)) * cell.hidden
    return SparsityPattern.from_columns(
        (cell.rows, len(cell.targets) * cell.hidden),
        np.arange(cell.hidden + 1) * len(parts),
        (units[:, None] + parts).reshape(-1),
        np.tile(units, len(cell.targets)),
    )


def immediate_pattern(cell: Cell) -> SparsityPattern:
    """Where the influence of one step is kept: [rows, parameters]; see `preactivation_pattern`."""
    columns = [cell.targets.index(m.target) * cell.hidden + m.units for m in cell.maps]
    return preactivation_pattern(cell).take_columns(np.concatenate(columns))


def dynamics_pattern(cell: Cell, weighted: bool = True) -> SparsityPattern:
    """Where ``ds_t/ds_{t-1}`` may be nonzero: the union of all paths from state to state.

    Without `weighted` only the direct paths within each unit, such as a leak or a forget gate.
    """
    rows: list[NDArray[np.integer]] = [np.empty(0, np.int64)]
    cols: list[NDArray[np.integer]] = [np.empty(0, np.int64)]
    units = np.arange(cell.hidden)
    for to, origin in cell.own_parts:
        rows.append(cell.parts.index(to) * cell.hidden + units)
        cols.append(cell.parts.index(origin) * cell.hidden + units)
    dense = []
    for linear in cell.recurrent_maps() if weighted else ():
        if linear.pattern is None:
            dense.append(_dense_paths(cell, linear))
            continue
        for part in cell.gain_parts[linear.target]:
            rows.append(cell.parts.index(part) * cell.hidden + linear.units.astype(np.int64))
            cols.append(cell.parts.index(linear.source) * cell.hidden + linear.rows)
    thin = SparsityPattern.from_coo(
        np.concatenate(rows), np.concatenate(cols), (cell.rows, cell.rows)
    )
    return thin.union(*dense)


def _dense_paths(cell: Cell, linear: LinearMap) -> SparsityPattern:
    """The paths through a dense map: one support for all units of the part that it reads."""
    units = np.arange(cell.hidden)
    parts = [cell.parts.index(part) for part in cell.gain_parts[linear.target]]
    support = np.concatenate([part * cell.hidden + units for part in parts])
    origin = np.repeat(np.arange(len(cell.parts)), cell.hidden)
    unread = np.where(origin == cell.parts.index(linear.source), 0, 1)
    indptr = [0, len(support), len(support)]
    return SparsityPattern.from_columns((cell.rows, cell.rows), indptr, support, unread)


@dataclass(frozen=True, eq=False)
class DynamicsStructure:
    """Which weight and which gain each entry of D is made of.

    Attributes
    ----------
    cell
        The cell.
    weight_index
        For each recurrent map [nnz]: the place of the entry's weight among the stored parameters;
        one past the last where the map has none, which counts as zero.
    row : [nnz], or None
        The row of each entry; None if it is 0, 1, 2, ...
    own_index : [nnz], or None
        The place of the entry's direct derivative among those of all pairs of parts; None if there
        are none, or if they are in order.
    weighted
        Whether the paths through recurrent weights count; else only the direct ones do.
    """

    cell: Cell
    weight_index: tuple[Any, ...]
    row: Any
    own_index: Any
    weighted: bool = True

    @property
    def maps(self) -> list[LinearMap]:
        """The recurrent maps that count."""
        return self.cell.recurrent_maps() if self.weighted else []

    @classmethod
    def build(
        cls, cell: Cell, dynamics: SparsityPattern, weighted: bool = True
    ) -> DynamicsStructure:
        """Look up the weights of the entries of `dynamics`."""
        to, unit = np.divmod(dynamics.rows.astype(np.int64), cell.hidden)
        origin, source = np.divmod(dynamics.cols.astype(np.int64), cell.hidden)
        in_order = np.array_equal(dynamics.rows, np.arange(dynamics.nnz))
        own_index = None
        if cell.own_parts:
            parts = len(cell.parts)
            place = (to * parts + origin) * cell.hidden + unit
            own_index = np.where(unit == source, place, parts * parts * cell.hidden)
            if np.array_equal(own_index, np.arange(parts * parts * cell.hidden)):
                own_index = None
        weights = []
        for linear in cell.recurrent_maps() if weighted else ():
            reached = [cell.parts.index(part) for part in cell.gain_parts[linear.target]]
            fits = np.isin(to, reached) & (origin == cell.parts.index(linear.source))
            weights.append(_stored_place(linear, source, unit, fits))
        return cls(
            cell=cell,
            weight_index=tuple(compact(index) for index in weights),
            row=None if in_order else compact(dynamics.rows),
            own_index=None if own_index is None else compact(own_index),
            weighted=weighted,
        )

    def take(self, place: NDArray[np.integer], rows: NDArray[np.integer]) -> DynamicsStructure:
        """The structure of only the entries at `place`, in that order.

        `rows` are those of all entries of this one.
        """
        own_index = None
        if self.cell.own_parts:
            own_index = place if self.own_index is None else self.own_index[place]
            if np.array_equal(own_index, np.arange(len(self.cell.parts) ** 2 * self.cell.hidden)):
                own_index = None
        row = rows[place]
        return replace(
            self,
            weight_index=tuple(index[place] for index in self.weight_index),
            row=None if np.array_equal(row, np.arange(self.cell.rows)) else compact(row),
            own_index=None if own_index is None else compact(own_index),
        )

    def arrays(self) -> list[Any]:
        """Every index array, in a fixed order."""
        arrays = [*self.weight_index, self.row, self.own_index]
        return [array for array in arrays if array is not None]

    def with_arrays(self, arrays: Iterator[Any], cell: Cell | None = None) -> DynamicsStructure:
        """The same structure reading other arrays, and another cell, as operands of a program."""
        return replace(
            self,
            cell=cell or self.cell,
            weight_index=tuple(next(arrays) for _ in self.weight_index),
            row=None if self.row is None else next(arrays),
            own_index=None if self.own_index is None else next(arrays),
        )

    def prepare(self, params: Params, dense: bool) -> tuple[Any, ...]:
        """The recurrent weights of each target, where D has entries (or as [rows, rows])."""
        weights: dict[str, Any] = {}
        for linear, index in zip(self.maps, self.weight_index, strict=True):
            values = params[linear.name]
            part = self._dense(linear, values) if dense else _at(values.reshape(-1), index)
            known = weights.get(linear.target)
            weights[linear.target] = part if known is None else known + part
        return tuple(weights.values())

    def operand(self, weights: tuple[Any, ...], step: Linearization, dense: bool) -> Operand:
        """D of a step, from what `prepare` returns."""
        targets = list(dict.fromkeys(linear.target for linear in self.maps))
        numbers = [self.cell.targets.index(target) for target in targets]
        if step.own is None and len(numbers) == 1:  # diag(g) W is never multiplied out
            return Operand(weights[0], step.gains[..., numbers[0], :])
        total = None
        for number, weight in zip(numbers, weights, strict=True):
            gain = step.gains[..., number, :]
            if dense:
                gain = gain[..., None]
            elif self.row is not None:
                gain = _take(gain, self.row)
            part = gain * weight
            total = part if total is None else total + part
        if step.own is not None:
            part = self._dense_own(step.own) if dense else self._own_values(step.own)
            total = part if total is None else total + part
        if total is None:  # no path at all
            total = step.state[..., :0]
        return Operand(total, None)

    def multiplied(self, weights: tuple[Any, ...], step: Linearization, dense: bool) -> Any:
        """D of a step as one array: `operand` with its scale multiplied out."""
        d, scale = self.operand(weights, step, dense)
        if scale is None:
            return d
        if dense:
            return scale[..., None] * d
        return (scale if self.row is None else _take(scale, self.row)) * d

    @property
    def num_terms(self) -> int:
        """How many terms `dense_terms` gives."""
        targets = {linear.target for linear in self.maps}
        return len(targets) + (len(self.cell.parts) if self.cell.own_parts else 0)

    def dense_terms(self, params: Params) -> tuple[Any, ...]:
        """Matrices A_q [rows, rows] such that ``D = sum_q diag(g_q) A_q``, see `term_gains`."""
        terms = list(self.prepare(params, dense=True))
        if not self.cell.own_parts:
            return tuple(terms)
        (like, *_) = params.values()
        xp = namespace_of(like)
        row = xp.arange(self.cell.rows)
        same_unit = row[:, None] % self.cell.hidden == row % self.cell.hidden
        for part in range(len(self.cell.parts)):
            origin = row // self.cell.hidden == part
            terms.append(xp.astype(same_unit & origin, like.dtype))
        return tuple(terms)

    def term_gains(self, step: Linearization) -> list[Any]:
        """What the rows of each of `dense_terms` are multiplied by in a step: [..., rows] each."""
        targets = dict.fromkeys(linear.target for linear in self.maps)
        gains = [step.gains[..., self.cell.targets.index(target), :] for target in targets]
        if step.own is not None:
            for part in range(len(self.cell.parts)):
                own = step.own[..., part, :]
                gains.append(own.reshape(*own.shape[:-2], self.cell.rows))
        return gains

    def _own_values(self, own: Any) -> Any:
        flat = own.reshape(*own.shape[:-3], own.shape[-3] * own.shape[-2] * own.shape[-1])
        return flat if self.own_index is None else _at(flat, self.own_index)

    def _dense_own(self, own: Any) -> Any:
        """[..., rows, rows]: a diagonal block for each pair of parts."""
        xp = namespace_of(own)
        identity = xp.eye(self.cell.hidden, dtype=own.dtype)
        if len(self.cell.parts) == 1:
            return own[..., 0, 0, :, None] * identity
        blocks = own[..., :, :, :, None] * identity  # [..., to, origin, unit, unit]
        return xp.moveaxis(blocks, -3, -2).reshape(*own.shape[:-3], self.cell.rows, self.cell.rows)

    def _dense(self, linear: LinearMap, values: Any) -> Any:
        """[rows, rows]: the transposed kernel at the rows and columns of its parts."""
        xp = namespace_of(values)
        kernel = linear.dense(values).T
        if len(self.cell.parts) == 1:
            return kernel
        zero = xp.zeros_like(kernel)
        reached = self.cell.gain_parts[linear.target]
        return xp.concat(
            [
                xp.concat(
                    [
                        kernel if to in reached and origin == linear.source else zero
                        for origin in self.cell.parts
                    ],
                    axis=1,
                )
                for to in self.cell.parts
            ],
            axis=0,
        )


def _stored_place(
    linear: LinearMap,
    source: NDArray[np.int64],
    unit: NDArray[np.int64],
    fits: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Where the weight from each source to each unit is stored; one past the last if nowhere."""
    if linear.pattern is None:
        return np.where(fits, source * linear.shape[1] + unit, linear.num_parameters)
    keys = linear.units.astype(np.int64) * linear.shape[0] + linear.rows
    wanted = unit * linear.shape[0] + source
    place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    found = fits & (keys[place] == wanted) if len(keys) else np.zeros(len(wanted), bool)
    return np.where(found, place, linear.num_parameters)


def _at(values: Any, index: Any) -> Any:
    """Values at places along the last axis, zero one past the last."""
    xp = namespace_of(values)
    zero = xp.zeros((*values.shape[:-1], 1), dtype=values.dtype)
    return _take(xp.concat([values, zero], axis=-1), index)


def _take(values: Any, index: Any) -> Any:
    return values[..., index_like(values, index)]
