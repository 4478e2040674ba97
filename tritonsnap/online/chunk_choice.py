"""Which blocks of an influence to chunk, and by how many steps, by predicted cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from tritonsnap.online.chunk_columns import Columns, can_chunk, joined_columns
from tritonsnap.online.chunk_groups import BlockRows, adjoint_plan, gathered_step, split_by_rows
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.online.learner import check_chunk
from tritonsnap.plan.blocks import ElementwiseBlock, Regime, WalkBlock
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.cost import Target
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing

if TYPE_CHECKING:
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


Way = TypeVar("Way")


class Ways(ABC, Generic[Way]):
    """The ways of one learner through sequences, each found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Way | None] = {}

    def find_for(self, chunk: Any, packing: Packing, xs: Any) -> Way | None:
        """How to go through `xs` [T, batch, inputs]; see `Learner.chunking`."""
        check_chunk(chunk)
        if chunk == 1 or packing.target.canonical:
            if chunk not in ("auto", 1):
                raise ValueError(f"`chunk` must be 'auto' or 1 for tensors on a GPU, got {chunk!r}")
            return None
        return self.find(chunk, packing.target.name, *xs.shape[:2])

    def find(
        self, chunk: int | Literal["auto"], target: str, length: int, batch: int
    ) -> Way | None:
        """How to go through a sequence; None for step by step."""
        if chunk == "auto" and length < 2 * _LEAST_STEPS:
            return None
        wanted = (chunk, target, length, batch) if chunk == "auto" else (chunk, target)
        if wanted not in self._found:
            steps, chosen = self.choose(chunk, target, length, batch)
            self._found[wanted] = self.make(target, steps, chosen) if steps > 1 else None
        return self._found[wanted]

    def choose(
        self, chunk: int | Literal["auto"], target: str, length: int, batch: int
    ) -> tuple[int, list[dict[int, Regime]]]:
        """The steps of a chunk, the same for all layers, and which blocks of each are chunked.

        "auto" gives those whose predicted time is least; 1 and none at all to go step by step.
        """
        layers = self.by_layer(target)
        if chunk == "auto":
            return _cheapest(layers, length, batch, self.price(target).block)
        chosen = [_possible(costs) for costs in layers]
        return int(chunk) if any(chosen) else 1, chosen

    def price(self, target: str) -> Target:
        """What operations take, by which ways are chosen."""
        return calibrated_target(target)

    @abstractmethod
    def by_layer(self, target: str) -> list[list[BlockCost]]:
        """The predicted costs of the blocks of each layer with memory."""

    @abstractmethod
    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> Way:
        """Chunks of so many steps, of the blocks `chosen` of each layer; others are stepped."""


class Chunkings(Ways[Chunking]):
    """The ways of the learner of a cell, by `price` or else by this machine's."""

    walks: ClassVar[bool] = True
    """Whether adjoints may be walked."""

    def __init__(
        self,
        structure: FactorStructure,
        dynamics: DynamicsStructure,
        price: Target | None = None,
    ) -> None:
        super().__init__()
        self.structure = structure
        self.dynamics = dynamics
        self._price = price
        self._costs: dict[str, list[BlockCost]] = {}
        self._made: dict[tuple[object, ...], Chunking] = {}

    def by_layer(self, target: str) -> list[list[BlockCost]]:
        """The predicted costs of each block, of the only layer."""
        return [self.costs(target)]

    def packings_for(self, target: str) -> list[Packing]:
        """The packings of all devices that go the same way, aligned."""
        return [self.structure.plan.packing(target)]

    def price(self, target: str) -> Target:
        """What operations take, by which ways are chosen."""
        return self._price or super().price(target)

    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> Chunking:
        """Chunks of so many steps; see `Ways.make`."""
        (own,) = chosen
        key = (target, steps, *sorted(own.items()))
        if key not in self._made:
            packing = self.structure.plan.packing(target)
            self._made[key] = Chunking.build(steps, self.structure, self.dynamics, packing, own)
        return self._made[key]

    def costs(self, target: str) -> list[BlockCost]:
        """The predicted costs of each block."""
        if target not in self._costs:
            packings, price = self.packings_for(target), self.price(target)
            self._costs[target] = [
                _block_cost(self.structure, self.dynamics, packings, number, price, self.walks)
                for number in range(len(packings[0].blocks))
            ]
        return self._costs[target]


