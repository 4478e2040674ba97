"""A stretch of time at once: gradients and influence of K steps with constant parameters.

With ``lambda_t = delta_t + D_{t+1}^T lambda_{t+1}`` and ``Phi_t = D_K ... D_{t+1}`` within the rows
S of each group, K steps of the influence amount to

    gradient = lambda_0^T J_0 + sum_t (lambda_t[i] g_t) u_t^T
    J_K      = Phi_0 J_0      + sum_t (Phi_t[:, i] g_t) u_t^T

where the column's parameter feeds unit i and multiplies u. Both sums are matrix products over time.

References
----------
Schmidhuber, "A Fixed Size Storage O(n^3) Time Complexity Learning Algorithm for Fully Recurrent
Continually Running Networks", Neural Computation 4(2), 1992: the same for exact RTRL.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import parameter_gradients, preactivation_adjoint
from tritonsnap.online.backend import (
    index_like,
    matmul,
    product_over_time,
    reset_rows,
    scan,
    sum_batch,
    take,
    take_or_zero,
)
from tritonsnap.online.carry import Carry, narrowed, widened
from tritonsnap.online.cell import Params
from tritonsnap.online.chunk_adjoint import AdjointWeights, Path, along_groups, prepare_adjoint
from tritonsnap.online.chunk_columns import Piece
from tritonsnap.online.chunk_groups import Groups
from tritonsnap.online.chunk_layout import Layout, columns_at, no_columns, put_together, take_apart
from tritonsnap.online.chunk_structure import Chunking, Elementwise
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll, forward_pass
from tritonsnap.ops import influence_gradient

if TYPE_CHECKING:
    from tritonsnap.online.snap import SnAp, SnApPrepared


class Prepared(NamedTuple):
    """What chunks read of the parameters: those of the steps, and weights for the adjoints."""

    steps: SnApPrepared
    diagonal: tuple[Any, ...]
    adjoint: AdjointWeights


class Stretch(NamedTuple):
    """A chunk after its forward pass: all arrays begin with [K, batch].

    Attributes
    ----------
    linear
        The partial derivatives of each step, a `Linearization`; of a cell that has none what the
        steps read.
    delta : [K, batch, rows]
        The gradient of each step's loss in its state.
    resets : bool [K, batch] or None
        Rows whose past ended before the step.
    last : bool [K, batch] or None
        Whether no reset follows the step: then it lies in the influence at the end.
    """

    linear: Any
    delta: Any
    resets: Any
    last: Any

    @classmethod
    def of(cls, linear: Any, delta: Any, resets: Any) -> Stretch:
        """A stretch whose `last` follows from its resets."""
        if resets is None:
            return cls(linear, delta, None, None)
        xp = namespace_of(delta)
        later = xp.flip(xp.cumsum(xp.flip(resets, axis=(0,)), 0), axis=(0,))
        last = xp.concat([later[1:] == 0, xp.ones_like(resets[:1])], axis=0)
        return cls(linear, delta, resets, last)

    def at_the_end(self, values: Any) -> Any:
        """Values [K, batch, ...], zero where a reset follows, NaN or not."""
        if self.last is None:
            return values
        xp = namespace_of(values)
        last = self.last.reshape(*self.last.shape, *(1,) * (values.ndim - 2))
        return xp.where(last, values, xp.zeros_like(values))

    def sources_in_time(self) -> Any:
        """[batch * (sources + 1), K]: each source over time; the last of each row is zero."""
        xp = namespace_of(self.delta)
        sources = xp.permute_dims(self.at_the_end(self.linear.sources), (1, 2, 0))
        zero = xp.zeros_like(sources[:, :1])
        return xp.concat([sources, zero], axis=1).reshape(-1, sources.shape[-1])

    def without_resets(self, values: Any) -> Any:
        """Values [batch, ...], zero for the rows that are reset in the chunk."""
        if self.last is None:
            return values
        return reset_rows(values, ~self.last[0] | self.resets[0])


class Progress(NamedTuple):
    """What chunks have made of the influence of a cell, and its gradient so far.

    Attributes
    ----------
    influence
        The influence after the last chunk.
    columns
        The gradients that the influence at the begin of each chunk has a part in, by columns.
    gradients
        The others, by parameter.
    """

    influence: Layout
    columns: Layout
    gradients: Params


def run_chunks(learner: SnAp, chunking: Chunking, unroll: Unroll) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    carry, xs = unroll.carry, unroll.xs
    xp = namespace_of(xs)
    ready = prepare(learner, chunking, unroll.params)

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        state, progress, total, readout_gradients = running
        xs, ys, mask, resets = inputs
        state, linear = forward_pass(learner.cell, ready.steps.cell, state, xs, resets)
        loss, delta, of_readout = unroll.loss(linear.state, ys, mask)
        stretch = Stretch.of(linear, delta, resets)
        progress = advance(learner, chunking, ready, progress, stretch)
        return (state, progress, total + loss, add_trees(readout_gradients, of_readout)), None

    running = (
        carry.state,
        begin(learner, chunking, widened(carry), unroll.params),
        xp.zeros((), dtype=xs.dtype),
        map_tree(xp.zeros_like, unroll.readout),
    )
    running = through_chunks(body, running, unroll.series, chunking.steps)
    state, progress, loss, readout_gradients = running
    blocks, gradients = finish(learner, chunking, progress, loss)
    carry = Carry(state, narrowed(blocks, carry), carry.step + xs.shape[0])
    return unroll.result(loss, gradients, readout_gradients, carry)


def through_chunks(body: Any, running: Any, series: Any, steps: int) -> Any:
    """Run ``running, None = body(running, part)`` over parts of so many steps of a series."""
    length = series[0].shape[0]
    steps = min(steps, length)
    whole = length // steps
    if whole > 1:
        split = map_tree(lambda a: a[: whole * steps].reshape(whole, steps, *a.shape[1:]), series)
        running, _ = scan(body, running, split)
    else:
        running, _ = body(running, map_tree(lambda a: a[:steps], series))
    if whole * steps < length:
        running, _ = body(running, map_tree(lambda a: a[whole * steps :], series))
    return running


def prepare(learner: SnAp, chunking: Chunking, params: Params) -> Prepared:
    """What chunks read of the parameters; compute it once per sequence."""
    diagonal = chunking.diagonal
    return Prepared(
        learner.prepare(params),
        () if diagonal is None else diagonal.prepare(params, False),
        prepare_adjoint(chunking, learner.dynamics, params),
    )


def begin(
    learner: SnAp, chunking: Chunking, influence: tuple[Any, ...], params: Params
) -> Progress:
    """Where the chunks of a sequence begin, from an influence in the dtype of the parameters."""
    (like, *_) = params.values()
    layout = take_apart(chunking, influence)
    columns = no_columns(layout, learner.plan.packing_for(like), like)
    return Progress(layout, columns, map_tree(namespace_of(like).zeros_like, params))


def advance(
    learner: SnAp, chunking: Chunking, ready: Prepared, progress: Progress, stretch: Stretch
) -> Progress:
    """Take the influence of a cell through a chunk, and add up its gradient."""
    influence, *new = carry_through(learner, chunking, ready, progress.influence, stretch)
    return Progress(influence, *add_trees(progress[1:], tuple(new)))


def finish(
    learner: SnAp, chunking: Chunking, progress: Progress, like: Any
) -> tuple[list[Any], Params]:
    """The blocks of the influence, and the gradients of all parameters."""
    packing = learner.plan.packing_for(like)
    blocks, packed = put_together(chunking, packing, progress.influence, progress.columns)
    flat = packing.unpack_columns(tuple(packed), like=like)
    return blocks, learner.all_gradients(flat, progress.gradients)


def carry_through(
    learner: SnAp, chunking: Chunking, ready: Prepared, influence: Layout, stretch: Stretch
) -> tuple[Layout, Layout, Params]:
    """The influence behind a chunk, and the gradients of the losses in it.

    The gradients are those that the influence at its begin has a part in, by columns, and the
    others, by parameter.
    """
    linear, resets = stretch.linear, stretch.resets
    xp = namespace_of(stretch.delta)
    columns = no_columns(influence, learner.plan.packing_for(linear.state), linear.state)
    if resets is not None:
        influence = map_tree(lambda block: reset_rows(block, resets[0]), influence)
    blocks, totals = list(influence.blocks), list(columns.blocks)
    groups: tuple[tuple[Any, Any], ...] = ()
    rows = []
    if chunking.elementwise:
        own, product = _along_diagonal(chunking, ready, stretch)
        rows.append(own[0])
        for one in chunking.elementwise:
            at = one.number
            blocks[at], totals[at] = _elementwise(learner, one, blocks[at], stretch, own, product)
    elif chunking.own_row is not None:
        rows.append(xp.zeros_like(linear.state))
    if chunking.groups:
        paths = along_groups(chunking, learner.dynamics, ready.adjoint, stretch)
        rows += [path.adjoint for path in paths]
        update = partial(_groups, stretch, stretch.sources_in_time())
        groups = tuple(map(update, chunking.groups, influence.groups, paths))
    if chunking.stepped is not None:
        _step_others(learner, chunking, ready, stretch, blocks, totals)
    adjoint = rows[0]
    if chunking.own_row is not None:
        adjoint = take_or_zero(xp.concat(rows, axis=-1), chunking.own_row)
    preactivation = preactivation_adjoint(learner.cell, linear.gains, adjoint)
    gradients = parameter_gradients(learner.cell, linear.sources, preactivation, chunking.held)
    new = Layout(tuple(blocks), tuple(values for values, _ in groups))
    return new, Layout(tuple(totals), tuple(values for _, values in groups)), gradients


def _along_diagonal(
    chunking: Chunking, ready: Prepared, stretch: Stretch
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The adjoint and Phi of every row by itself: [K, batch, rows] each, and [batch, rows] at 0."""
    assert chunking.diagonal is not None
    d = chunking.diagonal.multiplied(ready.diagonal, stretch.linear, False)
    if chunking.diagonal_place is not None:
        d = take_or_zero(d, chunking.diagonal_place)
    xp = namespace_of(d)

    def back(carry: Any, inputs: Any) -> tuple[Any, Any]:
        adjoint, product = carry
        d, delta, reset = inputs
        adjoint = adjoint + delta
        before = (reset_rows(d * adjoint, reset), reset_rows(d * product, reset))
        return before, (adjoint, product)

    ends = (xp.zeros_like(stretch.delta[0]), xp.ones_like(stretch.delta[0]))
    start, path = scan(back, ends, (d, stretch.delta, stretch.resets), reverse=True)
    return path, start


