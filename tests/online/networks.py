"""Recurrent networks written out plainly, for the autodiff of each library to differentiate."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tritonsnap import GRU, LRU, LSTM, RNN, FunctionCell, LeakyRNN, Readout
from tritonsnap.arrays import namespace, to_numpy

OUTPUTS = 4

EQUATIONS: dict = {}
"""The equations of cells that a test defines: ``type -> new(h, inputs, recurrent, params, xp)``."""


@dataclass
class Problem:
    """A cell with parameters and one batch of sequences, in float64, in one library."""

    cell: Any
    params: dict
    readout: dict
    xs: Any
    ys: Any
    mask: Any
    resets: Any
    loss: Any = field(default_factory=lambda: Readout(OUTPUTS))

    @property
    def sequence(self) -> tuple:
        return self.xs, self.ys, self.loss, self.mask, self.resets

    def run(self, learner, carry=None, **options):
        """Loss, gradients as NumPy arrays by name, and the new carry."""
        batch, like = self.xs.shape[1], library(self.xs)
        carry = learner.init(batch, like=like, dtype="float64") if carry is None else carry
        loss, (own, readout), carry = learner.sequence(
            self.params, carry, *self.sequence, readout=self.readout, **options
        )
        return float(loss), named(own, readout), carry


def library(array) -> str:
    return {"ndarray": "numpy", "Tensor": "torch"}.get(type(array).__name__, "jax")


def as_numpy(gradients: dict) -> dict:
    return {name: to_numpy(value) for name, value in gradients.items()}


def named(own: dict, readout: dict) -> dict:
    """The gradients of a cell and of a readout, which may have names in common."""
    return as_numpy({**own, **{f"readout/{name}": value for name, value in readout.items()}})


def problem(cell, like: str, steps: int, batch: int = 3, resets: bool = True) -> Problem:
    """Draw a problem; the same in every library."""
    rng = np.random.default_rng(7)
    xp = namespace(like)
    params = cell.init(3, dtype="float64")
    params = {
        name: to_numpy(value) + 0.1 * rng.normal(size=value.shape) for name, value in params.items()
    }
    arrays = (
        rng.normal(size=(steps, batch, cell.inputs)),
        rng.integers(0, OUTPUTS, (steps, batch)),
        (rng.random((steps, batch)) < 0.7).astype(float),
        (rng.random((steps, batch)) < 0.1) & resets,
    )
    return Problem(
        cell,
        {name: xp.asarray(value) for name, value in params.items()},
        Readout(OUTPUTS).init(cell.rows, 1, like=like, dtype="float64"),
        *(xp.asarray(array) for array in arrays),
    )


def kernel(xp, cell, params: dict, name: str):
    """The dense kernel [inputs, units] of a weight, written out entry by entry."""
    linear = next(linear for linear in cell.maps if linear.name == name)
    if linear.pattern is None:
        return params[name]
    place = np.zeros(linear.shape, np.int64)
    place[linear.pattern.rows, linear.pattern.cols] = np.arange(1, linear.pattern.nnz + 1)
    zero = xp.zeros_like(params[name][:1])
    return xp.concatenate([zero, params[name]])[xp.asarray(place)]


def new_state(xp, cell, params: dict, state, x, cut=lambda xp, kernel: (kernel, 0)):
    """The equations of the cells' docstrings. `cut` splits a recurrent kernel (see `stopped`)."""
    if isinstance(cell, FunctionCell):
        return cell.f(params, state, x)
    h, rest = state[..., : cell.hidden], state[..., cell.hidden :]

    def recurrent(name):
        live, frozen = cut(xp, kernel(xp, cell, params, name))
        if isinstance(frozen, int):
            return h @ live
        return h @ live + stopped(h) @ frozen

    def inputs(name):
        return x @ kernel(xp, cell, params, name)

    def gate(name):
        a = inputs(f"input_{name}") + recurrent(f"recurrent_{name}") + params[f"bias_{name}"]
        return 1 / (1 + xp.exp(-a))

    if type(cell) in EQUATIONS:
        return EQUATIONS[type(cell)](h, inputs, recurrent, params, xp)
    if isinstance(cell, RNN):
        return xp.tanh(inputs("input") + recurrent("recurrent") + params["bias"])
    if isinstance(cell, LeakyRNN):
        leak = cell.leak
        if cell.learn_leak:
            leak = 1 - xp.exp(-1 / xp.exp(params["log_time_constant"]))
        rate = xp.tanh(inputs("input") + recurrent("recurrent") + params["bias"])
        return (1 - leak) * h + leak * rate
    if isinstance(cell, LSTM):
        a = inputs("input_candidate") + recurrent("recurrent_candidate") + params["bias_candidate"]
        c = gate("forget") * rest + gate("input") * xp.tanh(a)
        return xp.concatenate([gate("output") * xp.tanh(c), c], -1)
    if isinstance(cell, LRU):
        nu, theta = xp.exp(params["log_nu"]), xp.exp(params["log_theta"])
        drive = inputs("input_real") + 1j * inputs("input_imaginary")
        complex_state = (h + 1j * rest) * xp.exp(-nu + 1j * theta)
        new = complex_state + xp.exp(params["log_gamma"]) * drive
        return xp.concatenate([xp.real(new), xp.imag(new)], -1)
    assert isinstance(cell, GRU)
    r, z = gate("reset"), gate("update")
    if cell.reset == "before":
        past = (r * h) @ kernel(xp, cell, params, "recurrent_candidate")
        n = xp.tanh(inputs("input_candidate") + past + params["bias_candidate"])
        return (1 - z) * n + z * h
    past = recurrent("recurrent_candidate") + params["bias_recurrent"]
    n = xp.tanh(inputs("input_candidate") + params["bias_candidate"] + r * past)
    return (1 - z) * n + z * h


