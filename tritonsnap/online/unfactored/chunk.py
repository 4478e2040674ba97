"""A stretch of time at once for cells whose Jacobians come as values.

With ``lambda`` and ``Phi`` as in `tritonsnap.online.chunk`, for the rows S of each group,

    gradient = lambda_0^T J_0 + sum_t lambda_t^T I_t
    J_K      = Phi_0 J_0      + sum_t Phi_t I_t

The immediate Jacobian I_t itself is not needed: a row of ``Phi_t``, laid over all rows of the state
for all groups of one color, is an adjoint of the step, and derivatives in parameters that are
constant in time sum over time by themselves. They are products of matrices.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import (
    index_like,
    matmul,
    reset_rows,
    scan,
    sum_batch,
    take,
    take_or_zero,
)
from tritonsnap.online.carry import Carry, narrowed, widened
from tritonsnap.online.chunk import Stretch, through_chunks
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unfactored.chunk_structure import Part, UnfactoredChunking
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan.packing import Packing

if TYPE_CHECKING:
    from tritonsnap.online.unfactored.learners import UnfactoredSnAp


class Read(NamedTuple):
    """What the steps of a chunk read: old states [K, batch, rows] and inputs [K, batch, inputs]."""

    states: Any
    xs: Any


class Path(NamedTuple):
    """The adjoints of a part, a matrix ``[lambda | Phi^T]`` [S, 1 + S] for each group.

    Attributes
    ----------
    after : [K, batch, G, S, 1 + S]
        Those after each step.
    first : [batch, G, S, 1 + S]
        Those before the first.
    """

    after: Any
    first: Any


def run_chunks(
    learner: UnfactoredSnAp, chunking: UnfactoredChunking, unroll: Unroll
) -> tuple[Any, Any, Carry]:
    """`Learner.sequence` on checked arguments, chunk by chunk."""
    carry, xs = unroll.carry, unroll.xs
    xp = namespace_of(xs)
    packing = learner.plan.packing_for(xs)
    ready = learner.cell.prepare(unroll.params)

    def forward(state: Any, inputs: Any) -> tuple[Any, tuple[Any, Any]]:
        x, reset = inputs
        old = reset_rows(state, reset)
        state = learner.cell.step(ready, old, x)
        return state, (old, state)

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        state, *so_far, total, of_readout = running
        xs, ys, mask, resets = inputs
        state, (old, states) = scan(forward, state, (xs, resets))
        loss, delta, new = unroll.loss(states, ys, mask)
        stretch = Stretch.of(Read(old, xs), delta, resets)
        so_far = _advance(learner, chunking, ready, so_far, stretch)
        return (state, *so_far, total + loss, add_trees(of_readout, new)), None

    running = (
        carry.state,
        _apart(chunking, widened(carry)),
        tuple(xp.zeros(shape, dtype=xs.dtype) for shape in packing.column_shapes()),
        xp.zeros((learner.plan.mask.shape[1],), dtype=xs.dtype),
        xp.zeros((), dtype=xs.dtype),
        map_tree(xp.zeros_like, unroll.readout),
    )
    running = through_chunks(body, running, unroll.series, chunking.steps)
    state, influence, columns, flat, loss, of_readout = running
    flat = flat + packing.unpack_columns(columns, like=loss)
    blocks = narrowed(_together(chunking, packing, influence), carry)
    carry = Carry(state, blocks, carry.step + xs.shape[0])
    return unroll.result(loss, learner.by_parameter(flat), of_readout, carry)


def _advance(
    learner: UnfactoredSnAp, chunking: UnfactoredChunking, ready: Any, so_far: Any, stretch: Stretch
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """The influence behind a chunk, and the gradients with those of the losses in it.

    These are the ones that the influence at its begin has a part in, by columns, and the others.
    """
    influence, columns, flat = so_far
    states, xs = stretch.linear
    xp = namespace_of(states)
    steps, batch = xs.shape[:2]
    at_once = (array.reshape(steps * batch, -1) for array in stretch.linear)
    dynamics = learner.jacobians.dynamics(ready, *at_once).reshape(steps, batch, -1)
    read = _at_the_end(stretch)
    if stretch.resets is not None:
        influence = map_tree(lambda block: reset_rows(block, stretch.resets[0]), influence)
    blocks, totals = list(influence), list(columns)
    for part in chunking.parts:
        path = _along(part, dynamics, stretch)
        own_flat, added = _immediate(learner, part, ready, path, stretch, read)
        flat = flat + own_flat
        start = 0
        for number, new in zip(part.numbers, added, strict=True):
            end = start + new.shape[1]
            first = path.first[:, start:end]
            block = influence[number]
            carried = _times(xp.swapaxes(first[..., 1:], -1, -2), block)
            blocks[number] = stretch.without_resets(carried) + new
            total = _times(xp.swapaxes(first[..., :1], -1, -2), block)
            totals[number] = totals[number] + sum_batch(total[..., 0, :])
            start = end
    return tuple(blocks), tuple(totals), flat


def _at_the_end(stretch: Stretch) -> Read:
    """What the steps read that lie in the influence at the end; the last step's before a reset."""
    read: Read = stretch.linear
    if stretch.last is None:
        return read
    xp = namespace_of(read.xs)
    last = stretch.last[..., None]
    return Read(*(xp.where(last, array, array[-1:]) for array in read))


