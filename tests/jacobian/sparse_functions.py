"""Functions with sparse Jacobians, written once: they take the array namespace first."""

from __future__ import annotations

from typing import Any

import numpy as np

UNITS, INPUTS = 5, 3
Tree = Any


def _random(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}


def _cell(seed: int, gates: int) -> tuple[Tree, ...]:
    shapes = {"w": (UNITS, gates, UNITS), "u": (INPUTS, gates, UNITS), "b": (gates, UNITS)}
    rest = _random(seed + 1, state=(UNITS,), memory=(UNITS,), x=(INPUTS,))
    return _random(seed, **shapes), rest["state"], rest["memory"], rest["x"]


def _gates(xp: Any, params: Tree, state: Any, x: Any) -> Any:
    recurrent = xp.einsum("j,jgi->gi", state, params["w"])
    return recurrent + xp.einsum("j,jgi->gi", x, params["u"]) + params["b"]


def _sigmoid(xp: Any, a: Any) -> Any:
    return 1 / (1 + xp.exp(-a))


def rnn(xp: Any, params: Tree, state: Any, memory: Any, x: Any) -> Any:
    return xp.tanh(_gates(xp, params, state, x)[0])


def gru(xp: Any, params: Tree, state: Any, memory: Any, x: Any) -> Any:
    reset, update, new = _gates(xp, params, state, x)
    update = _sigmoid(xp, update)
    return update * state + (1 - update) * xp.tanh(_sigmoid(xp, reset) * new)


def lstm(xp: Any, params: Tree, state: Any, memory: Any, x: Any) -> Any:
    i, f, g, o = _gates(xp, params, state, x)
    memory = _sigmoid(xp, f) * memory + _sigmoid(xp, i) * xp.tanh(g)
    return {"c": memory, "h": _sigmoid(xp, o) * xp.tanh(memory)}


def two_steps(xp: Any, params: Tree, state: Any, memory: Any, x: Any) -> Any:
    return rnn(xp, params, rnn(xp, params, state, memory, x), memory, x)


def convolution(xp: Any, signal: Any) -> Any:
    return xp.tanh(signal[:-2] - 2 * signal[1:-1] + 0.5 * signal[2:])


def stencil(xp: Any, field: Any) -> Any:
    around = xp.roll(field, 1, 0) + xp.roll(field, -1, 0)
    around = around + xp.roll(field, 1, 1) + xp.roll(field, -1, 1)
    return around - 4 * field + field**3


def arrow(xp: Any, x: Any) -> Any:
    return xp.concatenate([(x**2).sum()[None], x[0] * x[1:] + xp.sin(x[1:])])


CASES: dict[str, tuple[Any, tuple[Tree, ...]]] = {
    "rnn": (rnn, _cell(0, 1)),
    "gru": (gru, _cell(1, 3)),
    "lstm": (lstm, _cell(2, 4)),
    "two_steps": (two_steps, _cell(3, 1)),
    "convolution": (convolution, (np.random.default_rng(0).standard_normal(12),)),
    "stencil": (stencil, (np.random.default_rng(1).standard_normal((6, 5)),)),
    "arrow": (arrow, (np.random.default_rng(2).standard_normal(20),)),
}
