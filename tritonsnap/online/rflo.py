"""`RFLO`: the cheapest local rule, an eligibility trace within each unit."""

from __future__ import annotations

from typing import ClassVar

from tritonsnap.online.cell import Cell
from tritonsnap.online.snap import HalfPrecision, SnAp


class RFLO(SnAp):
    """The influence of random-feedback local online learning: no paths through weights.

    Of the dynamics only what a unit does to itself directly is kept: its leak, in a GRU its update
    gate. So ``J_t = I_t + diag(g_0) J_{t-1}``, one number for each parameter and row of the batch;
    for the leaky network of the paper ``p_t = (1 - 1/tau) p_{t-1} + (1/tau) phi'(u) h``. In a cell
    without such a path (`RNN`) the past is forgotten at once.

    SnAp-1 keeps one path more: that of a unit through its own recurrent weight. Where no unit has
    such a weight, the two are equal.

    Random feedback is up to the caller: hand `gradient` the error times a fixed random matrix in
    place of ``dL_dstate``.

    Parameters
    ----------
    cell
        The network.
    influence_dtype
        As in `SnAp`.

    References
    ----------
    Murray, "Local online learning in recurrent networks with random feedback", eLife 8, 2019.
    """

    weighted: ClassVar = False

    def __init__(self, cell: Cell, *, influence_dtype: HalfPrecision | None = None) -> None:
        super().__init__(cell, None, influence_dtype=influence_dtype)

    def __repr__(self) -> str:
        return f"RFLO({self.cell!r}{self._stored_as()})"