def _along(part: Part, dynamics: Any, stretch: Stretch) -> Path:
    """Carry the adjoints of a part back through a chunk; values of the dynamics [K, batch, nnz]."""
    xp = namespace_of(dynamics)
    num_groups, size = part.shape
    batch = dynamics.shape[1]
    identity = xp.concat(
        [xp.zeros((size, 1), dtype=dynamics.dtype), xp.eye(size, dtype=dynamics.dtype)], axis=1
    )
    end = identity + xp.zeros((batch, num_groups, 1, 1), dtype=dynamics.dtype)

    def back(adjoint: Any, inputs: Any) -> tuple[Any, Any]:
        values, delta, reset = inputs
        own = take_or_zero(delta, part.support)[..., None]
        adjoint = xp.concat([adjoint[..., :1] + own, adjoint[..., 1:]], axis=-1)
        if part.entry is None:
            transposed = values.reshape(batch, num_groups, size, size)
        else:
            transposed = take_or_zero(values, part.entry)
        return reset_rows(_times(transposed, adjoint), reset), adjoint

    inputs = (dynamics, stretch.delta, stretch.resets)
    first, after = scan(back, end, inputs, reverse=True)
    return Path(after, first)


def _immediate(
    learner: UnfactoredSnAp, part: Part, ready: Any, path: Path, stretch: Stretch, read: Read
) -> tuple[Any, tuple[Any, ...]]:
    """``lambda^T I`` [parameters] over the batch, and ``Phi I`` [batch, G, S, C] for each block."""
    xp = namespace_of(stretch.delta)
    steps, batch, num_rows = stretch.delta.shape
    size = part.shape[1]
    adjoints = path.after.reshape(steps, batch, -1, 1 + size)
    states, xs = (xp.swapaxes(array, 0, 1) for array in read)
    every_state, every_x = (array.reshape(1, steps * batch, -1) for array in stretch.linear)
    products = partial(learner.cell.immediate_products, ready)

    def of_color(number: Any, owner: Any, counted: Any) -> tuple[Any, tuple[Any, ...]]:
        by_row = adjoints if owner is None else take_or_zero(adjoints, owner, axis=-2)
        of_lambda = by_row[..., 0].reshape(1, 1, steps * batch, num_rows)
        flat = products(every_state, every_x, of_lambda)[0, 0]
        if counted is not None:
            flat = xp.where(counted, flat, xp.zeros_like(flat))
        phi = xp.permute_dims(stretch.at_the_end(by_row[..., 1:]), (1, 3, 0, 2))
        of_phi = products(states, xs, phi)  # [batch, S, parameters]
        added = []
        for columns, color in zip(part.columns, part.color, strict=True):
            if columns is None:
                added.append(of_phi[:, None])
                continue
            place = _like(of_phi, columns)
            if number is not None:  # zero for groups of another color
                own = _like(of_phi, color) == number
                place = xp.where(own[:, None], place, of_phi.shape[-1])
            added.append(xp.swapaxes(take_or_zero(of_phi, place), 1, 2))
        return flat, tuple(added)

    owner, counted = (
        None if array is None else _like(stretch.delta, array)
        for array in (part.owner, part.counted)
    )
    if counted is not None:
        counted = counted != 0
    if part.num_colors == 1:
        return of_color(
            None,
            None if owner is None else owner[0],
            None if counted is None else counted[0],
        )

    def body(running: Any, inputs: Any) -> tuple[Any, None]:
        return add_trees(running, of_color(*inputs)), None

    def zeros(*shape: int) -> Any:
        return xp.zeros(shape, dtype=stretch.delta.dtype)

    blocks = (zeros(batch, one.shape[0], size, one.shape[1]) for one in part.columns)
    start = (zeros(learner.plan.mask.shape[1]), tuple(blocks))
    number = _like(stretch.delta, np.arange(part.num_colors))
    (flat, added), _ = scan(body, start, (number, owner, counted))
    return flat, added


def _like(values: Any, index: Any) -> Any:
    """An index array as an array of the library of values."""
    return namespace_of(values).asarray(index_like(values, index))


def _times(matrices: Any, values: Any) -> Any:
    """Products of matrices, of one number each times a row where they are no larger."""
    return matrices * values if matrices.shape[-1] == 1 else matmul(matrices, values)


def _apart(chunking: UnfactoredChunking, influence: tuple[Any, ...]) -> tuple[Any, ...]:
    """The blocks of an influence as [batch, G, S, C]."""
    blocks = list(influence)
    for part in chunking.parts:
        for number in part.numbers:
            block = blocks[number]
            if part.places is not None:
                block = take_or_zero(block, part.places.reshape(-1), axis=-2)
            num_groups, size = part.shape
            if len(part.numbers) > 1:
                num_groups = block.shape[1]
            blocks[number] = block.reshape(block.shape[0], num_groups, size, block.shape[-1])
    return tuple(blocks)


def _together(
    chunking: UnfactoredChunking, packing: Packing, influence: tuple[Any, ...]
) -> list[Any]:
    """The inverse of `_apart`."""
    blocks = list(influence)
    for part in chunking.parts:
        for number in part.numbers:
            block = blocks[number]
            if part.rows is not None:
                block = block.reshape(block.shape[0], -1, block.shape[-1])
                block = take(block, part.rows, axis=-2)
            shape = packing.blocks[number].mask_shape
            blocks[number] = block.reshape(block.shape[0], *shape)
    return blocks
