"""The influence that crosses layers of a `Stack`: that of all parameters below a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.online.cell import Cell
from tritonsnap.online.dynamics import (
    dynamics_pattern,
    immediate_pattern,
    preactivation_pattern,
)
from tritonsnap.online.stack.feed_forward import FeedForward, Skip
from tritonsnap.online.stack.inputs import input_jacobian, input_pattern
from tritonsnap.online.stack.network import Stack, on_rows
from tritonsnap.ops.masked_dsmm import masked_dsmm
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import snap_pattern


@dataclass(frozen=True, eq=False)
class Crossing:
    """How the influence of the parameters below reaches one layer.

    For a cell ``F_t = M * (D_t F_{t-1}) + sum_k E_k K_k``, with F the influence on its state of all
    parameters below it, K_k that on the signals it reads, and E_k the derivative of its state in
    them. Without memory the first part is missing.

    Attributes
    ----------
    sources
        The layers whose signals are read and carry influence.
    products
        The plan of each E_k K_k.
    plan
        The plan of F, for a cell.
    """

    sources: tuple[int, ...]
    products: tuple[DsmmPlan, ...]
    plan: DsmmPlan | None

    def arriving(self, jacobians: Sequence[Any], influences: Sequence[Any]) -> Any:
        """``sum_k E_k K_k`` as flat values."""
        total = None
        for jacobian, influence, plan in zip(jacobians, influences, self.products, strict=True):
            part = masked_dsmm(jacobian, influence, plan, form="dense")
            total = part if total is None else total + part
        return total


class Columns(NamedTuple):
    """What the columns of a stack's influence stand for.

    Attributes
    ----------
    own
        For each layer where its own columns act on it at once: [rows or outputs, columns].
    places
        For each layer the place of its columns among those of all layers.
    total
        The columns of all layers.
    """

    own: tuple[SparsityPattern, ...]
    places: tuple[slice, ...]
    total: int

    @classmethod
    def of(cls, own: Sequence[SparsityPattern]) -> Columns:
        """Columns that lie layer by layer."""
        ends = list(accumulate(pattern.shape[1] for pattern in own))
        places = [slice(e - p.shape[1], e) for e, p in zip(ends, own, strict=True)]
        return cls(tuple(own), tuple(places), ends[-1])


def parameter_columns(stack: Stack) -> Columns:
    """A column for each parameter: what learners carry."""
    own = []
    for layer, size in zip(stack.layers, stack.sizes[1:], strict=True):
        if isinstance(layer, Skip):
            own.append(_empty((size, 0)))
        else:
            own.append(
                immediate_pattern(layer) if isinstance(layer, Cell) else layer.immediate_pattern
            )
    return Columns.of(own)


def preactivation_columns(stack: Stack) -> Columns:
    """A column for all parameters that act through a preactivation of a unit, or on an output."""
    own = []
    for layer, size in zip(stack.layers, stack.sizes[1:], strict=True):
        if isinstance(layer, Cell):
            own.append(preactivation_pattern(layer))
        else:
            own.append(
                _empty((size, 0)) if isinstance(layer, Skip) else SparsityPattern.identity(size)
            )
    return Columns.of(own)


class _Edge(NamedTuple):
    """A layer whose signal another one reads, and where the derivative may be nonzero."""

    source: int
    jacobian: SparsityPattern


def crossings(stack: Stack, columns: Columns, mask: SparsityPattern) -> tuple[Crossing | None, ...]:
    """The crossing of each layer; None where no parameter below influences it.

    Parameters
    ----------
    stack
        The network.
    columns
        What the columns of the influence stand for.
    mask : pattern [memory, columns]
        Of the influence, from `network_influence`.
    """
    influences = _influence_patterns(stack, columns, mask)
    found: list[Crossing | None] = []
    for number, layer in enumerate(stack.layers):
        below = np.arange(columns.places[number].start)
        mask = influences[number].take_columns(below)
        if not mask.nnz:
            found.append(None)
            continue
        edges = [edge for edge in _edges(stack, number) if influences[edge.source].nnz]
        found.append(
            Crossing(
                sources=tuple(edge.source for edge in edges),
                products=tuple(
                    DsmmPlan(influences[edge.source].take_columns(below), mask, edge.jacobian)
                    for edge in edges
                ),
                plan=DsmmPlan(mask, mask, dynamics_pattern(layer))
                if isinstance(layer, Cell)
                else None,
            )
        )
    return tuple(found)


def edge_jacobian(stack: Stack, number: int, source: int, weights: Any, moment: Any) -> Any:
    """The derivative of a layer's state (or output) in that of a layer whose signal it reads.

    Parameters
    ----------
    stack
        The network.
    number, source
        The layer and the one that it reads.
    weights
        Of the layer, from `Stack.weights_down`.
    moment
        Of the layer, from `Stack.linearize`.

    Returns
    -------
    [..., rows, rows of the source]
    """
    layer = stack.layers[number]
    if isinstance(layer, Cell):
        jacobian = input_jacobian(layer, weights, moment.gains)
    elif isinstance(layer, FeedForward):
        jacobian = layer.jacobian(weights, moment)
    else:
        xp = namespace_of(moment)
        place = _place_in_skip(stack, number, source)
        jacobian = xp.eye(stack.sizes[number + 1], dtype=moment.dtype)[:, place]
    read = stack.layers[source]
    return on_rows(read, jacobian) if isinstance(read, Cell) else jacobian


def _edges(stack: Stack, number: int) -> list[_Edge]:
    """The layers that a layer reads; the input is none."""
    layer = stack.layers[number]
    edges = []
    for signal in stack.sources(number):
        if signal == 0:
            continue
        source = signal - 1
        if isinstance(layer, Cell):
            pattern = input_pattern(layer)
        elif isinstance(layer, FeedForward):
            pattern = layer.jacobian_pattern
        else:
            identity = SparsityPattern.identity(stack.sizes[number + 1])
            pattern = identity.take_columns(
                np.arange(stack.sizes[number + 1])[_place_in_skip(stack, number, source)]
            )
        read = stack.layers[source]
        if isinstance(read, Cell):
            pattern = placed(pattern, slice(read.output.start, read.output.stop), read.rows)
        edges.append(_Edge(source, pattern))
    return edges


def _place_in_skip(stack: Stack, number: int, source: int) -> slice:
    """Where the numbers of a signal lie in what a skip gives."""
    layer = stack.layers[number]
    assert isinstance(layer, Skip)
    size = stack.sizes[source + 1]
    begin = stack.sizes[number] if layer.how == "concatenate" and source != number - 1 else 0
    return slice(begin, begin + size)


def network_influence(stack: Stack, order: int | None, columns: Columns) -> SparsityPattern:
    """Where all parameters may influence the states of all cells: [memory, columns].

    That of SnAp-n for the whole network, whose dynamics are the union of all paths from state to
    state.
    """
    dynamics, immediate = _patterns_of_a_step(stack, columns)
    return snap_pattern(dynamics, immediate, order)


def _influence_patterns(
    stack: Stack, columns: Columns, mask: SparsityPattern
) -> list[SparsityPattern]:
    """For each layer where all parameters may influence its state, or output: [rows, columns]."""
    influences: list[SparsityPattern] = []
    for number, layer in enumerate(stack.layers):
        if isinstance(layer, Cell):
            influences.append(rows_of(stack, number).transpose() @ mask)
        else:
            influences.append(_through(stack, number, influences, _own_immediate(columns, number)))
    return influences


def _patterns_of_a_step(stack: Stack, columns: Columns) -> tuple[SparsityPattern, SparsityPattern]:
    """Where ``ds_t/ds_{t-1}`` and ``ds_t/dtheta`` of the whole network may be nonzero."""
    past: list[SparsityPattern] = []
    present: list[SparsityPattern] = []
    for number, layer in enumerate(stack.layers):
        own = _own_immediate(columns, number)
        remembered = _empty((own.shape[0], stack.memory))
        if isinstance(layer, Cell):
            remembered = placed(dynamics_pattern(layer), stack.places[number], stack.memory)
        past.append(_through(stack, number, past, remembered))
        present.append(_through(stack, number, present, own))
    cells = [number for number, layer in enumerate(stack.layers) if isinstance(layer, Cell)]
    first, *rest = (rows_of(stack, number) @ past[number] for number in cells)
    dynamics = first.union(*rest)
    first, *rest = (rows_of(stack, number) @ present[number] for number in cells)
    return dynamics, first.union(*rest)


def _through(
    stack: Stack, number: int, below: list[SparsityPattern], own: SparsityPattern
) -> SparsityPattern:
    """What reaches a layer through what it reads, and its own."""
    return own.union(*(edge.jacobian @ below[edge.source] for edge in _edges(stack, number)))


def _own_immediate(columns: Columns, number: int) -> SparsityPattern:
    """Where a layer's own parameters act on it at once, among the columns of all layers."""
    return placed(columns.own[number], columns.places[number], columns.total)


def rows_of(stack: Stack, number: int) -> SparsityPattern:
    """[memory, rows]: puts the rows of a cell among those of all cells."""
    place = stack.places[number]
    return SparsityPattern.identity(stack.memory).take_columns(np.arange(place.start, place.stop))


def placed(pattern: SparsityPattern, place: slice, total: int) -> SparsityPattern:
    """The pattern with its columns put at a place among `total` columns."""
    kinds = np.full(total, pattern.num_kinds)  # one kind more, without rows
    kinds[place] = pattern.column_kind
    indptr = np.append(pattern.support_indptr, pattern.support_indptr[-1])
    shape = (pattern.shape[0], total)
    return SparsityPattern.from_columns(shape, indptr, pattern.support_rows, kinds)


def _empty(shape: tuple[int, int]) -> SparsityPattern:
    return SparsityPattern.from_coo(np.empty(0, np.int64), np.empty(0, np.int64), shape)
