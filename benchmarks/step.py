"""One online step in JAX against a step of backpropagation through time.

``python -m benchmarks step [--repeats N]`` times, interleaved in one run, scans of 48 steps on the
CPU (256 units, 64 inputs, batch 8, float32, dense weights) and divides by the steps: SnAp-1's
`step` alone, `sequence` of SnAp-1 with its gradient, `sequence` of our BPTT, and the baseline:
`jax.grad` of the same loss through an unrolled scan, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.report import (
    Parser,
    Quantiles,
    Row,
    compare,
    markdown_table,
    measure,
    write_report,
)
from tritonsnap import BPTT, GRU, RNN, Cell, SnAp
from tritonsnap.console import run_command

INPUTS, UNITS, BATCH, STEPS = 64, 256, 8, 48
BASELINE = "BPTT by jax.grad"


def squared_error(state: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of a row."""
    return ((state - y) ** 2).sum(axis=-1)


def variants(cell: Cell) -> dict[str, Callable[[], Any]]:
    """What to time; every one is compiled and takes its arrays as operands."""
    rng = np.random.default_rng(0)
    params = cell.init(0, like="jax")
    xs = jnp.asarray(rng.normal(size=(STEPS, BATCH, INPUTS)), jnp.float32)
    ys = jnp.asarray(rng.normal(size=(STEPS, BATCH, UNITS)), jnp.float32)
    snap, bptt = SnAp(cell, 1), BPTT(cell)
    snap_carry, bptt_carry = (one.init(BATCH, like="jax") for one in (snap, bptt))

    @jax.jit
    def steps(learner: SnAp, params: Any, carry: Any, xs: jax.Array) -> Any:
        ready = learner.prepare(params)
        return lax.scan(lambda carry, x: (learner.step(ready, carry, x)[0], None), carry, xs)[0]

    @jax.jit
    def differentiated(params: Any, state: jax.Array, xs: jax.Array, ys: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            ready = cell.prepare(params)

            def body(state: jax.Array, pair: Any) -> tuple[jax.Array, jax.Array]:
                state = cell.step(ready, state, pair[0])
                return state, squared_error(state, pair[1]).sum()

            return lax.scan(body, state, (xs, ys))[1].sum()

        return jax.value_and_grad(loss)(params)

    return {
        BASELINE: partial(differentiated, params, bptt_carry.state, xs, ys),
        "BPTT, sequence": partial(bptt.sequence, params, bptt_carry, xs, ys, squared_error),
        "SnAp-1, step": partial(steps, snap, params, snap_carry, xs),
        "SnAp-1, sequence": partial(snap.sequence, params, snap_carry, xs, ys, squared_error),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its table."""
    parser = Parser("step", __doc__, repeats=3)
    parser.add_argument("--repeats", type=int, default=30, help="samples of each variant")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for kind in (RNN, GRU):
        seconds = measure(
            variants(kind(inputs=INPUTS, hidden=UNITS)),
            wait=jax.block_until_ready,
            repeats=options.repeats,
        )
        parameters = {"units": UNITS, "inputs": INPUTS, "batch": BATCH, "steps": STEPS}
        rows += [
            Row.timed(kind.__name__, name, Quantiles(*(t / STEPS for t in each)), parameters)
            for name, each in seconds.items()
        ]
    rows = compare(rows, BASELINE)
    print(markdown_table(rows))
    print(f"results are in {write_report('step', rows, results=options.results)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
