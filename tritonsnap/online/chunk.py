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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import parameter_gradients, preactivation_adjoint
from tritonsnap.online.backend import (
    differentiate_loss,
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
from tritonsnap.online.cell import Linearization, Params
from tritonsnap.online.chunk_adjoint import AdjointWeights, Path, along_groups, prepare_adjoint
from tritonsnap.online.chunk_columns import Piece
from tritonsnap.online.chunk_groups import Groups, Merged
from tritonsnap.online.chunk_structure import Chunking, Elementwise
from tritonsnap.online.trees import map_tree
from tritonsnap.online.unroll import Unroll
from tritonsnap.ops import influence_gradient

if TYPE_CHECKING:
    from tritonsnap.online.snap import SnAp, SnApPrepared

Blocks = tuple[Any, ...]


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
        The partial derivatives of each step.
    delta : [K, batch, rows]
        The gradient of each step's loss in its state.
    resets : bool [K, batch] or None
        Rows whose past ended before the step.
    last : bool [K, batch] or None
        Whether no reset follows the step: then it lies in the influence at the end.
    """

    linear: Linearization
    delta: Any
    resets: Any
    last: Any

    def at_the_end(self, values: Any) -> Any:
        """Values [K, batch, ...], zero where a reset follows, NaN or not."""
        if self.last is None:
            return values
        xp = namespace_of(values)
        last = self.last.reshape(*self.last.shape, *(1,) * (values.ndim - 2))
        return xp.where(last, values, xp.zeros_like(values))

    def without_resets(self, values: Any) -> Any:
        """Values [batch, ...], zero for the rows that are reset in the chunk."""
        if self.last is None:
            return values
        return reset_rows(values, ~self.last[0] | self.resets[0])


def run_chunks(learner: SnAp, chunking: Chunking, unroll: Unroll) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    params, carry, xs, ys, loss_fn, mask, resets, readout = unroll
    xp = namespace_of(xs)
    ready = _prepare(learner, chunking, params)
    columns = learner.plan.packing_for(xs).column_shapes()
    running = (
        carry,
        xp.zeros((), dtype=xs.dtype),
        tuple(xp.zeros(shape, dtype=xs.dtype) for shape in columns),
        map_tree(xp.zeros_like, params),
        map_tree(xp.zeros_like, readout),
    )

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        carry, *totals = running
        carry, *new = _chunk(learner, chunking, ready, carry, inputs, loss_fn, readout)
        return (carry, *map_tree(lambda one, other: one + other, totals, new)), None

    inputs = (xs, ys, mask, resets)
    length, steps = xs.shape[0], min(chunking.steps, xs.shape[0])
    whole = length // steps
    if whole > 1:
        split = map_tree(lambda a: a[: whole * steps].reshape(whole, steps, *a.shape[1:]), inputs)
        running, _ = scan(body, running, split)
    else:
        running, _ = body(running, map_tree(lambda a: a[:steps], inputs))
    if whole * steps < length:
        running, _ = body(running, map_tree(lambda a: a[whole * steps :], inputs))
    carry, loss, packed, gradients, readout_gradients = running
    flat = learner.plan.packing_for(xs).unpack_columns(packed, like=loss)
    gradients = map_tree(lambda one, other: one + other, gradients, learner.by_parameter(flat))
    return loss, gradients if readout is None else (gradients, readout_gradients), carry


def _prepare(learner: SnAp, chunking: Chunking, params: Params) -> Prepared:
    diagonal = chunking.diagonal
    return Prepared(
        learner.prepare(params),
        () if diagonal is None else diagonal.prepare(params, False),
        prepare_adjoint(chunking, learner.dynamics, params),
    )


def _chunk(
    learner: SnAp,
    chunking: Chunking,
    ready: Prepared,
    carry: Carry,
    inputs: Any,
    loss_fn: Any,
    readout: Any,
) -> tuple[Carry, Any, Blocks, Params, Any]:
    """The carry behind a chunk, its loss, and its gradients: packed, by parameter, of readout."""
    xs, ys, mask, resets = inputs
    xp = namespace_of(xs)

    def forward(state: Any, inputs: Any) -> tuple[Any, Linearization]:
        x, reset = inputs
        linear = learner.cell.linearize(ready.steps.cell, reset_rows(state, reset), x)
        return linear.state, linear

    state, linear = scan(forward, carry.state, (xs, resets))
    loss, delta, of_readout = differentiate_loss(loss_fn, readout, linear.state, ys, mask)
    influence = list(widened(carry))
    shapes = learner.plan.packing_for(xs).column_shapes()
    columns = [xp.zeros(shape, dtype=xs.dtype) for shape in shapes]
    last = None
    if resets is not None:
        influence = [reset_rows(block, resets[0]) for block in influence]
        later = xp.flip(xp.cumsum(xp.flip(resets, axis=(0,)), 0), axis=(0,))
        last = xp.concat([later[1:] == 0, xp.ones_like(resets[:1])], axis=0)
    stretch = Stretch(linear, delta, resets, last)
    rows = []
    if chunking.elementwise:
        own, product = _along_diagonal(chunking, ready, stretch)
        rows.append(own[0])
        for one in chunking.elementwise:
            at = one.number
            influence[at], columns[at] = _elementwise(
                learner, one, influence[at], stretch, own, product
            )
    elif chunking.own_row is not None:
        rows.append(xp.zeros_like(linear.state))
    if chunking.groups:
        paths = along_groups(chunking, learner.dynamics, ready.adjoint, stretch)
        joined = {one.numbers: _joined(one, influence) for one in chunking.groups}
        parts: dict[int, list[tuple[Any, Any]]] = {}
        for group, path in zip(chunking.groups, paths, strict=True):
            found = _groups(group, joined[group.numbers], stretch, path)
            for number in group.numbers:
                parts.setdefault(number, []).append(found)
            rows.append(path.emitted[..., 0])
        for merged in chunking.merged:
            at = merged.number
            influence[at], columns[at] = _merge(merged, parts[at], influence[at], columns[at])
    if chunking.stepped is not None:
        _step_others(learner, chunking, ready, stretch, influence, columns)
    adjoint = rows[0]
    if chunking.own_row is not None:
        adjoint = take_or_zero(xp.concat(rows, axis=-1), chunking.own_row)
    gradients = parameter_gradients(
        learner.cell, linear.sources, preactivation_adjoint(learner.cell, linear.gains, adjoint)
    )
    carry = Carry(state, narrowed(influence, carry), carry.step + xs.shape[0])
    return carry, loss, tuple(columns), gradients, of_readout


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
        parts.append(product_over_time(product * gain, _shared_sources(stretch, piece)))
    new = parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)
    if one.order is not None:
        new = _reordered(new[..., None, :], one.order)[..., 0, :]
    return stretch.without_resets(rows(start[1])[..., None] * influence) + new, columns


def _joined(one: Groups, influence: Sequence[Any]) -> Any:
    """[batch, rows, C]: the rows of all blocks that groups are from, one behind the other."""
    width = one.shape[-1]
    found = []
    for number in one.numbers:
        block = influence[number]
        xp = namespace_of(block)
        block = block.reshape(block.shape[0], -1, block.shape[-1])
        missing = width - block.shape[-1]
        if missing:
            zeros = xp.zeros((*block.shape[:-1], missing), dtype=block.dtype)
            block = xp.concat([block, zeros], axis=-1)
        found.append(block)
    return found[0] if len(found) == 1 else xp.concat(found, axis=1)


def _groups(one: Groups, influence: Any, stretch: Stretch, path: Path) -> tuple[Any, Any]:
    """The rows [batch, G * S, C] of the new influence, and lambda_0^T J_0 [G, C] over the batch."""
    xp = namespace_of(influence)
    num_groups, size, num_units, width = one.shape
    steps, batch = path.emitted.shape[:2]
    if one.influence_rows is not None:
        influence = take_or_zero(influence, one.influence_rows.reshape(-1), axis=-2)
    influence = influence.reshape(batch, num_groups, size, width)
    carried = matmul(xp.swapaxes(path.start, -1, -2), influence)  # [batch, G, 1 + S, C]
    columns = sum_batch(carried[..., 0, :])
    parts = one.gain_row.shape[1]
    phi = path.emitted[..., 1:].reshape(steps, batch, num_groups, parts, num_units, size)
    phi = stretch.at_the_end(phi)
    products: dict[int, Any] = {}
    pieces = []
    for piece in one.pieces:
        if piece.target not in products:
            gain = stretch.at_the_end(
                take(stretch.linear.gains[..., piece.target, :], one.gain_row)
            )
            terms = phi * gain[..., None]
            terms = terms[:, :, :, 0] if parts == 1 else terms.sum(axis=3)
            products[piece.target] = xp.moveaxis(terms, 0, -1)  # [batch, G, U, S, K]
        pieces.append(_product_over_time(products[piece.target], piece, stretch))
    new = pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=-1)
    if one.order is not None:
        new = _reordered(new, one.order)
    new = new + stretch.without_resets(carried[..., 1:, :])
    return new.reshape(batch, num_groups * size, width), columns


def _merge(
    merged: Merged, parts: list[tuple[Any, Any]], influence: Any, columns: Any
) -> tuple[Any, Any]:
    """A block of the influence, and one value for each of its columns, of those of its groups."""
    xp = namespace_of(influence)
    rows, groups = (
        found[0] if len(found) == 1 else xp.concat(found, axis=-2)
        for found in (list(one) for one in zip(*parts, strict=True))
    )
    if merged.rows is not None:
        rows = take_or_zero(rows, merged.rows, axis=-2)
    if merged.groups is not None:
        groups = take(groups, merged.groups, axis=-2)
    width = influence.shape[-1]
    return rows[..., :width].reshape(influence.shape), groups[..., :width].reshape(columns.shape)


def _product_over_time(weight: Any, piece: Piece, stretch: Stretch) -> Any:
    """[batch, G, S, U * count]: the sum over time of `weight` [batch, G, U, S, K] times sources."""
    xp = namespace_of(weight)
    batch, num_groups, num_units, size, steps = weight.shape
    if piece.source is None:
        shared = xp.moveaxis(_shared_sources(stretch, piece), 0, 1)  # [batch, K, count]
        product = matmul(weight.reshape(batch, num_groups * num_units * size, steps), shared)
        product = product.reshape(batch, num_groups, num_units, size, piece.count)
    else:
        sources = xp.permute_dims(stretch.at_the_end(stretch.linear.sources), (1, 2, 0))
        sources = take_or_zero(sources, piece.source, axis=-2)  # [batch, G, U, count, K]
        product = matmul(weight, xp.swapaxes(sources, -1, -2))
    product = xp.swapaxes(product, 2, 3)  # [batch, G, S, U, count]
    return product.reshape(batch, num_groups, size, num_units * piece.count)


def _shared_sources(stretch: Stretch, piece: Piece) -> Any:
    """[K, batch, count]: the sources of a piece."""
    sources = stretch.linear.sources[..., piece.first : piece.first + piece.count]
    return stretch.at_the_end(sources)


def _reordered(values: Any, order: Any) -> Any:
    """[batch, G, S, C]: the columns `order` [G, C] of `values` [batch, G, S, L]."""
    xp = namespace_of(values)
    batch, num_groups, size, length = values.shape
    if order.shape[1] == 0:
        return values[..., :0]
    row = xp.arange(num_groups * size).reshape(num_groups, size, 1) * (length + 1)
    index = row + index_like(values, order)[:, None, :]
    zero = xp.zeros((batch, num_groups, size, 1), dtype=values.dtype)
    bordered = xp.concat([values, zero], axis=-1).reshape(batch, -1)
    return take(bordered, index)


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
