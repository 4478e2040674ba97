"""`BPTT` of a `Stack`."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import parameter_gradients, preactivation_adjoint
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Params
from tritonsnap.online.learner import form_of
from tritonsnap.online.stack.feed_forward import FeedForward
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
            deltas, adjoints = self._step_back(layers, moments, delta, adjoints, reset)
            # layers above the last cell count at the time of the loss only
            total |= {n: total[n] + g for n, g in self._gradients(layers, moments, deltas).items()}
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

        def backward(adjoints: Any, inputs: Any) -> tuple[Any, Any]:
            moments, delta, reset = inputs
            deltas, adjoints = self._step_back(layers, moments, delta, adjoints, reset)
            return adjoints, deltas

        xp = namespace_of(state)
        end = tuple(
            xp.zeros_like(state[..., place]) if learner is not None else None
            for learner, place in zip(self.learners, self.stack.places, strict=True)
        )
        way_back = tuple(
            moment._replace(state=None, sources=None) if learner is not None else moment
            for learner, moment in zip(self.learners, moments, strict=True)
        )
        _, deltas = scan(backward, end, (way_back, delta, resets), reverse=True)
        gradients = self._gradients(layers, moments, deltas)
        carry = Carry(state, (), unroll.carry.step + unroll.xs.shape[0])
        return unroll.result(loss, gradients, of_readout, carry)

    def _step_back(
        self, layers: Any, moments: Any, delta: Any, adjoints: Any, reset: Any
    ) -> tuple[Any, Any]:
        """Go back over one step.

        Returns
        -------
        deltas
            For each layer the gradient in its new state, or in what it gives.
        adjoints
            For each cell the gradient in its old state.
        """
        deltas = self.stack.descend(
            self.stack.weights_down(layers), self.stack.trace(moments), delta, futures=adjoints
        )
        past: list[Any] = []
        for learner, own, moment, at in zip(self.learners, layers, moments, deltas, strict=True):
            adjoint = None
            if learner is not None:
                through = preactivation_adjoint(learner.cell, moment.gains, at)
                adjoint = learner._back(own, moment.own, through, at)
                adjoint = reset_rows(adjoint, reset)
            past.append(adjoint)
        return deltas, tuple(past)

    def _gradients(self, layers: Any, moments: Any, deltas: Any) -> Params:
        """The gradients in all parameters, summed over all leading axes."""
        by_layer: list[Params] = []
        for number, (layer, at) in enumerate(zip(self.stack.layers, deltas, strict=True)):
            moment, found = moments[number], {}
            if at is not None and isinstance(layer, Cell):
                through = preactivation_adjoint(layer, moment.gains, at)
                found = parameter_gradients(self.learners[number].cell, moment.sources, through)
            if at is not None and isinstance(layer, FeedForward):
                found = layer.gradients(layers[number], moment, at)
            by_layer.append(found)
        return self.stack.joined(by_layer)
