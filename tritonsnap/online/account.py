"""`Account`: what a step of a network computes and keeps, by kind of network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.cell import Cell
from tritonsnap.online.dynamics import dynamics_pattern, preactivation_pattern
from tritonsnap.online.snap import SnAp
from tritonsnap.online.stack.crossing import (
    crossings,
    network_influence,
    placed,
    preactivation_columns,
    rows_of,
)
from tritonsnap.online.stack.feed_forward import FeedForward, Skip
from tritonsnap.online.stack.inputs import input_maps
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.unfactored.cell import UnfactoredCell
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.sparsity.coloring import color_rows
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import snap_pattern

_MOST_PARAMETERS = 1 << 18
"""Parameters up to which a learner's chunks are found."""


@dataclass(frozen=True)
class Product:
    """One masked product ``M * (D X)`` of a step.

    Attributes
    ----------
    groups
        The columns with equal supports; each may stand for many of equal parameters.
    dynamics
        Where D may be nonzero.
    carried
        Whether the result is an influence that the learner keeps.
    """

    groups: ColumnGroups
    dynamics: SparsityPattern
    carried: bool = True

    @property
    def nonzeros(self) -> int:
        """Entries of the result, for a row of the batch."""
        return int((self.groups.num_columns * self.groups.mask_sizes).sum())


class Influence(NamedTuple):
    """What SnAp-n keeps, and the products that carry it on.

    Attributes
    ----------
    mask : pattern [rows, columns]
        Where it may be nonzero. A column stands for all parameters of a unit that act through the
        same preactivation; of a cell that is not in factored form for one parameter.
    products
        The products of a step.
    """

    mask: SparsityPattern
    products: list[Product]


class Account(ABC):
    """What a network computes and keeps; numbers are of one step and one row of the batch.

    Attributes
    ----------
    title
        The network in words.
    rows, num_parameters
        Rows of the state that are remembered, and parameters.
    forward
        Multiply-adds of the forward pass.
    derivatives
        Multiply-adds that a step's Jacobians take, or the way down through layers.
    values
        Values of the immediate Jacobian that are written out, where it does not come as factors.
    colors
        Row colors of the immediate Jacobian.
    passes
        Derivative passes of a step; 0 where the Jacobians are known in closed form.
    backprop
        Multiply-adds of BPTT: forward, and back to the old state and the weights.
    remembered
        Values that BPTT keeps.
    """

    title: str
    rows: int
    num_parameters: int
    forward: int
    derivatives: int = 0
    values: int = 0
    colors: int
    passes: int = 0
    backprop: int
    remembered: int

    @abstractmethod
    def influence(self, order: int | None) -> Influence:
        """What SnAp-n keeps; for None, exact RTRL."""

    def learner(self, order: int | None) -> SnAp | None:
        """The learner that chooses how to go through time; None if it goes step by step.

        Raises
        ------
        OverflowError
            If the network is too large to find that out here.
        """
        return None

    def _learner_of(self, network: Any, order: int | None) -> SnAp:
        if self.num_parameters > _MOST_PARAMETERS:
            raise OverflowError(f"{self.num_parameters} parameters are too many")
        return SnAp(network, order)


