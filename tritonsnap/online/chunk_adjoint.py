"""Adjoints of groups of several rows, carried back through a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import (
    add_to_first,
    index_like,
    matmul,
    scan,
    take_or_zero,
    zero_where,
)
from tritonsnap.online.cell import Linearization, Params
from tritonsnap.online.chunk_groups import Gathered, Groups, Walked
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.ops import masked_dsmm

if TYPE_CHECKING:
    from tritonsnap.online.chunk import Stretch


class AdjointWeights(NamedTuple):
    """What the adjoints read of the parameters, once for all chunks of a sequence.

    Attributes
    ----------
    walked
        The weights of each target at the entries of D that walks read.
    gathered
        For each of the other groups the weights [G, 1, S, S] of each term of D^T.
    """

    walked: tuple[Any, ...]
    gathered: tuple[Any, ...]


class Path(NamedTuple):
    """What the adjoints ``[lambda | Phi^T]`` of some groups were.

    Attributes
    ----------
    emitted : [K, batch, G * parts * U, 1 + S]
        The rows of each group's own units, after each step.
    start : [batch, G, S, 1 + S]
        All rows, before the first step.
    """

    emitted: Any
    start: Any


def prepare_adjoint(
    chunking: Chunking, dynamics: DynamicsStructure, params: Params
) -> AdjointWeights:
    """Gather the weights."""
    walked: tuple[Any, ...] = ()
    if chunking.adjoint_dynamics is not None:
        walked = chunking.adjoint_dynamics.prepare(params, False)
    gathered = _gathered(chunking)
    if not gathered:
        return AdjointWeights(walked, ())
    terms = dynamics.dense_terms(params)
    return AdjointWeights(walked, tuple(_at_supports(terms, support) for _, support in gathered))


def _gathered(chunking: Chunking) -> list[tuple[Groups, Any]]:
    """The groups that are not walked, with their supports."""
    return [(g, g.way.support) for g in chunking.groups if isinstance(g.way, Gathered)]


def _at_supports(terms: tuple[Any, ...], support: Any) -> tuple[Any, ...]:
    """Of each term [rows, rows] the entries of the rows in each group, transposed."""
    stride = terms[0].shape[0] + 1
    xp = namespace_of(*terms)
    support = xp.astype(xp.asarray(index_like(terms[0], support)), xp.int32)
    index = support[:, None, None, :] * stride + support[:, None, :, None]
    gathered = []
    for term in terms:
        below = xp.concat([term, xp.zeros_like(term[:1])])
        bordered = xp.concat([below, xp.zeros_like(below[:, :1])], axis=1)
        gathered.append(take_or_zero(bordered.reshape(-1), index))
    return tuple(gathered)


def along_groups(
    chunking: Chunking, dynamics: DynamicsStructure, weights: AdjointWeights, stretch: Stretch
) -> list[Path]:
    """Carry the adjoints of all groups back through the chunk."""
    batch = stretch.delta.shape[1]
    ways: list[_Walks | _Dense] = [
        _Dense(one, support, dynamics, matrices)
        for (one, support), matrices in zip(_gathered(chunking), weights.gathered, strict=True)
    ]
    if chunking.adjoint is not None:
        ways.append(_Walks(chunking, weights.walked))

    linear = stretch.linear
    inputs = (linear.gains, linear.own, stretch.delta, stretch.resets)
    found: dict[int, Path] = {}
    for way in ways:  # one after the other: what a scan carries should fit into a cache

        def back(block: Any, inputs: Any, way: _Walks | _Dense = way) -> tuple[Any, Any]:
            gains, own, delta, reset = inputs
            block = way.with_delta(block, delta)
            step = Linearization(delta, gains, own, None)
            return way.back(block, step, reset), way.own_rows(block)

        block, emitted = scan(back, way.end(stretch.delta, batch), inputs, reverse=True)
        found |= way.paths(block, emitted)
    return [found[id(one)] for one in chunking.groups]


class _Dense:
    """Groups whose adjoint is carried back by dense products.

    With one term the weights serve the whole batch, and the adjoint is [G, S, batch, 1 + S]; else
    D^T is made for each row of the batch, and it is [G, batch, S, 1 + S].
    """

    def __init__(
        self, one: Groups, support: Any, dynamics: DynamicsStructure, weights: tuple[Any, ...]
    ) -> None:
        self.one = one
        self.support = support
        self.dynamics = dynamics
        self.weights = weights
        self.batch_axis = 2 if len(weights) == 1 else 1

    def _placed(self, rows: Any) -> Any:
        """Values [batch, G, S] in the order of the adjoint."""
        xp = namespace_of(rows)
        return xp.moveaxis(rows, 0, self.batch_axis)

    def end(self, delta: Any, batch: int) -> Any:
        xp = namespace_of(delta)
        num_groups, size = self.one.shape[:2]
        identity = xp.eye(size, 1 + size, k=1, dtype=delta.dtype)
        start = xp.broadcast_to(identity, (batch, num_groups, size, 1 + size))
        return xp.moveaxis(start, 0, self.batch_axis) + xp.zeros((1,), dtype=delta.dtype)

    def with_delta(self, block: Any, delta: Any) -> Any:
        return add_to_first(block, self._placed(take_or_zero(delta, self.support)))

    def own_rows(self, block: Any) -> Any:
        """The rows of each group's own units, still in the order of the adjoint."""
        num_groups, size = self.one.shape[:2]
        if self.one.unit_row is None:
            own = self.one.gain_row.shape[1] * self.one.gain_row.shape[2]
            return block[:, :own] if self.batch_axis == 2 else block[:, :, :own]
        xp = namespace_of(block)
        flat = xp.moveaxis(block, self.batch_axis, 0)
        flat = flat.reshape(flat.shape[0], num_groups * size, 1 + size)
        rows = take_or_zero(flat, self.one.unit_row.reshape(num_groups, -1), axis=-2)
        return xp.moveaxis(rows, 0, self.batch_axis)

    def back(self, block: Any, step: Linearization, reset: Any) -> Any:
        gains = [
            self._placed(take_or_zero(gain, self.support))
            for gain in self.dynamics.term_gains(step)
        ]
        if self.batch_axis == 2:
            wide = (gains[0][..., None] * block).reshape(*block.shape[:2], -1)
            before = matmul(self.weights[0][:, 0], wide).reshape(block.shape)
        else:
            matrix = None
            for gain, weight in zip(gains, self.weights, strict=True):
                part = gain[:, :, None, :] * weight
                matrix = part if matrix is None else matrix + part
            before = matmul(matrix, block)
        if reset is None:
            return before
        return zero_where(reset.reshape(-1, *(1,) * (3 - self.batch_axis)), before)

    def paths(self, block: Any, emitted: Any) -> dict[int, Path]:
        xp = namespace_of(block)
        emitted = xp.moveaxis(emitted, 1 + self.batch_axis, 1)
        emitted = emitted.reshape(*emitted.shape[:2], -1, emitted.shape[-1])
        return {id(self.one): Path(emitted, xp.moveaxis(block, self.batch_axis, 0))}


