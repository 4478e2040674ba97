"""`BPTT`: backpropagation through time, the method that the others are measured against."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from tritonsnap.arrays import Library, namespace, namespace_of
from tritonsnap.online.adjoints import (
    parameter_gradients,
    preactivation_adjoint,
    state_adjoint,
)
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Linearization, Params, Prepared
from tritonsnap.online.learner import Learner
from tritonsnap.online.trees import add_trees
from tritonsnap.online.unroll import Unroll, forward_pass


class Moment(NamedTuple):
    """What BPTT keeps of one step.

    Attributes
    ----------
    kernels
        The prepared kernels that the step used.
    linear
        The step's partial derivatives.
    reset : bool [batch] or None
        Rows whose past ended before the step.
    """

    kernels: Prepared
    linear: Linearization
    reset: Any


class BPTT(Learner):
    """Backpropagation through time, with the methods of the online learners.

    `sequence` goes back to the beginning of the sequence it is given (truncated BPTT where several
    are given one after the other). `step` keeps the whole history in the carry, and `gradient`
    goes back through it: right, and useful to compare with, at a memory that grows with time.

    References
    ----------
    Werbos, "Backpropagation Through Time: What It Does and How to Do It", Proc. IEEE 78(10), 1990.
    """

    prepared: ClassVar[type] = Prepared
    moment: ClassVar[type] = Moment
    """What the carry remembers of each step."""

    def init(self, batch: int, like: Library = "numpy", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows, without history."""
        xp = namespace(like)
        return Carry(self._zero_state(batch, like, dtype), (), xp.zeros((), dtype=xp.int32))

    @untracked
    def prepare(self, params: Params) -> Prepared:
        """What the steps read of the parameters; compute it once per update."""
        return self.cell.prepare(params)

    @untracked
    def step(
        self, ready: Prepared | Params, carry: Carry, x: Any, reset: Any = None
    ) -> tuple[Carry, Any]:
        """Go one step forward and remember it; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        linear = self.cell.linearize(ready, reset_rows(carry.state, reset), x)
        history = (*carry.influence, Moment(ready, linear, reset))
        return Carry(linear.state, history, carry.step + 1), linear.state

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current state through the whole history."""
        self._check_delta(carry, dL_dstate)
        xp = namespace_of(dL_dstate)
        adjoint, total = dL_dstate, None
        for moment in reversed(carry.influence):
            preactivation = preactivation_adjoint(self.cell, moment.linear.gains, adjoint)
            new = parameter_gradients(self.cell, moment.linear.sources, preactivation)
            total = new if total is None else add_trees(total, new)
            adjoint = state_adjoint(
                self.cell, moment.kernels, moment.linear.own, preactivation, adjoint
            )
            adjoint = reset_rows(adjoint, moment.reset)
        if total is None:
            shapes = {linear.name: linear.parameter_shape for linear in self.cell.maps}
            return {n: xp.zeros(shape, dtype=dL_dstate.dtype) for n, shape in shapes.items()}
        return total

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        ready, resets = self.prepare(unroll.params), unroll.resets
        state, linear = forward_pass(self.cell, ready, unroll.carry.state, unroll.xs, resets)
        loss, deltas, of_readout = unroll.loss(linear.state, unroll.ys, unroll.mask)

        def backward(adjoint: Any, inputs: Any) -> tuple[Any, Any]:
            gains, own, delta, reset = inputs
            adjoint = adjoint + delta
            preactivation = preactivation_adjoint(self.cell, gains, adjoint)
            adjoint = state_adjoint(self.cell, ready, own, preactivation, adjoint)
            return reset_rows(adjoint, reset), preactivation

        xp = namespace_of(state)
        moments = (linear.gains, linear.own, deltas, resets)
        _, preactivations = scan(backward, xp.zeros_like(state), moments, reverse=True)
        gradients = parameter_gradients(self.cell, linear.sources, preactivations)
        carry = Carry(state, (), unroll.carry.step + unroll.xs.shape[0])
        return unroll.result(loss, gradients, of_readout, carry)

    def _has_made(self, carry: Carry) -> bool:
        history = carry.influence
        return isinstance(history, tuple) and all(type(m) is self.moment for m in history[-1:])

    def __repr__(self) -> str:
        return f"BPTT({self.cell!r})"
