"""Adjoints of groups of several rows, carried back through a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import (
    add_to_first,
    index_like,
    matmul,
    scan,
    take,
    take_or_zero,
    zero_where,
)
from tritonsnap.online.cell import Linearization, Params
from tritonsnap.online.chunk_groups import Gathered, Groups, Walked
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.online.trees import map_tree
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
    """What the adjoints of some groups were.

    Attributes
    ----------
    adjoint : [K, batch, G * parts * U]
        lambda of each group's own rows, after each step.
    first_adjoint : [batch, G, S]
        lambda of all rows, before the first step.
    phi : [K, batch, G * parts * U, S]
        As `adjoint`, of Phi^T.
    first : [batch, G, P, S]
        The first P rows of Phi^T, before the first step; the others are zero.
    """

    adjoint: Any
    first_adjoint: Any
    phi: Any
    first: Any


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
    return AdjointWeights(walked, tuple(_at_supports(terms, way.support) for _, way in gathered))


def _gathered(chunking: Chunking) -> list[tuple[Groups, Gathered]]:
    """The groups that are not walked."""
    return [(g, g.way) for g in chunking.groups if isinstance(g.way, Gathered)]


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


class _Steps(NamedTuple):
    """What dense products read of each step; a row of zeros behind those of the state.

    Attributes
    ----------
    gains : tuple of [K, rows + 1, batch]
        What the rows of each term of D are multiplied by.
    delta : [K, rows + 1, batch]
        The gradient of each step's loss.
    resets : bool [K, batch] or None
        As in `Stretch`.
    """

    gains: tuple[Any, ...]
    delta: Any
    resets: Any

    @classmethod
    def of(cls, dynamics: DynamicsStructure, stretch: Stretch) -> _Steps:
        gains = dynamics.term_gains(stretch.linear)
        return cls(tuple(map(_by_row, gains)), _by_row(stretch.delta), stretch.resets)


def _by_row(values: Any) -> Any:
    """[K, rows + 1, batch], of values [K, batch, rows]."""
    xp = namespace_of(values)
    values = xp.swapaxes(values, 1, 2)
    return xp.concat([values, xp.zeros_like(values[:, :1])], axis=1)


def along_groups(
    chunking: Chunking, dynamics: DynamicsStructure, weights: AdjointWeights, stretch: Stretch
) -> list[Path]:
    """Carry the adjoints of all groups back through the chunk."""
    paths = []
    if chunking.adjoint is not None:
        paths += _Walks(chunking, weights.walked).paths(stretch)
    gathered = _gathered(chunking)
    if gathered:
        steps = _Steps.of(dynamics, stretch)
        for (one, way), matrices in zip(gathered, weights.gathered, strict=True):
            dense = _Dense(one, way, matrices)
            paths.append(Path(*dense.adjoint(steps), *dense.phi(steps)))
    return paths


class _Dense:
    """Groups whose adjoint is carried back by dense products.

    lambda is [G, S, batch]. With one term the weights serve the whole batch, and Phi^T is
    [G, S, batch, S]; else D^T is made for each row of the batch, and it is [G, batch, S, S]. Once
    so many steps are done, only those of its rows are kept that are not zero.
    """

    def __init__(self, one: Groups, way: Gathered, weights: tuple[Any, ...]) -> None:
        self.one = one
        self.way = way
        self.weights = weights
        self.batch_axis = 2 if len(weights) == 1 else 1

    def adjoint(self, steps: _Steps) -> tuple[Any, Any]:
        """lambda: `Path.adjoint`, `Path.first_adjoint`."""
        xp = namespace_of(steps.delta)

        def back(values: Any, inputs: _Steps) -> tuple[Any, Any]:
            values = values + take(inputs.delta, self.way.support, axis=-2)
            before = None
            for gain, weight in zip(inputs.gains, self.weights, strict=True):
                scaled = take(gain, self.way.support, axis=-2) * values
                part = matmul(weight[:, 0], scaled)
                before = part if before is None else before + part
            if inputs.resets is not None:
                before = zero_where(inputs.resets, before)
            return before, self._own_rows(xp.moveaxis(values, -1, 0))

        shape = (*self.one.shape[:2], steps.delta.shape[-1])
        end = xp.zeros(shape, dtype=steps.delta.dtype)
        first, own = scan(back, end, steps, reverse=True)
        return own, xp.moveaxis(first, -1, 0)

    def phi(self, steps: _Steps) -> tuple[Any, Any]:
        """Phi^T: `Path.phi`, `Path.first`."""
        xp = namespace_of(steps.delta)
        num_groups, size = self.one.shape[:2]
        length, _, batch = steps.delta.shape
        identity = xp.eye(size, dtype=steps.delta.dtype)
        if self.batch_axis == 2:
            identity = identity[:, None, :]
        axes = [num_groups, size, size]
        axes.insert(self.batch_axis, batch)
        block = identity + xp.zeros(tuple(axes), dtype=steps.delta.dtype)
        parts = [self._own_rows(xp.moveaxis(block, self.batch_axis, 0))[None]]
        if self.batch_axis == 2:  # each step scales what it leaves to the one before it
            (gain,) = steps.gains
            block = self._scaled(block, gain[-1])
            earlier = xp.concat([xp.ones_like(gain[:1]), gain[:-1]], axis=0)
            steps = steps._replace(gains=(earlier,))
        late = min(self.way.fading, length) if self.way.lasting < size else 0
        if late:
            inputs = map_tree(lambda values: values[length - late :], steps)
            block, own = scan(self._back, block, inputs, reverse=True)
            parts.insert(0, own)
        if late < length:
            inputs = map_tree(lambda values: values[: length - late], steps)
            if late:
                last = self.way.lasting
                block = block[:, :last] if self.batch_axis == 2 else block[:, :, :last]
            block, own = scan(self._back, block, inputs, reverse=True)
            parts.insert(0, own)
        parts[0] = parts[0][1:]
        return xp.concat(parts, axis=0), xp.moveaxis(block, self.batch_axis, 0)

    def _back(self, block: Any, inputs: _Steps) -> tuple[Any, Any]:
        """A step of the first rows of Phi^T; those of each group's own units, behind it."""
        xp = namespace_of(block)
        num_rows = block.shape[3 - self.batch_axis]
        weights = [weight[:, :, :num_rows, :num_rows] for weight in self.weights]
        if self.batch_axis == 2:
            wide = block.reshape(*block.shape[:2], -1)
            before = matmul(weights[0][:, 0], wide).reshape(block.shape)
        else:
            matrix = None
            for gain, weight in zip(inputs.gains, weights, strict=True):
                scale = xp.moveaxis(take(gain, self.way.support[:, :num_rows], axis=-2), -1, 1)
                part = scale[:, :, None, :] * weight
                matrix = part if matrix is None else matrix + part
            before = matmul(matrix, block)
        if inputs.resets is not None:
            before = zero_where(inputs.resets.reshape(-1, *(1,) * (3 - self.batch_axis)), before)
        own = self._own_rows(xp.moveaxis(before, self.batch_axis, 0))
        return before if self.batch_axis == 1 else self._scaled(before, inputs.gains[0]), own

    def _scaled(self, block: Any, gain: Any) -> Any:
        """Rows [G, rows, batch, S] times their gains [rows of the state + 1, batch]."""
        return take(gain, self.way.support[:, : block.shape[1]], axis=-2)[..., None] * block

    def _own_rows(self, values: Any) -> Any:
        """[batch, G * parts * U, ...]: rows of values [batch, G, S, ...]."""
        batch, num_groups, size, *rest = values.shape
        _, parts, num_units = self.one.gain_row.shape
        if self.one.unit_row is None:
            return values[:, :, : parts * num_units].reshape(batch, -1, *rest)
        values = values.reshape(batch, num_groups * size, *rest)
        return take_or_zero(values, self.one.unit_row.reshape(-1), axis=-1 - len(rest))


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

    def paths(self, stretch: Stretch) -> list[Path]:
        """The adjoints ``[lambda | Phi^T]`` of all groups, carried back through the chunk."""
        linear = stretch.linear

        def back(blocks: tuple[Any, ...], inputs: Any) -> tuple[Any, Any]:
            gains, own, delta, reset = inputs
            blocks = tuple(
                add_to_first(block, take_or_zero(delta, way.row))
                for (_, way), block in zip(self.groups, blocks, strict=True)
            )
            rows = tuple(
                take_or_zero(block, one.unit_row.reshape(-1), axis=-2)
                for (one, _), block in zip(self.groups, blocks, strict=True)
            )
            return self._before(blocks, Linearization(delta, gains, own, None), reset), rows

        inputs = (linear.gains, linear.own, stretch.delta, stretch.resets)
        blocks, emitted = scan(back, self._end(stretch.delta), inputs, reverse=True)
        found = []
        for (one, way), block, rows in zip(self.groups, blocks, emitted, strict=True):
            num_groups, size = one.shape[:2]
            if way.rows is not None:
                block = take_or_zero(block, way.rows.reshape(-1), axis=-2)
            block = block.reshape(-1, num_groups, size, block.shape[-1])
            found.append(Path(rows[..., 0], block[..., 0], rows[..., 1:], block[..., 1:]))
        return found

    def _end(self, delta: Any) -> tuple[Any, ...]:
        xp = namespace_of(delta)
        batch = delta.shape[1]
        blocks = []
        shapes = self.plan.packing_for(delta).shapes("x")
        for (_, way), shape in zip(self.groups, shapes, strict=True):
            place = index_like(delta, way.place)[:, None]
            identity = xp.astype(xp.arange(shape[-1])[None, :] == place + 1, delta.dtype)
            blocks.append(identity + xp.zeros((batch, 1, 1), dtype=delta.dtype))
        return tuple(blocks)

    def _before(self, blocks: tuple[Any, ...], step: Linearization, reset: Any) -> tuple[Any, ...]:
        d = self.dynamics.multiplied(self.weights, step, False)
        before = masked_dsmm(d, blocks, self.plan, form="values")
        if reset is None:
            return tuple(before)
        return tuple(zero_where(reset[:, None, None], block) for block in before)