class _Walks:
    """All groups whose adjoint is walked: the influence of another plan, blocks [batch, R, W]."""

    def __init__(self, chunking: Chunking, weights: tuple[Any, ...]) -> None:
        assert chunking.adjoint is not None
        assert chunking.adjoint_dynamics is not None
        self.plan, self.dynamics, self.weights = (
            chunking.adjoint,
            chunking.adjoint_dynamics,
            weights,
        )
        self.groups = [(g, g.way) for g in chunking.groups if isinstance(g.way, Walked)]

    def end(self, delta: Any, batch: int) -> tuple[Any, ...]:
        xp = namespace_of(delta)
        blocks = []
        shapes = self.plan.packing_for(delta).shapes("x")
        for (_, way), shape in zip(self.groups, shapes, strict=True):
            place = index_like(delta, way.place)[:, None]
            identity = xp.astype(xp.arange(shape[-1])[None, :] == place + 1, delta.dtype)
            blocks.append(identity + xp.zeros((batch, 1, 1), dtype=delta.dtype))
        return tuple(blocks)

    def with_delta(self, blocks: tuple[Any, ...], delta: Any) -> tuple[Any, ...]:
        return tuple(
            add_to_first(block, take_or_zero(delta, way.row))
            for (_, way), block in zip(self.groups, blocks, strict=True)
        )

    def own_rows(self, blocks: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            take_or_zero(block, one.unit_row.reshape(-1), axis=-2)
            for (one, _), block in zip(self.groups, blocks, strict=True)
        )

    def back(self, blocks: tuple[Any, ...], step: Linearization, reset: Any) -> tuple[Any, ...]:
        d = self.dynamics.multiplied(self.weights, step, False)
        before = masked_dsmm(d, blocks, self.plan, form="values")
        if reset is None:
            return tuple(before)
        return tuple(zero_where(reset[:, None, None], block) for block in before)

    def paths(self, blocks: tuple[Any, ...], emitted: tuple[Any, ...]) -> dict[int, Path]:
        found = {}
        for (one, way), block, rows in zip(self.groups, blocks, emitted, strict=True):
            num_groups, size = one.shape[:2]
            if way.rows is not None:
                block = take_or_zero(block, way.rows.reshape(-1), axis=-2)
            found[id(one)] = Path(rows, block.reshape(-1, num_groups, size, block.shape[-1]))
        return found
