"""SnAp against truncated BPTT on the copy task, both updating the weights every few steps.

A network reads bits and must give them back, longer and longer sequences of them. BPTT that may
update every K steps sees no further back than K; SnAp carries an influence across updates. Draws
the length reached. Needs the extras jax and plots.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import tritonsnap as ts
from tritonsnap.online.optimizers import Adam
from tritonsnap.online.tasks import Batch, CopyTask


def train(learner: ts.Learner, steps: int, every: int, seed: int = 0) -> tuple[list[float], float]:
    """Train online, and return the copy length after each update and the seconds it took."""
    task = CopyTask(rows=16, seed=seed)
    readout = ts.Readout(task.outputs)
    optimizer = Adam(learning_rate=3e-3, clip_norm=1.0)
    params = (
        learner.cell.init(seed, like="jax"),
        readout.init(learner.cell.hidden, seed, like="jax"),
    )

    @jax.jit
    def update(
        learner: ts.Learner, params: Any, optimizer_state: Any, carry: ts.Carry, batch: Batch
    ) -> tuple[Any, Any, ts.Carry, jax.Array]:
        loss, gradients, carry = learner.sequence(
            params[0],
            carry,
            batch.inputs,
            batch.targets,
            readout,
            mask=batch.mask,
            resets=batch.resets,
            readout=params[1],
        )
        count = jnp.maximum(1, batch.mask.sum())
        mean = jax.tree.map(lambda gradient: gradient / count, gradients)
        params, optimizer_state = optimizer.update(mean, optimizer_state, params)
        return params, optimizer_state, carry, loss / math.log(2)

    optimizer_state = optimizer.init(params)
    carry, stream = learner.init(batch=16, like="jax"), task.start()
    lengths, start = [], time.perf_counter()
    for _ in range(steps // every):
        batch, stream = task.read(stream, every)
        params, optimizer_state, carry, bits = update(
            learner, params, optimizer_state, carry, batch
        )
        stream = task.observe(stream, float(bits), int(batch.mask.sum()))
        lengths.append(task.report(stream)["copy_length"])
    return lengths, time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Train each method, print where it got, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4_500, help="time steps of each method")
    parser.add_argument("--every", type=int, default=1, help="time steps between updates")
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2], help="n of SnAp-n")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--density", type=float, default=0.25, help="of the recurrent weights")
    parser.add_argument("--out", type=Path, default=Path("copy_task.png"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)

    cell = ts.GRU(inputs=CopyTask.inputs, hidden=options.hidden, density=options.density)
    methods: dict[str, ts.Learner] = {f"BPTT through {options.every}": ts.BPTT(cell)}
    methods |= {f"SnAp-{order}": ts.SnAp(cell, order=order) for order in options.orders}
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, learner in methods.items():
        lengths, seconds = train(learner, options.steps, options.every)
        print(f"{name}: copies {lengths[-1]} bits after {options.steps} steps, {seconds:.1f} s")
        axes.plot(options.every * np.arange(1, len(lengths) + 1), lengths, label=name)
    axes.set(xlabel="time steps", ylabel="bits copied")
    axes.legend()
    figure.savefig(options.out, dpi=150)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
