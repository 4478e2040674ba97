"""A GRU learns a text character by character, online, and updates its weights as it reads.

Draws the bits per character while it reads, beside the entropies of single characters and of
pairs. Needs the extras jax and plots.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from matplotlib.figure import Figure

import tritonsnap as ts
from tritonsnap.online.optimizers import Adam
from tritonsnap.online.tasks import TextTask, reference_text


def main(arguments: Sequence[str] | None = None) -> None:
    """Read for a while, print the loss, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="default: the Python language reference")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="readers side by side")
    parser.add_argument("--every", type=int, default=8, help="time steps between updates")
    parser.add_argument("--out", type=Path, default=Path("online_text.png"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)

    text = reference_text() if options.text is None else options.text.read_text(encoding="utf-8")
    task = TextTask(text, options.batch)
    learner = ts.SnAp(ts.GRU(inputs=task.inputs, hidden=options.hidden), order=1)
    readout = ts.Readout(task.outputs)
    optimizer = Adam(learning_rate=3e-3, clip_norm=1.0)
    params = learner.cell.init(0, like="jax"), readout.init(options.hidden, 1, like="jax")

    @jax.jit
    def update(
        learner: ts.Learner,
        params: Any,
        optimizer_state: Any,
        carry: ts.Carry,
        xs: jax.Array,
        ys: jax.Array,
        resets: jax.Array,
    ) -> tuple[Any, Any, ts.Carry, jax.Array]:
        loss, gradients, carry = learner.sequence(
            params[0], carry, xs, ys, readout, resets=resets, readout=params[1]
        )
        mean = jax.tree.map(lambda gradient: gradient / ys.size, gradients)
        params, optimizer_state = optimizer.update(mean, optimizer_state, params)
        return params, optimizer_state, carry, loss / ys.size / math.log(2)

    carry, stream = learner.init(batch=options.batch, like="jax"), task.start()
    optimizer_state = optimizer.init(params)
    characters = [0]
    bits: list[float] = []
    recent: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < options.seconds or not bits:
        batch, stream = task.read(stream, options.every)
        params, optimizer_state, carry, loss = update(
            learner, params, optimizer_state, carry, batch.inputs, batch.targets, batch.resets
        )
        recent.append(float(loss))
        if len(recent) == 50:
            characters.append(characters[-1] + 50 * batch.targets.size)
            bits.append(sum(recent) / len(recent))
            recent = []
    print(f"{characters[-1]} characters read, at the end {bits[-1]:.2f} bits per character")
    print(f"{task.unigram_entropy:.2f} by single characters, {task.bigram_entropy:.2f} by pairs")

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(characters[1:], bits, label="GRU by SnAp-1")
    axes.axhline(task.unigram_entropy, color="gray", linestyle=":", label="single characters")
    axes.axhline(task.bigram_entropy, color="gray", linestyle="--", label="pairs")
    axes.set(xlabel="characters read", ylabel="bits per character")
    axes.legend()
    figure.savefig(options.out, dpi=150)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
