"""A stretch of time at once for a `Stack` that learns layer by layer.

The whole network goes forward through a chunk; the gradient of the losses goes down through the
depth at all its times at once; then every cell takes its own influence through the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def fits(self, learner: StackSnAp) -> bool:
        """Whether it is one of this learner's."""
        given = [one.digest for one in self.layers if one is not None]
        wanted = [one.structure.digest for one in learner.learners if one is not None]
        return (
            not learner.stack.exact
            and len(given) == len(wanted)
            and all(map(str.startswith, given, wanted))
        )


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


class Passage(NamedTuple):
    """Where the chunks of a sequence have come to.

    Attributes
    ----------
    state
        The state of the network.
    trace
        What `Stack.descend` reads of the last step.
    progress
        What the learner has made of its influence, and its gradient so far.
    loss, of_readout
        The sum of the losses, and its gradient in the readout.
    """

    state: Any
    trace: tuple[Any, ...]
    progress: Any
    loss: Any
    of_readout: Any


def through_network(
    learner: StackSnAp,
    weights: tuple[Any, ...],
    unroll: Unroll,
    steps: int,
    advance: Callable[..., Any],
    progress: Any,
) -> Passage:
    """Take a stack forward, ``progress = advance(progress, moments, delta, resets)`` a chunk.

    Parameters
    ----------
    learner
        Of the stack.
    weights
        What the forward pass reads of the parameters.
    unroll, steps
        The sequence, and the steps of a chunk.
    advance
        Takes the influence through a chunk: all of what it is given begins with [K], `delta` is the
        gradient in the outputs.
    progress
        Where it begins.
    """
    stack, carry = learner.stack, unroll.carry

    def forward(state: Any, inputs: Any) -> tuple[Any, tuple[Any, Any]]:
        x, reset = inputs
        state, moments = stack.linearize(weights, reset_rows(state, reset), x)
        return state, (learner.output_of(state), moments)

    def body(running: Passage, inputs: Any) -> tuple[Passage, None]:
        xs, ys, mask, resets = inputs
        state, (outputs, moments) = scan(forward, running.state, (xs, resets))
        loss, delta, new = unroll.loss(outputs, ys, mask)
        return Passage(
            state,
            map_tree(lambda values: values[-1], stack.trace(moments)),
            advance(running.progress, moments, delta, resets),
            running.loss + loss,
            add_trees(running.of_readout, new),
        ), None

    zero = namespace_of(unroll.xs).zeros((), dtype=unroll.xs.dtype)
    of_readout = map_tree(namespace_of(unroll.xs).zeros_like, unroll.readout)
    start = Passage(carry.state, carry.influence.trace, progress, zero, of_readout)
    end: Passage = chunk.through_chunks(body, start, unroll.series, steps)
    return end


def run_chunks(
    learner: StackSnAp, chunking: StackChunking, unroll: Unroll
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    stack, carry = learner.stack, unroll.carry
    xp = namespace_of(unroll.xs)
    cells: list[tuple[Any, Any]] = list(zip(learner.learners, chunking.layers, strict=True))
    params = stack.split(unroll.params)
    ready: list[Any] = [
        own if one is None else chunk.prepare(one, chunks, own)
        for (one, chunks), own in zip(cells, params, strict=True)
    ]
    weights = tuple(own.steps.cell if isinstance(own, chunk.Prepared) else own for own in ready)
    down = stack.weights_down(weights)

    def advance_layer(number: int, so_far: Any, moment: Any, delta: Any, resets: Any) -> Any:
        one, chunks = cells[number]
        layer, own = stack.layers[number], ready[number]
        if isinstance(layer, FeedForward):
            return add_trees(so_far, layer.gradients(own, moment, delta))
        if one is None:
            return so_far
        stretch = chunk.Stretch.of(moment, delta, resets)
        return chunk.advance(one, chunks, own, so_far, stretch)

    def advance(layers: Any, moments: Any, delta: Any, resets: Any) -> Any:
        deltas = stack.descend(down, stack.trace(moments), delta)
        return tuple(
            advance_layer(number, *of_layer, resets)
            for number, of_layer in enumerate(zip(layers, moments, deltas, strict=True))
        )

    influence = in_dtype_of(unroll.xs, carry.influence.own)
    start = tuple(
        map_tree(xp.zeros_like, own) if one is None else chunk.begin(one, chunks, blocks, own)
        for (one, chunks), own, blocks in zip(cells, params, influence, strict=True)
    )
    end = through_network(learner, weights, unroll, chunking.steps, advance, start)
    ends = [
        (None, so_far) if one is None else chunk.finish(one, chunks, so_far, end.loss)
        for (one, chunks), so_far in zip(cells, end.progress, strict=True)
    ]
    own = stored_as(carry.influence.own, tuple(blocks for blocks, _ in ends))
    after = carry.influence._replace(own=own, trace=end.trace, down=down)
    gradients = stack.joined([of_layer for _, of_layer in ends])
    carry = Carry(end.state, after, carry.step + unroll.xs.shape[0])
    return unroll.result(end.loss, gradients, end.of_readout, carry)
