"""`Carry`: what a learner takes from one step to the next."""

from __future__ import annotations

from typing import Any, NamedTuple


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
