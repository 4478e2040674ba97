"""SnAp-1 of a tanh RNN by braintrace and by this library, in one process.

``python -m benchmarks.braintrace_peer`` needs braintrace (``pip install braintrace``) and prints
the rows as JSON, for `benchmarks.sequence`: the gradient of 48 steps of 256 units with 64 inputs,
batch 8, float32. braintrace's D-RTRL keeps what SnAp-1 keeps, the influence of each weight on its
own unit.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from typing import Any

import brainstate
import braintrace
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.report import Row, measure
from tritonsnap import RNN, SnAp
from tritonsnap.console import run_command

INPUTS, UNITS, BATCH, STEPS = 64, 256, 8, 48


def squared_error(state: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of each row."""
    return ((state - y) ** 2).sum(axis=-1)


def by_braintrace(xs: jax.Array, ys: jax.Array) -> Any:
    """The summed gradient of the sequence, compiled."""
    model = braintrace.nn.ValinaRNNCell(INPUTS, UNITS, activation="tanh")
    brainstate.nn.init_all_states(model, BATCH)
    learner = braintrace.D_RTRL(model)
    learner.compile_graph(xs[0])
    weights = model.states(brainstate.ParamState)

    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return squared_error(learner(x), y).sum()

    @brainstate.transform.jit
    def run(xs: jax.Array, ys: jax.Array) -> Any:
        brainstate.nn.init_all_states(model, BATCH)
        learner.reset_state(BATCH)
        start = jax.tree.map(jnp.zeros_like, weights.to_dict_values())

        def step(total: Any, pair: Any) -> tuple[Any, None]:
            gradients = brainstate.transform.grad(loss, weights)(*pair)
            return jax.tree.map(jnp.add, total, gradients), None

        return brainstate.transform.scan(step, start, (xs, ys))[0]

    return partial(run, xs, ys)


def main() -> int:
    """Time both, and print the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.braintrace_peer")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each variant")
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    xs = jnp.asarray(rng.normal(size=(STEPS, BATCH, INPUTS)), jnp.float32)
    ys = jnp.asarray(rng.normal(size=(STEPS, BATCH, UNITS)), jnp.float32)
    cell = RNN(inputs=INPUTS, hidden=UNITS)
    learner, params = SnAp(cell, 1), cell.init(0, like="jax")
    carry = learner.init(BATCH, like="jax")
    seconds = measure(
        {
            "braintrace, D-RTRL": by_braintrace(xs, ys),
            "SnAp-1, auto": partial(learner.sequence, params, carry, xs, ys, squared_error),
        },
        wait=jax.block_until_ready,
        repeats=repeats,
    )
    parameters = {"units": UNITS, "density": 1.0, "steps": STEPS}
    rows = [Row.timed("RNN, braintrace", name, each, parameters) for name, each in seconds.items()]
    print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
