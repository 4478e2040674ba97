"""Which blocks of an influence to chunk, and by how many steps, by predicted cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tritonsnap.online.chunk_columns import Columns, can_chunk
from tritonsnap.online.chunk_groups import BlockRows, adjoint_plan, gathered_step, split_by_rows
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.plan.blocks import ElementwiseBlock, Regime, WalkBlock
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.cost import Target
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Container

    from tritonsnap.online.snap import SnAp

_STEPS = (16, 32, 64, 128)
_LEAST_STEPS = 8
_SMALL = 1 << 22
"""Values that a chunk may keep in any case; beyond, no more than the influence has."""


@dataclass(frozen=True)
class BlockCost:
    """Predicted nanoseconds of a block for each row of the batch, float32.

    Attributes
    ----------
    regime
        How its adjoint is stepped; None where it cannot be chunked.
    stepping
        A step, with its gradient.
    chunk_step, chunk
        What a chunk costs for each of its steps, and once.
    values, kept
        Values of the influence; values that a chunk keeps for each of its steps.
    """

    regime: Regime | None
    stepping: float
    chunk_step: float
    chunk: float
    values: int
    kept: int

    def chunked(self, steps: int) -> float:
        """A step of a chunk of so many; infinite where it cannot be chunked."""
        if self.regime is None:
            return math.inf
        return self.chunk_step + self.chunk / steps


class Chunkings:
    """The ways of one learner through sequences, each found once."""

    def __init__(self, structure: FactorStructure, dynamics: DynamicsStructure) -> None:
        self.structure = structure
        self.dynamics = dynamics
        self._costs: dict[str, list[BlockCost]] = {}
        self._made: dict[tuple[object, ...], Chunking | None] = {}

    def find(
        self, chunk: int | Literal["auto"], target: str, length: int, batch: int
    ) -> Chunking | None:
        """How to go through a sequence; None for step by step."""
        if chunk == "auto" and length < 2 * _LEAST_STEPS:
            return None
        wanted = (chunk, target, length, batch) if chunk == "auto" else (chunk, target)
        if wanted not in self._made:
            costs = self.costs(target)
            if chunk == "auto":
                steps, chosen = _cheapest(costs, length, batch, calibrated_target(target).block)
            else:
                steps = int(chunk)
                chosen = {n: c.regime for n, c in enumerate(costs) if c.regime is not None}
            self._made[wanted] = self._build(target, steps, chosen)
        return self._made[wanted]

    def costs(self, target: str) -> list[BlockCost]:
        """The predicted costs of each block."""
        if target not in self._costs:
            packing = self.structure.plan.packing(target)
            price = calibrated_target(target)
            self._costs[target] = [
                _block_cost(self.structure, self.dynamics, packing, number, price)
                for number in range(len(packing.blocks))
            ]
        return self._costs[target]

    def _build(self, target: str, steps: int, chosen: dict[int, Regime]) -> Chunking | None:
        if not chosen:
            return None
        key = (target, steps, *sorted(chosen.items()))
        if key not in self._made:
            packing = self.structure.plan.packing(target)
            self._made[key] = Chunking.build(steps, self.structure, self.dynamics, packing, chosen)
        return self._made[key]


def _cheapest(
    costs: list[BlockCost], length: int, batch: int, overhead: float
) -> tuple[int, dict[int, Regime]]:
    """The number of steps and the blocks whose predicted time is least; none to go by steps."""
    values = sum(cost.values for cost in costs) * batch
    total = sum(batch * cost.stepping + overhead for cost in costs)
    best: tuple[float, int, dict[int, Regime]] = (total, 1, {})
    for steps in sorted({_even(length, steps) for steps in _STEPS}):
        chosen: dict[int, Regime] = {}
        total, kept = 0.0, 0
        for numbers in _together(costs):
            stepping = batch * sum(costs[number].stepping for number in numbers)
            chunked = batch * sum(costs[number].chunked(steps) for number in numbers)
            for number in numbers if chunked < stepping else ():
                regime = costs[number].regime
                assert regime is not None
                chosen[number] = regime
                kept += costs[number].kept * batch * steps
            total += min(stepping, chunked) + len(numbers) * overhead
        if kept <= max(_SMALL, values) and steps >= _LEAST_STEPS and total < 0.97 * best[0]:
            best = (total, steps, chosen)
    return best[1], best[2]


def _together(costs: list[BlockCost]) -> list[list[int]]:
    """Blocks that are chunked together or not at all.

    All elementwise ones are: to step one of them beside the others costs more than its values.
    """
    elementwise = [n for n, cost in enumerate(costs) if cost.regime == Regime.ELEMENTWISE]
    others = [[n] for n, cost in enumerate(costs) if cost.regime != Regime.ELEMENTWISE]
    return [elementwise, *others] if elementwise else others


def _even(length: int, steps: int) -> int:
    """About `steps`, such that the chunks of a sequence are equal; there are two at least."""
    return math.ceil(length / max(2, math.ceil(length / steps)))


def _block_cost(
    structure: FactorStructure,
    dynamics: DynamicsStructure,
    packing: Packing,
    number: int,
    price: Target,
) -> BlockCost:
    block = packing.blocks[number]
    values = int(np.prod(block.mask_shape))
    product = packing.costs.by_regime[block.regime][block.groups].sum()
    stepping = float(product) + 2 * price.element * values
    if not can_chunk(structure, block):
        return BlockCost(None, stepping, 0.0, 0.0, values, 0)
    columns = Columns(structure, dynamics.cell, block.columns.index(np))
    num_groups, num_units = columns.units.shape
    width = block.columns.width
    if isinstance(block, ElementwiseBlock):
        pieces, order = columns.pieces(gather=False)
        entries = num_groups * sum(piece.count for piece in pieces)
        if order is not None:  # each column reads a source of its own
            stepping += 2 * price.element * values
        return BlockCost(
            Regime.ELEMENTWISE,
            stepping,
            chunk_step=8 * price.element * num_groups + 2 * price.multiply_add * entries,
            chunk=values * (4 * price.element + (0 if order is None else price.gather)),
            values=values,
            kept=4 * num_groups,
        )
    walks = adjoint_plan(packing, [number]).packing(packing.target.name)
    walk = float(walks.costs.by_regime[Regime.WALK].sum())
    if not price.by_row:  # classes of rows are put together, and taken in the order of the block
        walk += 2 * price.element * float(np.prod(walks.shapes("x")[0]))
    rows = BlockRows.of(block, packing.dynamics)
    terms, num_lasting = dynamics.num_terms, rows.lasting.sum(axis=1)
    gathered = 0.0
    largest, lasting = np.empty(num_groups, np.int64), np.empty(num_groups, np.int64)
    for members in split_by_rows(rows, terms, price):
        size, last = int(rows.sizes[members].max()), int(num_lasting[members].max())
        largest[members], lasting[members] = size, last
        gathered += len(members) * gathered_step(size, last, terms, price)
    shared = terms == 1  # the whole batch by one product
    products = num_groups * price.product
    regime = Regime.DENSE if gathered + (0 if shared else products) <= walk else Regime.WALK
    if regime == Regime.WALK:
        largest[:] = lasting[:] = rows.sizes.max()
    length = 1 + largest
    pieces, order = columns.pieces(gather=True)
    emitted = int(length.sum()) * num_units * len(dynamics.cell.parts)
    targets = len({piece.target for piece in pieces})
    count = sum(piece.count for piece in pieces)
    gathered_sources = sum(piece.count for piece in pieces if piece.source is not None)
    moved = (order is not None) + 2 * isinstance(block, WalkBlock)
    return BlockCost(
        regime,
        stepping,
        chunk_step=(walk if regime == Regime.WALK else gathered)
        + (0 if shared or regime == Regime.WALK else products)
        + price.element * emitted * (2 + 2 * targets)
        + price.multiply_add * num_units * count * float(length.sum())
        + price.element * num_groups * num_units * gathered_sources,
        chunk=num_groups * price.product
        + price.multiply_add * width * float((largest * (1 + lasting)).sum())
        + values * (4 * price.element + moved * price.element),
        values=values,
        kept=emitted,
    )


def predicted_seconds(
    learner: SnAp, chunk: int | Literal["auto"], target: str, length: int, batch: int
) -> float:
    """What the influence of a sequence is predicted to take, without the forward pass."""
    costs = learner.chunkings.costs(target)
    overhead = calibrated_target(target).block
    chosen: Container[int]
    if chunk == "auto":
        steps, chosen = _cheapest(costs, length, batch, overhead)
    else:
        steps = int(chunk)
        chosen = {n for n, c in enumerate(costs) if steps > 1 and c.regime is not None}
    each = sum(
        batch * (cost.chunked(steps) if number in chosen else cost.stepping) + overhead
        for number, cost in enumerate(costs)
    )
    return length * each * 1e-9
