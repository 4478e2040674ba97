"""Gradients of a `Stack` backwards through time, and down through the depth at each time."""

from __future__ import annotations

from typing import Any

from tritonsnap.online.adjoints import parameter_gradients, preactivation_adjoint, state_adjoint
from tritonsnap.online.backend import reset_rows, scan
from tritonsnap.online.cell import Cell, Linearization, Params
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.stack.network import Stack


def go_back(
    stack: Stack, layers: Any, moments: Any, delta: Any, end: Any, resets: Any
) -> tuple[Any, Any]:
    """Go back over a stretch of time.

    Parameters
    ----------
    stack
        The network.
    layers
        What its steps read of the parameters.
    moments
        From `Stack.linearize`, over time.
    delta : [K, ..., outputs] or None
        The gradient in the output of each step.
    end
        For each cell the gradient in its last state that comes from later; None for all others.
    resets : bool [K, batch] or None
        Rows whose past ended before the step.

    Returns
    -------
    adjoints
        For each cell the gradient in the state before the first step.
    deltas
        For each layer and step the gradient in its new state, or in what it gives.
    """

    def back(adjoints: Any, inputs: Any) -> tuple[Any, Any]:
        moments, delta, reset = inputs
        deltas, adjoints = step_back(stack, layers, moments, delta, adjoints, reset)
        return adjoints, deltas

    read = tuple(
        moment._replace(state=None, sources=None) if isinstance(moment, Linearization) else moment
        for moment in moments
    )
    return scan(back, end, (read, delta, resets), reverse=True)


def step_back(
    stack: Stack, layers: Any, moments: Any, delta: Any, adjoints: Any, reset: Any
) -> tuple[Any, Any]:
    """Go back over one step.

    Returns
    -------
    deltas
        For each layer the gradient in its new state, or in what it gives; None where there is no
        path.
    adjoints
        For each cell the gradient in its old state.
    """
    deltas = stack.descend(
        stack.weights_down(layers), stack.trace(moments), delta, futures=adjoints
    )
    past: list[Any] = []
    for layer, own, moment, at in zip(stack.layers, layers, moments, deltas, strict=True):
        adjoint = None
        if at is not None and isinstance(layer, Cell):
            through = preactivation_adjoint(layer, moment.gains, at)
            adjoint = state_adjoint(layer, own, moment.own, through, at)
            adjoint = reset_rows(adjoint, reset)
        past.append(adjoint)
    return deltas, tuple(past)


def layer_gradients(stack: Stack, layers: Any, moments: Any, deltas: Any) -> Params:
    """The gradients in all parameters, summed over all leading axes, from those of `step_back`."""
    by_layer: list[Params] = []
    for layer, own, moment, at in zip(stack.layers, layers, moments, deltas, strict=True):
        found: Params = {}
        if at is not None and isinstance(layer, Cell):
            through = preactivation_adjoint(layer, moment.gains, at)
            found = parameter_gradients(layer, moment.sources, through)
        if at is not None and isinstance(layer, FeedForward):
            found = layer.gradients(own, moment, at)
        by_layer.append(found)
    return stack.joined(by_layer)
