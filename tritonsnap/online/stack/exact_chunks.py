"""A stretch of time at once for an exact `Stack`: gradients and influence of K steps.

With s the states of all cells, ``Phi_t = ds_K/ds_t`` within the chunk, and A_t the derivative of s_K
in what a layer gives at step t, all by backpropagation through time and depth,

    gradient  = lambda_0^T J_0     + (backpropagation of the losses in the chunk)
    J_lm(K)   = sum_k Phi_0,lk J_km(0) + sum_t (A_t[l, m] g_t) u_t^T

for the rows of cell l and the parameters of layer m below it. The last sum is a product over time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import preactivation_adjoint
from tritonsnap.online.backend import (
    matmul,
    product_over_time,
    reset_rows,
    take,
    take_or_zero,
)
from tritonsnap.online.carry import Carry, in_dtype_of, stored_as
from tritonsnap.online.cell import Cell, Linearization, Params
from tritonsnap.online.chunk import Stretch
from tritonsnap.online.chunk_columns import Piece
from tritonsnap.online.stack.adjoints import go_back, layer_gradients
from tritonsnap.online.stack.chunks import through_network
from tritonsnap.online.stack.exact_structure import Entries, ExactChunking, LayerColumns
from tritonsnap.online.stack.feed_forward import FeedForward
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
        stretch = Stretch.of(None, delta, resets)
        influence = progress.influence
        if resets is not None:
            influence = map_tree(lambda block: reset_rows(block, resets[0]), influence)
        nothing = map_tree(lambda phi: xp.zeros_like(phi[:, 0]), _last_states(stack, xs))
        first, deltas = go_back(stack, layers, moments, delta, nothing, resets)
        new = Progress(
            _carry_through(stack, chunking, layers, influence, moments, stretch),
            _columns(first, influence),
            layer_gradients(stack, layers, moments, deltas),
        )
        return Progress(new.influence, *add_trees(progress[1:], new[1:]))

    start = Progress(
        _dense(learner, chunking, in_dtype_of(xs, carry.influence)),
        tuple(own and xp.zeros(own.number, dtype=xs.dtype) for own in chunking.columns),
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
    by_layer = stack.shaped(xp.concat(columns), len(stack.layers))
    gradients = add_trees(end.progress.gradients, stack.joined(by_layer))
    carry = Carry(end.state, after, carry.step + xs.shape[0])
    return unroll.result(end.loss, gradients, end.of_readout, carry)


def _columns(adjoints: Any, influence: Any) -> Blocks:
    """``lambda_0^T J_0``, summed over the batch."""
