"""`Carry`: what a learner takes from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tritonsnap.arrays import namespace_of


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
    return tuple(_as_dtype(block, carry.state.dtype) for block in carry.influence)


def narrowed(influence: Sequence[Any], carry: Carry) -> tuple[Any, ...]:
    """A new influence in the dtype in which `carry` stores it."""
    return tuple(
        _as_dtype(new, old.dtype) for new, old in zip(influence, carry.influence, strict=True)
    )


def _as_dtype(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else namespace_of(array).astype(array, dtype)
