"""`BPTT` of a `Stack`."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Params
from tritonsnap.online.learner import form_of
from tritonsnap.online.stack.adjoints import go_back, layer_gradients, step_back
from tritonsnap.online.stack.learner import StackLearner
from tritonsnap.online.stack.network import PreparedStack
from tritonsnap.online.unroll import Unroll


class StackMoment(NamedTuple):
    """What BPTT keeps of one step of a stack.

    Attributes
    ----------
    layers
        What the step read of the parameters.
    moments
        For each layer what its derivatives are made of: see `Stack.linearize`.
    reset : bool [batch] or None
        Rows whose past ended before the step.
    """

    layers: tuple[Any, ...]
    moments: tuple[Any, ...]
    reset: Any


@form_of(BPTT)
class StackBPTT(StackLearner, BPTT):
    """`BPTT` of a `Stack`: exact, through depth and time."""

    prepared: ClassVar[type] = PreparedStack
    moment: ClassVar[type] = StackMoment

    def _learner_of(self, cell: Cell) -> BPTT:
        return BPTT(cell)

    @untracked
    def step(self, ready: Any, carry: Carry, x: Any, reset: Any = None) -> tuple[Carry, Any]:
        """Go one step forward and remember it; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        state, moments = self.stack.linearize(ready.layers, reset_rows(carry.state, reset), x)
        history = (*carry.influence, StackMoment(ready.layers, moments, reset))
        return Carry(state, history, carry.step + 1), self.output_of(state)

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current output through the whole history."""
        self._check_delta(carry, dL_dstate)
        xp = namespace_of(dL_dstate)
        total = {
            name: xp.zeros(shape, dtype=dL_dstate.dtype)
            for name, shape in self.stack.parameter_shapes.items()
        }
        delta, adjoints = dL_dstate, None
        for layers, moments, reset in reversed(carry.influence):
            deltas, adjoints = step_back(self.stack, layers, moments, delta, adjoints, reset)
            new = layer_gradients(self.stack, layers, moments, deltas)
            # layers above the last cell count at the time of the loss only
            total |= {name: total[name] + value for name, value in new.items()}
            delta = None
        return total

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        layers, resets = self.stack.prepare(unroll.params).layers, unroll.resets

        def forward(state: Any, inputs: Any) -> tuple[Any, Any]:
            x, reset = inputs
            state, moments = self.stack.linearize(layers, reset_rows(state, reset), x)
            return state, (self.output_of(state), moments)

        state, (outputs, moments) = scan(forward, unroll.carry.state, (unroll.xs, resets))
        loss, delta, of_readout = unroll.loss(outputs, unroll.ys, unroll.mask)

        xp = namespace_of(state)
        end = tuple(
            xp.zeros_like(state[..., place]) if isinstance(layer, Cell) else None
            for layer, place in zip(self.stack.layers, self.stack.places, strict=True)
        )
        _, deltas = go_back(self.stack, layers, moments, delta, end, resets)
        gradients = layer_gradients(self.stack, layers, moments, deltas)
        carry = Carry(state, (), unroll.carry.step + unroll.xs.shape[0])
        return unroll.result(loss, gradients, of_readout, carry)