class ShareChunkings(Chunkings):
    """The ways of a device that holds some columns of `whole`: as many steps at once on all.

    Which of its blocks are chunked is a device's own matter.
    """

    def __init__(
        self, structure: FactorStructure, dynamics: DynamicsStructure, whole: Chunkings
    ) -> None:
        super().__init__(structure, dynamics)
        self.whole = whole

    def choose(
        self, chunk: int | Literal["auto"], target: str, length: int, batch: int
    ) -> tuple[int, list[dict[int, Regime]]]:
        """The steps that the whole goes at once, and which blocks are chunked."""
        steps, _ = self.whole.choose(chunk, target, length, batch)
        costs = self.costs(target)
        if chunk != "auto" or steps == 1:
            return steps, [_possible(costs) if steps > 1 else {}]
        _, chosen = _faster_chunked(costs, steps, batch, self.price(target).block)
        return steps, [chosen]


def _possible(costs: list[BlockCost]) -> dict[int, Regime]:
    """All blocks of a layer that can be chunked."""
    return {n: cost.regime for n, cost in enumerate(costs) if cost.regime is not None}


def _cheapest(
    layers: list[list[BlockCost]], length: int, batch: int, overhead: float
) -> tuple[int, list[dict[int, Regime]]]:
    every = [cost for costs in layers for cost in costs]
    values = sum(cost.values for cost in every) * batch
    least = sum(batch * cost.stepping + overhead for cost in every)
    best: tuple[int, list[dict[int, Regime]]] = (1, [{} for _ in layers])
    for steps in sorted({_even(length, steps) for steps in _STEPS}):
        found = [_faster_chunked(costs, steps, batch, overhead) for costs in layers]
        total = sum(layer_total for layer_total, _ in found)
        chosen = [of_layer for _, of_layer in found]
        kept = sum(
            costs[number].kept * batch * steps
            for costs, of_layer in zip(layers, chosen, strict=True)
            for number in of_layer
        )
        if kept <= max(_SMALL, values) and steps >= _LEAST_STEPS and total < 0.97 * least:
            least, best = total, (steps, chosen)
    return best


def _faster_chunked(
    costs: list[BlockCost], steps: int, batch: int, overhead: float
) -> tuple[float, dict[int, Regime]]:
    """The predicted time of a step, and the blocks of a layer that chunks make faster."""
    chosen: dict[int, Regime] = {}
    total = 0.0
    for numbers in _together(costs):
        stepping = batch * sum(costs[number].stepping for number in numbers)
        chunked = batch * sum(costs[number].chunked(steps) for number in numbers)
        for number in numbers if chunked < stepping else ():
            regime = costs[number].regime
            assert regime is not None
            chosen[number] = regime
        total += min(stepping, chunked) + len(numbers) * overhead
    return total, chosen


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
    packings: list[Packing],
    number: int,
    price: Target,
    walks: bool,
) -> BlockCost:
    packing, blocks = packings[0], [one.blocks[number] for one in packings]
    block = blocks[0]
    values = int(np.prod(block.mask_shape))
    product = packing.costs.by_regime[block.regime][block.groups].sum()
    stepping = float(product) + 2 * price.element * values
    if not all(can_chunk(structure, one) for one in blocks):
        return BlockCost(None, stepping, 0.0, 0.0, values, 0)
    columns = Columns(structure, dynamics.cell, joined_columns(blocks))
    num_groups, num_units = block.columns.num_groups, columns.units.shape[1]
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
    walk = _walk_step(packing, number, price) if walks else math.inf
    filled = np.any(columns.inside[:num_groups], axis=1)
    rows = BlockRows.of(block, packing.dynamics).with_columns(filled)
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


def _walk_step(packing: Packing, number: int, price: Target) -> float:
    """Nanoseconds that walks take to carry the adjoint of a block one step back."""
    walks = adjoint_plan(packing, [number]).packing(packing.target.name)
    step = float(walks.costs.by_regime[Regime.WALK].sum())
    if not price.by_row:  # classes of rows are put together, and taken in the order of the block
        step += 2 * price.element * float(np.prod(walks.shapes("x")[0]))
    return step


def predicted_seconds(
    learner: SnAp, chunk: int | Literal["auto"], target: str, length: int, batch: int
) -> float:
    """What the influence of a sequence is predicted to take, without the forward pass."""
    layers = learner.chunkings.by_layer(target)
    overhead = learner.chunkings.price(target).block
    steps, chosen = learner.chunkings.choose(chunk, target, length, batch)
    each = sum(
        batch * (cost.chunked(steps) if steps > 1 and number in of_layer else cost.stepping)
        + overhead
        for costs, of_layer in zip(layers, chosen, strict=True)
        for number, cost in enumerate(costs)
    )
    return length * each * 1e-9
