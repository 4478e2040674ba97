"""A stretch of time at once for an exact `Stack`: gradients and influence of K steps.

With lambda_0 the gradient of the chunk's losses in the states before it, ``Phi = ds_K/ds_0``, and
A_t the derivative of s_K in what the layers give at step t, all by backpropagation through time and
depth within the chunk,

    gradient = lambda_0^T J_0            + (backpropagation of the losses in the chunk)
    J_lm(K)  = sum_k Phi[l, k] J_km(0)   + sum_t (A_t[l, m] g_t) u_t^T

for the rows of cell l and the parameters of layer m, its own or below it. The last is a product
over time. It takes supports that lose nothing on the way: exact RTRL, or an order that saturates.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import preactivation_adjoint
from tritonsnap.online.backend import (
    add_side_by_side,
    matmul,
    product_over_time,
    reset_rows,
    take,
    take_or_zero,
)
from tritonsnap.online.carry import Carry, in_dtype_of, stored_as
from tritonsnap.online.cell import Cell, Linearization, Params
from tritonsnap.online.chunk import Stretch
from tritonsnap.online.stack.adjoints import go_back, layer_gradients
from tritonsnap.online.stack.chunks import through_network
from tritonsnap.online.stack.exact_layout import Rows, put_together, take_apart
from tritonsnap.online.stack.exact_structure import ExactChunking, LayerColumns
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll

if TYPE_CHECKING:
    from tritonsnap.online.stack.snap import StackSnAp


class Progress(NamedTuple):
    """What chunks have made of the influence of a stack, and its gradient so far.

    Attributes
    ----------
    influence
        For each cell its dense blocks, see `exact_layout`.
    columns
        For each layer the gradients [parameters] that the influence at the begin of each chunk has
        a part in.
    gradients
        The others, by parameter.
    """

    influence: tuple[Rows, ...]
    columns: tuple[Any, ...]
    gradients: Params


def run_chunks(
    learner: StackSnAp, chunking: ExactChunking, unroll: Unroll
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    stack, before, xs = learner.stack, unroll.carry.influence, unroll.xs
    xp = namespace_of(xs)
    layers = stack.prepare(unroll.params).layers
    entries = chunking.own, chunking.crossing

    def advance(progress: Progress, moments: Any, delta: Any, resets: Any) -> Progress:
        influence = progress.influence
        if resets is not None:
            influence = map_tree(lambda block: reset_rows(block, resets[0]), influence)
        chunk = _Chunk.of(stack, layers, moments, delta, resets)
        first, gradients = chunk.backpropagated(delta)
        new = (_columns(first, influence, len(chunking.columns)), gradients)
        influence = chunk.influence_after(influence, chunking.columns)
        return Progress(influence, *add_trees(progress[1:], new))

    sizes = [place.stop - place.start for place in stack.columns]
    start = Progress(
        take_apart(learner, *entries, in_dtype_of(xs, before)),
        tuple(
            None if columns is None else xp.zeros(size, dtype=xs.dtype)
            for columns, size in zip(chunking.columns, sizes, strict=False)
        ),
        map_tree(xp.zeros_like, unroll.params),
    )
    end = through_network(learner, layers, unroll, chunking.steps, advance, start)
    packed = put_together(learner, *entries, end.progress.influence)
    own, crossing = stored_as((before.own, before.crossing), packed)
    after = before._replace(
        own=own, crossing=crossing, trace=end.trace, down=stack.weights_down(layers)
    )
    flat = xp.concat([values for values in end.progress.columns if values is not None])
    further = stack.joined(stack.shaped(flat, len(chunking.columns)))
    gradients = end.progress.gradients
    gradients = gradients | {name: gradients[name] + value for name, value in further.items()}
    carry = Carry(end.state, after, unroll.carry.step + xs.shape[0])
    return unroll.result(end.loss, gradients, end.of_readout, carry)


def _columns(adjoints: Any, influence: Any, num_layers: int) -> tuple[Any, ...]:
    """``lambda_0^T J_0`` by layers, summed over the batch."""
    totals: list[Any] = [None] * num_layers
    for adjoint, blocks in zip(adjoints, influence, strict=True):
        for below, block in enumerate(blocks or ()):
            if block is not None:
                new = matmul(adjoint.reshape(-1), block.reshape(-1, block.shape[-1]))
                totals[below] = new if totals[below] is None else totals[below] + new
    return tuple(totals)


class _Chunk(NamedTuple):
    """A chunk of a stack after its forward pass.

    Attributes
    ----------
    stack, layers
        The network, and what its steps read of the parameters.
    moments
        From `Stack.linearize`, over time.
    stretches
        For each layer gains and sources of its parameters.
    """

    stack: Stack
    layers: tuple[Any, ...]
    moments: tuple[Any, ...]
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, stack: Stack, layers: Any, moments: Any, delta: Any, resets: Any) -> _Chunk:
        stretches = []
        for layer, own, moment in zip(stack.layers, layers, moments, strict=True):
            linear = moment
            if isinstance(layer, FeedForward):
                linear = Linearization(moment, None, None, layer.immediate(own, moment))
            stretches.append(Stretch.of(linear, delta, resets))
        return cls(stack, layers, moments, tuple(stretches))

    def backpropagated(self, delta: Any) -> tuple[Any, Params]:
        """The gradients of the losses in the states before the chunk, and in the parameters."""
        xp, batch = namespace_of(delta), delta.shape[1]
        end = tuple(
            xp.zeros((batch, layer.rows), dtype=delta.dtype) if isinstance(layer, Cell) else None
            for layer in self.stack.layers
        )
        resets = self.stretches[0].resets
        first, deltas = go_back(self.stack, self.layers, self.moments, delta, end, resets)
        return first, layer_gradients(self.stack, self.layers, self.moments, deltas)

    def influence_after(
        self, influence: tuple[Rows, ...], columns: Sequence[LayerColumns | None]
    ) -> tuple[Rows, ...]:
        """The influence behind the chunk."""
        return tuple(
            self._rows_after(number, layer.rows, influence, columns[: number + 1])
            if isinstance(layer, Cell)
            else None
            for number, layer in enumerate(self.stack.layers)
        )

    def _rows_after(
        self,
        number: int,
        num_rows: int,
        influence: tuple[Rows, ...],
        columns: Sequence[LayerColumns | None],
    ) -> Rows:
        """That on one cell, each row of whose last state is followed back by itself.

        An axis of these rows stands behind the batch.
        """
        stretch = self.stretches[number]
        moments = tuple(_for_rows(moment, num_rows) for moment in self.moments)
        end = self._each_row(number, num_rows)
        phi, paths = go_back(self.stack, self.layers, moments, None, end, stretch.resets)
        blocks: list[Any] = []
        for below, own in enumerate(columns):
            if own is None:
                blocks.append(None)
                continue
            parts = [
                matmul(phi[cell], rows[below])
                for cell, rows in enumerate(influence[: number + 1])
                if rows is not None and cell >= below
            ]
            block = stretch.without_resets(reduce(operator.iadd, parts))
            layer, path = self.stack.layers[below], paths[below]
            added = _products_over_time(layer, own, self.stretches[below], path)
            blocks.append(add_side_by_side(block, added))
        return tuple(blocks)

    def _each_row(self, number: int, num_rows: int) -> tuple[Any, ...]:
        """For each cell the derivatives [batch, rows, its rows] of one cell's rows in its state."""
        delta = self.stretches[number].delta
        xp, batch = namespace_of(delta), delta.shape[1]
        found: list[Any] = []
        for at, layer in enumerate(self.stack.layers):
            rows = None
            if isinstance(layer, Cell) and at <= number:
                rows = xp.zeros((batch, num_rows, layer.rows), dtype=delta.dtype)
            if at == number:
                rows = rows + xp.eye(num_rows, dtype=delta.dtype)
            found.append(rows)
        return tuple(found)


