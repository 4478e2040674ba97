"""How an exact `Stack` goes through a stretch of time at once, found on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_choice import BlockCost, Ways
from tritonsnap.online.chunk_columns import Columns, Piece
from tritonsnap.online.chunk_structure import map_arrays
from tritonsnap.online.stack.crossing import network_influence, preactivation_columns
from tritonsnap.online.stack.exact_layout import Entries
from tritonsnap.online.stack.feed_forward import FeedForward, Skip
from tritonsnap.online.stack.network import Stack
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.compact import compact
from tritonsnap.plan.dsmm_plan import DsmmPlan

if TYPE_CHECKING:
    from tritonsnap.online.stack.snap import StackSnAp


@dataclass(frozen=True)
class LayerColumns:
    """The parameters of a layer, as products of what they feed and what they multiply.

    Attributes
    ----------
    pieces
        Its columns by maps, as those of one group.
    order : [1, columns] or None
        Where they lie among those of all pieces; None if they are in order.
    """

    pieces: tuple[Piece, ...]
    order: Any


@dataclass(frozen=True, eq=False)
class ExactChunking:
    """How an exact stack goes through a stretch of time at once.

    Attributes
    ----------
    steps
        Steps in a chunk.
    columns
        The parameters of each layer up to the highest cell; None for layers that have none.
    own, crossing
        For each cell where its influence, and that of all parameters below it, has entries.
    digest
        A hash of the content, equal in every process.
    host
        The chunking whose arrays lie on the host, where these are operands of a program.
    """

    steps: int
    columns: tuple[LayerColumns | None, ...]
    own: tuple[Entries | None, ...]
    crossing: tuple[Entries | None, ...]
    digest: str
    host: ExactChunking | None = field(default=None, repr=False)

    @classmethod
    def build(cls, steps: int, learner: StackSnAp, target: str) -> ExactChunking:
        """Find out what chunks of so many steps need."""
        own = [None if one is None else one.plan for one in learner.learners]
        layers = list(zip(learner.stack.layers, learner.learners, strict=True))
        highest = max(number for number, plan in enumerate(own) if plan is not None)
        return cls(
            steps,
            tuple(_columns(*layer) for layer in layers[: highest + 1]),
            tuple(Entries.of(plan, target) for plan in own),
            tuple(Entries.of(plan, target) for plan in learner.crossing_plans),
            f"{learner.stack.digest} {target} {steps}",
        )

    def fits(self, learner: StackSnAp) -> bool:
        """Whether it is one of this learner's."""
        return learner.has_chunks and self.digest.startswith(learner.stack.digest)

    @property
    def parts(self) -> tuple[Any, ...]:
        """All that holds index arrays."""
        return self.columns, self.own, self.crossing

    def with_arrays(self, arrays: Iterator[Any]) -> ExactChunking:
        """The same chunking reading other arrays, as operands of a program."""
        columns, own, crossing = map_arrays(lambda _: next(arrays), self.parts)
        return replace(self, columns=columns, own=own, crossing=crossing, host=self)


def _columns(layer: Any, learner: Any) -> LayerColumns | None:
    if isinstance(layer, Cell):
        every = np.arange(layer.num_parameters)[None]
        return LayerColumns(*Columns(learner.structure, layer, every).pieces(gather=True))
    if not isinstance(layer, FeedForward) or layer.num_parameters == 0:
        return None
    unit = np.concatenate([linear.units for linear in layer.maps])
    count = np.bincount(unit, minlength=layer.outputs)
    by_unit = np.argsort(unit, kind="stable")
    rank = np.empty(len(unit), np.int64)
    rank[by_unit] = np.arange(len(unit)) - np.repeat(np.cumsum(count) - count, count)
    source = np.full((1, layer.outputs, count.max()), len(unit), np.int64)
    source[0, unit, rank] = np.arange(len(unit))
    piece = Piece(target=0, first=0, count=int(count.max()), source=compact(source))
    return LayerColumns((piece,), compact(unit * piece.count + rank)[None])


class ExactChunkings(Ways[ExactChunking]):
    """The ways of the learner of an exact stack."""

    def __init__(self, learner: StackSnAp) -> None:
        super().__init__()
        self.learner = learner
        self._costs: dict[str, BlockCost] = {}

    def by_layer(self, target: str) -> list[list[BlockCost]]:
        """The predicted cost of the whole network."""
        if target not in self._costs:
            self._costs[target] = _cost(self.learner, target)
        return [[self._costs[target]]]

    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> ExactChunking:
        """Chunks of so many steps; see `Ways.make`."""
        return ExactChunking.build(steps, self.learner, target)


def is_saturated(stack: Stack, order: int | None) -> bool:
    """Whether SnAp-n keeps all that exact RTRL keeps."""
    if order is None:
        return True
    columns = preactivation_columns(stack)
    kept, everything = (network_influence(stack, n, columns) for n in (order, None))
    return kept.nnz == everything.nnz


def _cost(learner: StackSnAp, target: str) -> BlockCost:
    """The predicted cost of the influence of a whole network."""
    stack, price = learner.stack, calibrated_target(target)
    plans = [one.plan for one in learner.learners if one is not None]
    products: list[DsmmPlan] = []
    for crossing in learner.crossings:
        if crossing is not None:
            plans += [] if crossing.plan is None else [crossing.plan]
            products += crossing.products
    stepping = sum(_product(plan, target) for plan in (*plans, *products))
    stepping += 2 * price.element * sum(plan.mask.nnz for plan in (*plans, *products))
    step, chunk, values, kept = 0.0, 0.0, 0, 0
    for top, cell in enumerate(stack.layers):
        if not isinstance(cell, Cell):
            continue
        for below in stack.layers[: top + 1]:
            if isinstance(below, Skip):
                continue
            weights = sum(linear.shape[0] * linear.shape[1] for linear in below.maps)
            width, targets = below.outputs, 1
            if isinstance(below, Cell):
                width, targets = below.rows, len(below.targets)
                before = sum(c.rows for c in stack.layers[: top + 1] if isinstance(c, Cell))
                chunk += price.multiply_add * cell.rows * before * below.num_parameters
            kept += cell.rows * width * (1 + targets)
            values += cell.rows * below.num_parameters
            step += cell.rows * price.multiply_add * (weights + below.num_parameters)
            step += cell.rows * price.element * width * (2 + 3 * targets) + 2 * price.product
            chunk += len(below.maps) * price.product
    chunk += 8 * price.element * values
    regime = Regime.DENSE if learner.has_chunks else None
    return BlockCost(regime, stepping, step, chunk, values, kept)


def _product(plan: DsmmPlan, target: str) -> float:
    """The predicted nanoseconds of a product."""
    packing = plan.packing(target)
    costs = packing.costs.by_regime
    return float(sum(costs[block.regime][block.groups].sum() for block in packing.blocks))
