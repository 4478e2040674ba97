"""`Unroll`: a stretch of time that a learner goes through with constant parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tritonsnap.online.backend import differentiate_loss, reset_rows, scan
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Linearization, Params, Prepared

LossFunction = Callable[..., Any]


class Unroll(NamedTuple):
    """What `Learner.sequence` is given: where it starts, what it reads and what it loses.

    Attributes
    ----------
    params
        The cell's parameters.
    carry
        The learner's state before the first step.
    xs : [T, batch, inputs]
        The inputs.
    ys : [T, batch, ...]
        The targets.
    loss_fn
        The loss of a state and a target, or of a readout, a state and a target.
    mask : [T, batch] or None
        What each loss is multiplied by.
    resets : bool [T, batch] or None
        Rows whose past ends before the step.
    readout
        Parameters of the loss function, or None.
    """

    params: Any
    carry: Any
    xs: Any
    ys: Any
    loss_fn: Any
    mask: Any
    resets: Any
    readout: Any

    @property
    def series(self) -> tuple[Any, Any, Any, Any]:
        """What a scan over time takes apart: inputs, targets, mask and resets."""
        return self.xs, self.ys, self.mask, self.resets

    @property
    def arrays(self) -> Unroll:
        """The same without the loss function, which is no array."""
        return self._replace(loss_fn=None)

    def loss(self, state: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """A loss and its gradients in the state and the readout; see `differentiate_loss`."""
        return differentiate_loss(self.loss_fn, self.readout, state, y, weight)

    def result(
        self, loss: Any, gradients: Params, of_readout: Any, carry: Carry
    ) -> tuple[Any, Any, Carry]:
        """What `Learner.sequence` returns: the readout's gradient only where there is a readout."""
        return loss, gradients if self.readout is None else (gradients, of_readout), carry


def forward_pass(
    cell: Cell, ready: Prepared, state: Any, xs: Any, resets: Any
) -> tuple[Any, Linearization]:
    """The state behind some steps, and the partial derivatives of each, stacked.

    Parameters
    ----------
    cell
        The network.
    ready
        What `cell.prepare` returned.
    state : [batch, rows]
        The state before the first step.
    xs : [K, batch, inputs]
        The inputs.
    resets : bool [K, batch] or None
        Rows whose state is zeroed before the step.
    """

    def forward(state: Any, inputs: Any) -> tuple[Any, Linearization]:
        x, reset = inputs
        linear = cell.linearize(ready, reset_rows(state, reset), x)
        return linear.state, linear

    return scan(forward, state, (xs, resets))
