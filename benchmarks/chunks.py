"""Chunks of time against single steps, of the networks that `sequence` does not measure.

``python -m benchmarks chunks [--units N] [--repeats N]`` times `sequence` of 64 steps, batch 8,
float32, on the CPU: step by step, and in the chunks that the cost model chooses. The networks are
the original gated unit (``GRU(reset="before")``), a function of JAX or torch (`FunctionCell`), and
a stack of two layers that is exact across them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.report import Parser, Row, compare, markdown_table, measure, write_report
from tritonsnap import GRU, RTRL, FunctionCell, Readout, SnAp, Stack
from tritonsnap.arrays import Library, namespace
from tritonsnap.console import run_command

INPUTS, OUTPUTS, BATCH, STEPS = 32, 8, 8, 64
BASELINE = "step by step"


def plain_rnn(units: int, like: Library) -> FunctionCell:
    """A plain recurrent network as a function of its parameters."""
    xp, rng = namespace(like), np.random.default_rng(0)
    shapes = {"input": (INPUTS, units), "recurrent": (units, units), "bias": (units,)}
    params = {
        name: xp.asarray((rng.normal(size=shape) / np.sqrt(units)).astype(np.float32))
        for name, shape in shapes.items()
    }

    def step(params: Any, state: Any, x: Any) -> Any:
        return xp.tanh(x @ params["input"] + state @ params["recurrent"] + params["bias"])

    return FunctionCell(step, params, inputs=INPUTS, hidden=units)


def networks(units: int) -> Iterator[tuple[str, Library, Any]]:
    """What is timed: a name, a library and a network."""
    stack = Stack([GRU(INPUTS, units), GRU(units, units)], exact=True)
    likes: tuple[Library, ...] = ("jax", "numpy")
    for like in likes:
        yield 'GRU, reset="before"', like, GRU(INPUTS, units, reset="before")
        yield "exact stack of 2 GRUs", like, stack
    likes = ("jax", "torch")
    for like in likes:
        yield "function of an RNN", like, plain_rnn(units, like)


def variants(learner: SnAp, like: Library) -> dict[str, Callable[[], Any]]:
    """The ways through one sequence."""
    xp, rng = namespace(like), np.random.default_rng(0)
    cell, readout = learner.cell, Readout(OUTPUTS)
    arguments = (
        cell.init(0, like=like),
        learner.init(BATCH, like=like),
        xp.asarray(rng.normal(size=(STEPS, BATCH, INPUTS)).astype(np.float32)),
        xp.asarray(rng.integers(0, OUTPUTS, (STEPS, BATCH))),
        readout,
    )
    run = partial(
        learner.sequence, *arguments, readout=readout.init(learner.num_outputs, 0, like=like)
    )
    chunking = learner.chunking("auto", arguments[2])
    chunks = f"chunks of {chunking.steps}" if chunking else "auto: steps"
    return {BASELINE: partial(run, chunk=1), chunks: partial(run, chunk="auto")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its table."""
    parser = Parser("chunks", __doc__, units=8, repeats=2)
    parser.add_argument("--units", type=int, default=32, help="units of each layer")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each variant")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name, like, network in tqdm(list(networks(options.units)), disable=None):
        for rule, learner in (("SnAp-1", SnAp(network, 1)), ("RTRL", RTRL(network))):
            if isinstance(network, Stack) and rule != "RTRL":
                continue  # which drops paths, and goes step by step
            seconds = measure(
                variants(learner, like), wait=jax.block_until_ready, repeats=options.repeats
            )
            parameters = {"library": like, "units": options.units, "rule": rule}
            rows += [Row.timed(name, way, each, parameters) for way, each in seconds.items()]
    rows = compare(rows, BASELINE)
    print(markdown_table(rows))
    print(f"results are in {write_report('chunks', rows, results=options.results)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
