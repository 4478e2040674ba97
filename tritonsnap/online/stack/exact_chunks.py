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

from collections.abc import Sequence
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
from tritonsnap.online.stack.exact_structure import ExactChunking, LayerColumns
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.stack.network import Stack
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll

if TYPE_CHECKING:
    from tritonsnap.online.stack.snap import StackInfluence, StackSnAp

Blocks = tuple[Any, ...]


class Progress(NamedTuple):
    """What chunks have made of the influence of a stack, and its gradient so far.

    Attributes
    ----------
    influence
        For each cell its rows of the influence, for each layer up to it with parameters
        [batch, rows, parameters].
    columns
        For each layer the gradients [parameters] that the influence at the begin of each chunk has
        a part in.
    gradients
        The others, by parameter.
    """

    influence: tuple[Blocks | None, ...]
    columns: Blocks
    gradients: Params


def run_chunks(
    learner: StackSnAp, chunking: ExactChunking, unroll: Unroll
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    stack, carry, xs = learner.stack, unroll.carry, unroll.xs
    xp = namespace_of(xs)
    layers = stack.prepare(unroll.params).layers

    def advance(progress: Progress, moments: Any, delta: Any, resets: Any) -> Progress:
        influence = progress.influence
        if resets is not None:
            influence = map_tree(lambda block: reset_rows(block, resets[0]), influence)
        zero = xp.zeros_like(carry.state)
        nothing = tuple(
            zero[..., place] if isinstance(layer, Cell) else None
            for layer, place in zip(stack.layers, stack.places, strict=True)
        )
        first, deltas = go_back(stack, layers, moments, delta, nothing, resets)
        stretches = [
            _stretch(*of_layer, delta, resets)
            for of_layer in zip(stack.layers, layers, moments, strict=True)
        ]
        new = tuple(
            _rows_after(stack, chunking, layers, influence, moments, stretches, number)
            if isinstance(layer, Cell)
            else None
            for number, layer in enumerate(stack.layers)
        )
        columns = _columns(first, influence, len(chunking.columns))
        own = (columns, layer_gradients(stack, layers, moments, deltas))
        return Progress(new, *add_trees((progress.columns, progress.gradients), own))

    start = Progress(
        _dense(learner, chunking, in_dtype_of(xs, carry.influence)),
        tuple(
            own and xp.zeros(layer.num_parameters, dtype=xs.dtype)
            for layer, own in zip(stack.layers, chunking.columns, strict=False)
        ),
        map_tree(xp.zeros_like, unroll.params),
    )
    end = through_network(learner, layers, unroll, chunking.steps, advance, start)
    before = carry.influence
    own, crossing = _packed(learner, chunking, end.progress.influence)
    own, crossing = stored_as((before.own, before.crossing), (own, crossing))
    after = before._replace(
        own=own, crossing=crossing, trace=end.trace, down=stack.weights_down(layers)
    )
    columns = [values for values in end.progress.columns if values is not None]
    by_layer = stack.shaped(xp.concat(columns), len(chunking.columns))
    gradients = end.progress.gradients
    gradients |= {name: gradients[name] + new for name, new in stack.joined(by_layer).items()}
    carry = Carry(end.state, after, carry.step + xs.shape[0])
    return unroll.result(end.loss, gradients, end.of_readout, carry)


def _stretch(layer: Any, own: Any, moment: Any, delta: Any, resets: Any) -> Stretch:
    """A chunk of one layer: gains and sources of its parameters."""
    if isinstance(layer, FeedForward):
        moment = Linearization(moment, None, None, layer.immediate(own, moment))
    return Stretch.of(moment, delta, resets)


def _columns(adjoints: Any, influence: Any, num_layers: int) -> Blocks:
    """``lambda_0^T J_0`` by layers, summed over the batch."""
    totals: list[Any] = [None] * num_layers
    for adjoint, blocks in zip(adjoints, influence, strict=True):
        for below, block in enumerate(blocks or ()):
            if block is not None:
                new = matmul(adjoint.reshape(-1), block.reshape(-1, block.shape[-1]))
                totals[below] = new if totals[below] is None else totals[below] + new
    return tuple(totals)


def _rows_after(
    stack: Stack,
    chunking: ExactChunking,
    layers: Any,
    influence: Any,
    moments: Any,
    stretches: Sequence[Stretch],
    number: int,
) -> Blocks:
    """The influence on the cell at `number` behind a chunk, by the layers whose parameters it is.

    Each row of the cell's last state is followed back: an axis of rows stands behind the batch.
    """
    num_rows, stretch = stack.layers[number].rows, stretches[number]
    phi, paths = go_back(
        stack,
        layers,
        tuple(_for_rows(moment, num_rows) for moment in moments),
        None,
        _each_row(stack, number, stretch.delta),
        stretch.resets,
    )
    blocks: list[Any] = []
    for below, columns in enumerate(chunking.columns[: number + 1]):
        block = None
        if columns is not None:
            for cell in range(below, number + 1):
                if influence[cell] is not None:
                    carried = matmul(phi[cell], influence[cell][below])
                    block = carried if block is None else add_side_by_side(block, [carried])
            block = add_side_by_side(
                stretch.without_resets(block),
                _products_over_time(stack.layers[below], columns, stretches[below], paths[below]),
            )
        blocks.append(block)
    return tuple(blocks)


def _for_rows(moment: Any, num_rows: int) -> Any:
    """What `Stack.linearize` left of a layer, with an axis of rows behind the batch."""
    if isinstance(moment, Linearization):
        own = None if moment.own is None else moment.own[:, :, None]
        return Linearization(None, moment.gains[:, :, None], own, None)
    steps, batch, size = moment.shape
    shape = (steps, batch, num_rows, size)
    return namespace_of(moment).broadcast_to(moment[:, :, None], shape)


def _each_row(stack: Stack, number: int, like: Any) -> Blocks:
    """[batch, rows, rows of a cell]: the derivatives of one cell's rows in the states of all."""
    xp, batch, num_rows = namespace_of(like), like.shape[1], stack.layers[number].rows
    found: list[Any] = []
    for at, layer in enumerate(stack.layers):
        rows = None
        if isinstance(layer, Cell) and at <= number:
            rows = xp.zeros((batch, num_rows, layer.rows), dtype=like.dtype)
            rows = rows + xp.eye(num_rows, dtype=like.dtype) if at == number else rows
        found.append(rows)
    return tuple(found)


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


def _dense(
    learner: StackSnAp, chunking: ExactChunking, influence: StackInfluence
) -> tuple[Blocks | None, ...]:
    """The blocks of `Progress.influence`."""
    stack, found = learner.stack, []
    for number, one in enumerate(learner.learners):
        if one is None:
            found.append(None)
            continue
        own = chunking.own[number].dense(one.plan.unpack(influence.own[number]))
        plan, entries = learner.crossing_plans[number], chunking.crossing[number]
        below = None
        if plan is not None:
            below = entries.dense(plan.unpack(influence.crossing[number]))
        blocks: list[Any] = [
            None if columns is None else _at(below, place, own)
            for columns, place in zip(chunking.columns[:number], stack.columns, strict=False)
        ]
        found.append((*blocks, own))
    return tuple(found)


def _at(values: Any, place: slice, like: Any) -> Any:
    """The columns at a place; zeros beside `like` where no parameter below has an influence."""
    if values is not None:
        return values[..., place]
    xp = namespace_of(like)
    return xp.zeros((*like.shape[:-1], place.stop - place.start), dtype=like.dtype)


def _packed(
    learner: StackSnAp, chunking: ExactChunking, influence: tuple[Blocks | None, ...]
) -> tuple[Blocks, Blocks]:
    """The inverse of `_dense`: the influences of a stack's own parameters, and those that cross."""
    own: list[Any] = []
    crossing: list[Any] = []
    for number, blocks in enumerate(influence):
        own.append(None)
        crossing.append(None)
        if blocks is None:
            continue
        plan, one = learner.crossing_plans[number], learner.learners[number]
        own[-1] = one.plan.pack(chunking.own[number].flat(blocks[-1]))
        if plan is not None:
            below = [block for block in blocks[:-1] if block is not None]
            whole = below[0] if len(below) == 1 else namespace_of(*below).concat(below, axis=-1)
            crossing[-1] = plan.pack(chunking.crossing[number].flat(whole))
    return tuple(own), tuple(crossing)