def _for_rows(moment: Any, num_rows: int) -> Any:
    """What `Stack.linearize` left of a layer, with an axis of rows behind the batch."""
    if isinstance(moment, Linearization):
        own = None if moment.own is None else moment.own[:, :, None]
        return Linearization(None, moment.gains[:, :, None], own, None)
    steps, batch, size = moment.shape
    shape = (steps, batch, num_rows, size)
    return namespace_of(moment).broadcast_to(moment[:, :, None], shape)


def _products_over_time(
    layer: Any, columns: LayerColumns, stretch: Stretch, path: Any
) -> list[Any]:
    """What the parameters of a layer add to the rows: [batch, rows, ...], side by side.

    `path` [K, batch, rows, rows or outputs of the layer] is the derivative of the rows at the end.
    """
    xp = namespace_of(path)
    steps, batch, num_rows, _ = path.shape
    sources = stretch.at_the_end(stretch.linear.sources)
    weights: dict[int, Any] = {}
    parts = []
    for piece in columns.pieces:
        if piece.target not in weights:
            weight = path
            if isinstance(layer, Cell):
                gain = stretch.linear.gains[:, :, None, piece.target : piece.target + 1]
                weight = preactivation_adjoint(layer, gain, path)[..., 0, :]
            weights[piece.target] = stretch.at_the_end(weight)
        weight = weights[piece.target]  # [K, batch, rows, units]
        num_units = weight.shape[-1]
        if piece.source is None:
            shared = sources[..., piece.first : piece.first + piece.count]
            part = product_over_time(weight.reshape(steps, batch, num_rows * num_units), shared)
        else:
            each = take_or_zero(sources, piece.source[0])  # [K, batch, units, count]
            each = each.reshape(steps, batch * num_units, piece.count)
            by_unit = xp.swapaxes(weight, 2, 3).reshape(steps, batch * num_units, num_rows)
            part = product_over_time(by_unit, each)
            part = part.reshape(batch, num_units, num_rows, piece.count)
            part = xp.swapaxes(part, 1, 2)
        parts.append(part.reshape(batch, num_rows, num_units * piece.count))
    if columns.order is None:
        return parts
    return [take(parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1), columns.order[0])]
