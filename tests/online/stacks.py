"""Networks of several layers written out plainly, for autodiff to differentiate."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from networks import (
    OUTPUTS,
    Problem,
    autodiff,
    kernel,
    library,
    new_state,
    stopped,
)

from tritonsnap import Cell, FeedForward, LayerNorm, Linear, LinearMap, Readout, Stack
from tritonsnap.arrays import namespace, namespace_of


@dataclass(frozen=True)
class Accumulator(Cell):
    """A state of two parts, of which the second is passed on: ``c' = 0.8 c + tanh(a)``, tanh c'."""

    parts: ClassVar = ("memory", "hidden")
    targets: ClassVar = ("preactivation",)

    def make_maps(self):
        target = self.targets[0]
        return [
            LinearMap("input", "input", target, (self.inputs, self.hidden)),
            LinearMap("recurrent", "hidden", target, (self.hidden, self.hidden)),
            LinearMap("bias", "one", target, (1, self.hidden)),
        ]

    def activate(self, xp, a, state):
        memory = 0.8 * state["memory"] + xp.tanh(a["preactivation"])
        return {"memory": memory, "hidden": xp.tanh(memory)}

    def partials(self, xp, a, state, new):
        through = 1 - new["hidden"] ** 2
        gain = 1 - xp.tanh(a["preactivation"]) ** 2
        ones = xp.ones_like(gain)
        return (
            {"preactivation": {"memory": gain, "hidden": through * gain}},
            {("memory", "memory"): 0.8 * ones, ("hidden", "memory"): 0.8 * through},
        )


@dataclass(frozen=True)
class Tanh(FeedForward):
    """A layer of one's own, without parameters."""

    def make_maps(self):
        return []

    def draw(self, generator):
        return {}

    def apply(self, params, x):
        return namespace_of(x).tanh(x)

    def pull_back(self, params, x, delta):
        return delta * (1 - namespace_of(x).tanh(x) ** 2)

    def gradients(self, params, x, delta):
        return {}

    def jacobian(self, params, x):
        xp = namespace_of(x)
        return xp.eye(self.inputs, dtype=x.dtype) * (1 - xp.tanh(x) ** 2)[..., None]

    def immediate(self, params, x):
        return x[..., :0]


def stack_problem(stack: Stack, like: str, steps: int, batch: int = 3) -> Problem:
    """Draw a problem; the same in every library."""
    rng = np.random.default_rng(7)
    xp = namespace(like)
    params = {
        name: value + 0.1 * rng.normal(size=value.shape)
        for name, value in stack.init(3, dtype="float64").items()
    }
    arrays = (
        rng.normal(size=(steps, batch, stack.inputs)),
        rng.integers(0, OUTPUTS, (steps, batch)),
        (rng.random((steps, batch)) < 0.7).astype(float),
        rng.random((steps, batch)) < 0.1,
    )
    return Problem(
        stack,
        {name: xp.asarray(value) for name, value in params.items()},
        Readout(OUTPUTS).init(stack.outputs, 1, like=like, dtype="float64"),
        *(xp.asarray(array) for array in arrays),
    )


def cell_step(xp, cell, params, state, x, cut):
    """The new state of a cell and what it passes on."""
    if not isinstance(cell, Accumulator):
        new = new_state(xp, cell, params, state, x, cut)
        return new, new[..., cell.output]
    memory, hidden = state[..., : cell.hidden], state[..., cell.hidden :]
    recurrent = kernel(xp, cell, params, "recurrent")
    a = x @ kernel(xp, cell, params, "input") + hidden @ recurrent + params["bias"]
    memory = 0.8 * memory + xp.tanh(a)
    return xp.concatenate([memory, xp.tanh(memory)], -1), xp.tanh(memory)


def feed_forward(xp, layer, params, x):
    """A layer without memory."""
    if isinstance(layer, Linear):
        return x @ kernel(xp, layer, params, "kernel") + params["bias"]
    if isinstance(layer, Tanh):
        return xp.tanh(x)
    assert isinstance(layer, LayerNorm)
    centred = x - x.mean(-1)[..., None]
    scale = xp.sqrt((centred * centred).mean(-1) + layer.epsilon)[..., None]
    return params["gain"] * centred / scale + params["bias"]


def stack_step(xp, stack, params, states, x, cut=lambda xp, kernel: (kernel, 0), local=False):
    """The new states of all cells, and the output.

    With `local` what a cell's state takes on into the future gives no gradient to its input.
    """
    signals, new = [x], []
    for number, layer in enumerate(stack.layers):
        own = {n[len(f"{number}.") :]: v for n, v in params.items() if n.startswith(f"{number}.")}
        if isinstance(layer, Cell):
            state = states[len(new)]
            after, passed = cell_step(xp, layer, own, state, signals[-1], cut)
            if local and number:
                after, _ = cell_step(xp, layer, own, state, stopped(signals[-1]), cut)
            new.append(after)
            signals.append(passed)
        elif isinstance(layer, FeedForward):
            signals.append(feed_forward(xp, layer, own, signals[-1]))
        else:
            earlier = signals[0 if layer.source == "input" else layer.source + 1]
            if layer.how == "sum":
                signals.append(signals[-1] + earlier)
            else:
                signals.append(xp.concatenate([signals[-1], earlier], -1))
    return new, signals[-1]


def unrolled_stack_loss(problem, params, readout, cut, local=False):
    """The loss of a sequence as one expression, and the last states."""
    like, stack = library(problem.xs), problem.cell
    xp = namespace(like)
    cells = [layer for layer in stack.layers if isinstance(layer, Cell)]
    states = [xp.zeros((problem.xs.shape[1], cell.rows), dtype=problem.xs.dtype) for cell in cells]

    def step(states, total, x, y, weight, reset):
        states = [xp.where(reset[:, None], xp.zeros_like(state), state) for state in states]
        states, output = stack_step(xp, stack, params, states, x, cut, local)
        logits = output @ readout["kernel"] + readout["bias"]
        every = xp.arange(OUTPUTS)
        chosen = xp.where(y[:, None] == every, logits, xp.zeros_like(logits)).sum(-1)
        losses = xp.log(xp.exp(logits).sum(-1)) - chosen
        return states, total + (losses * weight).sum()

    inputs = (problem.xs, problem.ys, problem.mask, problem.resets)
    total = xp.zeros((), dtype=problem.xs.dtype)
    if like == "jax":
        from jax import lax

        body = lambda carry, row: (step(*carry, *row), None)  # noqa: E731
        (states, total), _ = lax.scan(body, (states, total), inputs)
    else:
        for t in range(problem.xs.shape[0]):
            states, total = step(states, total, *(array[t] for array in inputs))
    return total, xp.concatenate(states, -1)


def differentiated(problem: Problem, *cut, local: bool = False):
    """Loss, gradients by name and last states, from the library's own differentiation."""
    return autodiff(problem, *cut, unrolled=partial(unrolled_stack_loss, local=local))
