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

from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import (
    add_to_first,
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
from tritonsnap.online.chunk_structure import Chunking, Elementwise, Groups, Piece
from tritonsnap.online.tangents import parameter_gradients, preactivation_adjoint
from tritonsnap.online.trees import map_tree
from tritonsnap.ops import influence_gradient, masked_dsmm

if TYPE_CHECKING:
    from tritonsnap.online.snap import SnAp, SnApPrepared

Blocks = tuple[Any, ...]


class Prepared(NamedTuple):
    """What chunks read of the parameters: those of the steps, and weights for the adjoints."""

    steps: SnApPrepared
    diagonal: tuple[Any, ...]
    adjoint: tuple[Any, ...]


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


def run_chunks(
    learner: SnAp,
    chunking: Chunking,
    params: Params,
    carry: Carry,
    xs: Any,
    ys: Any,
    loss_fn: Any,
    mask: Any,
    resets: Any,
    readout: Any,
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
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
    diagonal, adjoint = chunking.diagonal, chunking.adjoint_dynamics
    return Prepared(
        learner.prepare(params),
        () if diagonal is None else diagonal.prepare(params, False),
        () if adjoint is None else adjoint.prepare(params, _wants_dense(chunking, params)),
    )


def _wants_dense(chunking: Chunking, params: Params) -> bool:
    assert chunking.adjoint is not None
    return chunking.adjoint.packing_for(*params.values()).wants_dense


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
        emitted, start = _along_groups(chunking, ready, stretch)
        for group, path, first in zip(chunking.groups, emitted, start, strict=True):
            at = group.number
            influence[at], columns[at] = _groups(group, influence[at], stretch, path, first)
            rows.append(path[..., 0])
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


def _along_groups(
    chunking: Chunking, ready: Prepared, stretch: Stretch
) -> tuple[list[Any], list[Any]]:
    """Carry the adjoints of all groups back through the chunk.

    Returns
    -------
    path
        For each block [K, batch, G * parts * U, W]: the rows of each group's own units.
    start
        For each block [batch, R, W]: all rows, before the first step.
    """
    assert chunking.adjoint is not None
    assert chunking.adjoint_dynamics is not None
    adjoint, dynamics = chunking.adjoint, chunking.adjoint_dynamics
    xp = namespace_of(stretch.delta)
    packing = adjoint.packing_for(stretch.delta)
    dense = packing.wants_dense
    batch = stretch.delta.shape[1]
    shapes = packing.shapes("x")

    def end(one: Groups, shape: tuple[int, ...]) -> Any:
        place = index_like(stretch.delta, one.place)[:, None]
        identity = xp.arange(shape[-1])[None, :] == place + 1
        values = xp.astype(identity, stretch.delta.dtype).reshape(shape)
        return xp.broadcast_to(values, (batch, *shape)) + xp.zeros((batch, *(1,) * len(shape)))

    def back(blocks: Blocks, inputs: Any) -> tuple[Blocks, tuple[Any, ...]]:
        gains, own, delta, reset = inputs
        with_delta, emitted = [], []
        for one, block, shape in zip(chunking.groups, blocks, shapes, strict=True):
            rows = take_or_zero(delta, one.row).reshape(batch, *shape[:-1])
            block = add_to_first(block, rows)
            with_delta.append(block)
            flat = block.reshape(batch, -1, shape[-1])
            if one.unit_row is not None:
                flat = take_or_zero(flat, one.unit_row.reshape(-1), axis=-2)
            emitted.append(flat)
        d = dynamics.multiplied(ready.adjoint, Linearization(delta, gains, own, None), dense)
        d = xp.swapaxes(d, -1, -2) if dense else d
        before = masked_dsmm(d, tuple(with_delta), adjoint, form="dense" if dense else "values")
        return tuple(reset_rows(one, reset) for one in before), tuple(emitted)

    ends = tuple(end(one, shape) for one, shape in zip(chunking.groups, shapes, strict=True))
    linear = stretch.linear
    inputs = (linear.gains, linear.own, stretch.delta, stretch.resets)
    blocks, path = scan(back, ends, inputs, reverse=True)
    start = [
        block.reshape(batch, -1, shape[-1]) for block, shape in zip(blocks, shapes, strict=True)
    ]
    return list(path), start


def _groups(
    one: Groups, influence: Any, stretch: Stretch, path: Any, start: Any
) -> tuple[Any, Any]:
    """The new influence of a block of groups, and lambda_0^T J_0 [G, C] over the batch."""
    xp = namespace_of(influence)
    num_groups, size, num_units, width = one.shape
    steps, batch = path.shape[:2]
    if one.adjoint_rows is not None:
        start = take_or_zero(start, one.adjoint_rows.reshape(-1), axis=-2)
    start = start.reshape(batch, num_groups, size, start.shape[-1])
    if one.influence_rows is not None:
        influence = take_or_zero(influence, one.influence_rows.reshape(-1), axis=-2)
        influence = influence.reshape(batch, num_groups, size, width)
    carried = matmul(xp.swapaxes(start, -1, -2), influence)  # [batch, G, 1 + S, C]
    columns = sum_batch(carried[..., 0, :])
    parts = one.gain_row.shape[1]
    path = path[..., 1:].reshape(steps, batch, num_groups, parts, num_units, size)
    path = stretch.at_the_end(path)
    products: dict[int, Any] = {}
    pieces = []
    for piece in one.pieces:
        if piece.target not in products:
            gain = stretch.at_the_end(
                take(stretch.linear.gains[..., piece.target, :], one.gain_row)
            )
            terms = path * gain[..., None]
            products[piece.target] = terms[:, :, :, 0] if parts == 1 else terms.sum(axis=3)
        pieces.append(_product_over_time(products[piece.target], piece, stretch))
    new = pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=-1)
    if one.order is not None:
        new = _reordered(new, one.order)
    new = new + stretch.without_resets(carried[..., 1:, :])
    if one.packed_rows is not None:
        new = take(new.reshape(batch, num_groups * size, width), one.packed_rows, axis=-2)
    return new, columns


def _product_over_time(weight: Any, piece: Piece, stretch: Stretch) -> Any:
    """[batch, G, S, U * count]: the sum over time of `weight` [K, batch, G, U, S] times sources."""
    xp = namespace_of(weight)
    steps, batch, num_groups, num_units, size = weight.shape
    if piece.source is None:
        together = xp.swapaxes(weight, 3, 4).reshape(steps, batch, num_groups * size * num_units)
        product = product_over_time(together, _shared_sources(stretch, piece))
        return product.reshape(batch, num_groups, size, num_units * piece.count)
    sources = take_or_zero(stretch.at_the_end(stretch.linear.sources), piece.source)
    sources = xp.permute_dims(sources, (1, 2, 3, 0, 4))  # [batch, G, U, K, count]
    product = matmul(xp.permute_dims(weight, (1, 2, 3, 4, 0)), sources)
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