def stopped(array):
    """The same numbers, through which no gradient flows."""
    if library(array) == "torch":
        return array.detach()
    import jax

    return jax.lax.stop_gradient(array)


def off_diagonal_stopped(xp, kernel):
    """Split a kernel into what gradients flow back through and what they do not."""
    identity = xp.eye(kernel.shape[0], dtype=kernel.dtype)
    return kernel * identity, kernel * (1 - identity)


def unrolled_loss(problem: Problem, params, readout, cut=lambda xp, kernel: (kernel, 0)):
    """The loss of a sequence as one expression, and the last state."""
    like = library(problem.xs)
    xp = namespace(like)
    steps, batch = problem.xs.shape[:2]
    h = xp.zeros((batch, problem.cell.rows), dtype=problem.xs.dtype)

    def step(h, total, x, y, weight, reset):
        h = xp.where(reset[:, None], xp.zeros_like(h), h)
        h = new_state(xp, problem.cell, params, h, x, cut)
        logits = h @ readout["kernel"] + readout["bias"]
        chosen = (
            xp.take_along_dim(logits, y[:, None], -1)
            if like == "torch"
            else (xp.take_along_axis(logits, y[:, None], -1))
        )
        losses = xp.log(xp.exp(logits).sum(-1)) - chosen[:, 0]
        return h, total + (losses * weight).sum()

    inputs = (problem.xs, problem.ys, problem.mask, problem.resets)
    total = xp.zeros((), dtype=problem.xs.dtype)
    if like == "jax":  # a scan is the same loop, compiled once
        from jax import lax

        body = lambda carry, row: (step(*carry, *row), None)  # noqa: E731
        (h, total), _ = lax.scan(body, (h, total), inputs)
        return total, h
    for t in range(steps):
        h, total = step(h, total, *(array[t] for array in inputs))
    return total, h


def autodiff(problem: Problem, cut=lambda xp, kernel: (kernel, 0), unrolled=unrolled_loss):
    """Loss, gradients by name and last state, from the library's own differentiation."""
    if library(problem.xs) == "jax":
        import jax

        def loss(trees):
            return unrolled(problem, *trees, cut)

        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (total, h), (own, readout) = run((problem.params, problem.readout))
        return float(total), named(own, readout), to_numpy(h)
    import torch

    trees = [
        {name: value.clone().requires_grad_() for name, value in tree.items()}
        for tree in (problem.params, problem.readout)
    ]
    total, h = unrolled(problem, *trees, cut)
    gradients = iter(torch.autograd.grad(total, [leaf for tree in trees for leaf in tree.values()]))
    own, readout = ({name: next(gradients) for name in tree} for tree in trees)
    return float(total.detach()), named(own, readout), to_numpy(h)


def largest_difference(one: dict, other: dict) -> float:
    """Over all gradients, relative to the largest entry of each."""
    assert one.keys() == other.keys()
    return max(
        float(np.abs(one[name] - other[name]).max() / (1 + np.abs(other[name]).max()))
        for name in one
        if one[name].size
    )
