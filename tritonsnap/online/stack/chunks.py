"""A stretch of time at once for a `Stack` that learns layer by layer.

The whole network goes forward through a chunk; the gradient of the losses goes down through the
depth at all its times at once; then every cell takes its own influence through the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online import chunk
from tritonsnap.online.backend import reset_rows, scan
from tritonsnap.online.carry import Carry, in_dtype_of, stored_as
from tritonsnap.online.chunk_choice import BlockCost, Chunkings, Ways
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan.blocks import Regime

if TYPE_CHECKING:
    from tritonsnap.online.stack.snap import StackSnAp


class StackChunking(NamedTuple):
    """How a stack goes through a stretch of time at once.

    Attributes
    ----------
    layers
        A `Chunking` of each cell, all with the same steps; None for layers without memory.
    """

    layers: tuple[Chunking | None, ...]

    @property
    def steps(self) -> int:
        """Steps in a chunk."""
        return next(one.steps for one in self.layers if one is not None)


class StackChunkings(Ways[StackChunking]):
    """The ways of the learner of a stack, from those of its layers; None without memory."""

    def __init__(self, layers: Sequence[Chunkings | None]) -> None:
        super().__init__()
        self.layers = layers

    def by_layer(self, target: str) -> list[list[BlockCost]]:
        """The predicted costs of the blocks of each cell."""
        return [layer.costs(target) for layer in self.layers if layer is not None]

    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> StackChunking:
        """Chunks of so many steps; see `Ways.make`."""
        of_cell = iter(chosen)
        return StackChunking(
            tuple(
                None if layer is None else layer.make(target, steps, [next(of_cell)])
                for layer in self.layers
            )
        )


def run_chunks(
    learner: StackSnAp, chunking: StackChunking, unroll: Unroll
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    stack, carry, xs = learner.stack, unroll.carry, unroll.xs
    xp = namespace_of(xs)
    cells: list[tuple[Any, Any]] = list(zip(learner.learners, chunking.layers, strict=True))
    params = stack.split(unroll.params)
    ready: list[Any] = [
        own if one is None else chunk.prepare(one, chunks, own)
        for (one, chunks), own in zip(cells, params, strict=True)
    ]
    weights = tuple(own.steps.cell if isinstance(own, chunk.Prepared) else own for own in ready)
    down = stack.weights_down(weights)

    def forward(state: Any, inputs: Any) -> tuple[Any, tuple[Any, Any]]:
        x, reset = inputs
        state, moments = stack.linearize(weights, reset_rows(state, reset), x)
        return state, (learner.output_of(state), moments)

    def advance(number: int, so_far: Any, moment: Any, delta: Any, resets: Any) -> Any:
        one, chunks = cells[number]
        layer, own = stack.layers[number], ready[number]
        if isinstance(layer, FeedForward):
            return add_trees(so_far, layer.gradients(own, moment, delta))
        if one is None:
            return so_far
        stretch = chunk.Stretch.of(moment, delta, resets)
        return chunk.advance(one, chunks, own, so_far, stretch)

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        state, _, layers, total, of_readout = running
        xs, ys, mask, resets = inputs
        state, (outputs, moments) = scan(forward, state, (xs, resets))
        loss, delta, new = unroll.loss(outputs, ys, mask)
        trace = stack.trace(moments)
        deltas = stack.descend(down, trace, delta)
        layers = tuple(
            advance(number, *of_layer, resets)
            for number, of_layer in enumerate(zip(layers, moments, deltas, strict=True))
        )
        last = map_tree(lambda values: values[-1], trace)
        return (state, last, layers, total + loss, add_trees(of_readout, new)), None

    influence = in_dtype_of(xs, carry.influence.own)
    start = tuple(
        map_tree(xp.zeros_like, own) if one is None else chunk.begin(one, chunks, blocks, own)
        for (one, chunks), own, blocks in zip(cells, params, influence, strict=True)
    )
    zero = xp.zeros((), dtype=xs.dtype)
    running = (
        carry.state,
        carry.influence.trace,
        start,
        zero,
        map_tree(xp.zeros_like, unroll.readout),
    )
    running = chunk.through_chunks(body, running, unroll.series, chunking.steps)
    state, trace, layers, loss, of_readout = running
    ends = [
        (None, so_far) if one is None else chunk.finish(one, chunks, so_far, loss)
        for (one, chunks), so_far in zip(cells, layers, strict=True)
    ]
    own = stored_as(carry.influence.own, tuple(blocks for blocks, _ in ends))
    after = carry.influence._replace(own=own, trace=trace, down=down)
    gradients = stack.joined([of_layer for _, of_layer in ends])
    return unroll.result(loss, gradients, of_readout, Carry(state, after, carry.step + xs.shape[0]))
