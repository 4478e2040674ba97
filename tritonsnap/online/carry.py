"""`Carry`: what a learner takes from one step to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tritonsnap.arrays import library_of, namespace_of
from tritonsnap.online.trees import map_tree
from tritonsnap.plan.packing import Packing

Blocks = tuple[Any, ...]


class Carry(NamedTuple):
    """The state of a learner.

    Attributes
    ----------
    state : [batch, rows]
        The state of the network.
    influence : tuple of arrays
        The packed influence (SnAp, RTRL), or the history (BPTT).
    step : int array []
        Steps taken.
    """

    state: Any
    influence: Any
    step: Any


def widened(carry: Carry) -> tuple[Any, ...]:
    """The influence in the dtype of the state, in which everything is computed."""
    blocks: tuple[Any, ...] = in_dtype_of(carry.state, carry.influence)
    return blocks


def narrowed(influence: Sequence[Any], carry: Carry) -> tuple[Any, ...]:
    """A new influence in the dtype in which `carry` stores it."""
    blocks: tuple[Any, ...] = stored_as(carry.influence, tuple(influence))
    return blocks


def memory_of_steps(packing: Packing, carry: Carry) -> Callable[[Blocks], Blocks | None]:
    """Where each step of a sequence writes its influence, given the old one; None for new memory.

    On a GPU, if the packing is `in_place`, a sequence has one influence beside the one in `carry`,
    which is the caller's: nobody else holds those between its steps.
    """
    if not (packing.in_place and packing.target.canonical):
        return lambda old: None
    if library_of(carry.state) == "torch":
        import torch

        from tritonsnap.plan.torch_operator import is_transformed

        if torch.compiler.is_compiling() or is_transformed([carry.state, *carry.influence]):
            return lambda old: None
        if all(block.dtype == carry.state.dtype for block in carry.influence):
            memory = tuple(map(torch.empty_like, carry.influence))
            return lambda old: memory
    return lambda old: old  # a widened copy, or one that XLA knows to be dead


def in_dtype_of(array: Any, tree: Any) -> Any:
    """A tree of arrays in the dtype of an array."""
    return map_tree(lambda leaf: _as_dtype(leaf, array.dtype), tree)


def stored_as(old: Any, new: Any) -> Any:
    """A tree of arrays in the dtypes that those of an older one have."""
    return map_tree(lambda leaf, other: _as_dtype(leaf, other.dtype), new, old)


def _as_dtype(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else namespace_of(array).astype(array, dtype)