class CellAccount(Account):
    """The account of a cell in factored form: nothing in it is as large as the parameters."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.title = (
            f"{type(cell).__name__} of {cell.hidden} units and {cell.inputs} inputs, "
            f"density {cell.density:g}"
        )
        self.rows, self.num_parameters = cell.rows, cell.num_parameters
        self.forward = _weights(cell)
        self.backprop = 3 * self.forward
        self.remembered = cell.rows * (1 + len(cell.targets)) + cell.num_sources
        if cell.own_parts:
            self.remembered += cell.hidden * len(cell.parts) ** 2
        self.colors = color_rows(preactivation_pattern(cell)).num_colors

    def influence(self, order: int | None) -> Influence:
        """What SnAp-n keeps, one column for all parameters of a unit and preactivation."""
        cell = self.cell
        dynamics = dynamics_pattern(cell)
        mask = snap_pattern(dynamics, preactivation_pattern(cell), order)
        segments = [number * cell.hidden for number in range(1, len(cell.targets))]
        groups = ColumnGroups.build(mask, mask, segments)
        return Influence(mask, [Product(_weighted(groups, _column_sizes(cell)), dynamics)])

    def learner(self, order: int | None) -> SnAp | None:
        """The learner, up to 2^18 parameters."""
        return self._learner_of(self.cell, order)


class UnfactoredAccount(Account):
    """The account of a cell whose Jacobians come as values."""

    def __init__(self, cell: UnfactoredCell) -> None:
        self.cell = cell
        self.title = f"{cell!r}"
        self.rows, self.num_parameters = cell.immediate_pattern.shape
        work = cell.work
        self.forward, self.derivatives, self.passes = work.step, work.jacobians, work.passes
        self.values = cell.immediate_pattern.nnz
        self.backprop = 4 * self.forward  # a step is computed again on the way back
        self.remembered = 2 * self.rows + cell.inputs
        self.colors = color_rows(cell.immediate_pattern).num_colors

    def influence(self, order: int | None) -> Influence:
        """What SnAp-n keeps, one column for each parameter."""
        dynamics = self.cell.dynamics_pattern
        mask = snap_pattern(dynamics, self.cell.immediate_pattern, order)
        return Influence(mask, [Product(ColumnGroups.build(mask, mask), dynamics)])

    def learner(self, order: int | None) -> SnAp | None:
        """The learner, up to 2^18 parameters."""
        return self._learner_of(self.cell, order)


class StackAccount(Account):
    """The account of a stack, the sum of its layers; exact ones with what crosses them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.cells = {n: CellAccount(c) for n, c in enumerate(stack.layers) if isinstance(c, Cell)}
        layers = ", ".join(_name(layer) for layer in stack.layers)
        how = "exact" if stack.exact else "layer by layer"
        self.title = f"Stack of {layers} with {stack.inputs} inputs, {how}"
        self.rows, self.num_parameters = stack.memory, stack.num_parameters
        between = [layer for layer in stack.layers if isinstance(layer, FeedForward)]
        read = [m for n, one in self.cells.items() if n for m in input_maps(one.cell)]
        self.forward = sum(_weights(layer) for layer in stack.layers if not isinstance(layer, Skip))
        self.derivatives = sum(m.shape[0] * m.shape[1] for m in read)
        self.derivatives += 2 * sum(_weights(layer) for layer in between)
        self.backprop = 3 * self.forward
        self.colors = max(one.colors for one in self.cells.values())
        self.remembered = stack.outputs + sum(
            self.cells[n].remembered if n in self.cells else size
            for n, size in enumerate(stack.sizes[:-1])
        )

    def influence(self, order: int | None) -> Influence:
        """What SnAp-n keeps: of each cell's own parameters; exact, of all below it, too."""
        stack, columns = self.stack, preactivation_columns(self.stack)
        own = {number: one.influence(order) for number, one in self.cells.items()}
        products = [product for one in own.values() for product in one.products]
        if not stack.exact:
            masks = [
                rows_of(stack, number) @ placed(one.mask, columns.places[number], columns.total)
                for number, one in own.items()
            ]
            return Influence(masks[0].union(*masks[1:]), products)
        sizes = np.concatenate([_column_sizes(layer) for layer in stack.layers])

        def product(plan: DsmmPlan, carried: bool) -> Product:
            return Product(_weighted(plan.groups, sizes), plan.dynamics, carried)

        mask = network_influence(stack, order, columns)
        for crossing in crossings(stack, columns, mask):
            if crossing is not None:
                products += [product(plan, carried=False) for plan in crossing.products]
                products += [] if crossing.plan is None else [product(crossing.plan, carried=True)]
        return Influence(mask, products)

    def learner(self, order: int | None) -> SnAp | None:
        """The learner, up to 2^18 parameters; an exact one goes step by step."""
        return None if self.stack.exact else self._learner_of(self.stack, order)


def account_of(network: Any) -> Account:
    """The account of a `Cell`, a `FunctionCell` or a `Stack`.

    Raises
    ------
    TypeError
        If it is none of them.
    """
    if isinstance(network, UnfactoredCell):
        return UnfactoredAccount(network)
    if isinstance(network, Cell):
        return CellAccount(network)
    if isinstance(network, Stack):
        return StackAccount(network)
    raise TypeError(
        f"`cell` must be a Cell, a FunctionCell or a Stack, got {type(network).__name__}"
    )


def _weights(layer: Cell | FeedForward) -> int:
    """Entries of all kernels: sparse ones are dense in the forward pass."""
    return sum(linear.shape[0] * linear.shape[1] for linear in layer.maps)


def _weighted(groups: ColumnGroups, counts: NDArray[np.int64]) -> ColumnGroups:
    """The same groups, each of whose columns stands for `counts` parameters."""
    total = np.concatenate([[0], np.cumsum(counts)])
    begin = groups.run_start
    return replace(
        groups, run_start=total[begin], run_length=total[begin + groups.run_length] - total[begin]
    )


def _column_sizes(layer: Cell | FeedForward | Skip) -> NDArray[np.int64]:
    """int64 [targets * units] or [outputs]: the parameters that a column stands for."""
    if isinstance(layer, Skip):
        return np.empty(0, np.int64)
    if isinstance(layer, Cell):
        targets, units = layer.targets, layer.hidden
    else:
        targets, units = ("output",), layer.outputs
    counts = np.zeros((len(targets), units), np.int64)
    for linear in layer.maps:
        number = targets.index(linear.target)
        if linear.pattern is None:
            counts[number] += linear.shape[0]
        else:
            counts[number] += np.bincount(linear.pattern.cols, minlength=units)
    return counts.ravel()


def _name(layer: Cell | FeedForward | Skip) -> str:
    if isinstance(layer, Skip):
        return f"Skip({layer.source!r})"
    units = layer.hidden if isinstance(layer, Cell) else layer.outputs
    return f"{type(layer).__name__}({units})"