def _elementwise(
    learner: SnAp,
    one: Elementwise,
    influence: Any,
    stretch: Stretch,
    path: tuple[Any, Any],
    start: tuple[Any, Any],
) -> tuple[Any, Any]:
    """The new influence of an elementwise block, and lambda_0^T J_0 [G, C] over the batch."""
    xp = namespace_of(influence)
    block = learner.plan.packing_for(influence).blocks[one.number]

    def rows(values: Any) -> Any:
        return values if block.all_rows else take(values, block.mask_row)

    columns = sum_batch(rows(start[0])[..., None] * influence)
    product = rows(stretch.at_the_end(path[1]))
    parts = []
    for piece in one.pieces:
        gain = stretch.at_the_end(rows(stretch.linear.gains[..., piece.target, :]))
        sources = _shared_sources(stretch, piece)
        if one.order is not None and piece is one.pieces[-1]:  # what padding takes
            sources = xp.concat([sources, xp.zeros_like(sources[..., :1])], axis=-1)
        parts.append(product_over_time(product * gain, sources))
    new = parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)
    if one.order is not None:
        new = columns_at(new[..., None, :], one.order)[..., 0, :]
    return stretch.without_resets(rows(start[1])[..., None] * influence) + new, columns


def _groups(
    stretch: Stretch, over_time: Any, one: Groups, influence: tuple[Any, ...], path: Path
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The new influence, and lambda_0^T J_0 [G, U * count] over the batch, for each piece."""
    xp = namespace_of(stretch.delta)
    num_groups, size, num_units, _ = one.shape
    steps, batch = path.phi.shape[:2]
    parts = one.gain_row.shape[1]
    phi = path.phi.reshape(steps, batch, num_groups, parts, num_units, size)
    phi = stretch.at_the_end(phi)
    first = xp.swapaxes(path.first, -1, -2)  # [batch, G, S, lasting rows]
    products: dict[int, Any] = {}
    new, columns = [], []
    for piece, values in zip(one.pieces, influence, strict=True):
        if piece.target not in products:
            gain = stretch.at_the_end(
                take(stretch.linear.gains[..., piece.target, :], one.gain_row)
            )
            terms = phi * gain[..., None]
            terms = terms[:, :, :, 0] if parts == 1 else terms.sum(axis=3)
            products[piece.target] = xp.moveaxis(terms, 0, -1)  # [batch, G, U, S, K]
        carried = matmul(first, values[:, :, : first.shape[-1]])
        added = _product_over_time(products[piece.target], piece, stretch, over_time)
        new.append(added + stretch.without_resets(carried))
        gradient = matmul(path.first_adjoint[:, :, None], values)
        columns.append(sum_batch(gradient[..., 0, :]))
    return tuple(new), tuple(columns)


def _product_over_time(weight: Any, piece: Piece, stretch: Stretch, over_time: Any) -> Any:
    """[batch, G, S, U * count]: the sum over time of `weight` [batch, G, U, S, K] times sources."""
    xp = namespace_of(weight)
    batch, num_groups, num_units, size, steps = weight.shape
    if piece.source is None:
        shared = xp.moveaxis(_shared_sources(stretch, piece), 0, 1)  # [batch, K, count]
        product = matmul(weight.reshape(batch, num_groups * num_units * size, steps), shared)
        product = product.reshape(batch, num_groups, num_units, size, piece.count)
    else:
        begin = xp.arange(batch)[:, None, None, None] * (over_time.shape[0] // batch)
        index = begin + index_like(weight, piece.source)
        sources = take(over_time, index, axis=-2)  # [batch, G, U, count, K]
        product = matmul(weight, xp.swapaxes(sources, -1, -2))
    product = xp.swapaxes(product, 2, 3)  # [batch, G, S, U, count]
    return product.reshape(batch, num_groups, size, num_units * piece.count)


def _shared_sources(stretch: Stretch, piece: Piece) -> Any:
    """[K, batch, count]: the sources of a piece."""
    sources = stretch.linear.sources[..., piece.first : piece.first + piece.count]
    return stretch.at_the_end(sources)


def _step_others(
    learner: SnAp,
    chunking: Chunking,
    ready: Prepared,
    stretch: Stretch,
    influence: list[Any],
    columns: list[Any],
) -> None:
    """Step the blocks that are not chunked, in place of their entries of both lists."""
    structure, numbers = chunking.stepped, chunking.stepped_numbers
    assert structure is not None

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        blocks, totals = running
        linear, delta, reset = inputs
        blocks = learner.updated(structure, ready.steps, blocks, linear, reset)
        new = influence_gradient(delta, blocks, structure.plan, sum_batch=True, packed=True)
        return (blocks, tuple(one + other for one, other in zip(totals, new, strict=True))), None

    running = (tuple(influence[n] for n in numbers), tuple(columns[n] for n in numbers))
    inputs = (stretch.linear, stretch.delta, stretch.resets)
    (blocks, totals), _ = scan(body, running, inputs)
    for number, block, total in zip(numbers, blocks, totals, strict=True):
        influence[number], columns[number] = block, total
