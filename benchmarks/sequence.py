"""The gradient of a whole sequence: SnAp-n and exact RTRL, chunked or step by step, against BPTT.

``python -m benchmarks sequence [--repeats N] [--budget SECONDS]`` times, interleaved for
each network, the compiled gradient of 192 steps (64 inputs, batch 8, float32, JAX on the CPU) for
networks of several sizes and densities, and takes the peak memory from XLA's analysis. Variants:

- ``step``, ``chunk 64``, ``auto``: `SnAp.sequence` with that `chunk`;
- ``BPTT``: `BPTT.sequence`, the baseline of the ratios; ``BPTT by jax.grad``: what a user of JAX
  has without this library;
- ``dense, masked``: how the SnAp authors' released code works: a dense product ``D J`` of the whole
  influence, masked afterwards. All orders n cost the same. Four steps are timed, and scaled.

What is predicted to take longer than the budget (the last: four times that for its four steps), or
more than 4 GB, is not run: its row gives the prediction and says so. Further parts: exact RTRL step
by step and chunked, memory over the length of the sequence, and braintrace, which may live in
another environment (``--braintrace-python``).

A run that was interrupted goes on where it stopped: what it has is kept beside the results until
all is done. ``--minutes`` ends it earlier: networks not begun by then have a row that says so. The
exit status is 1 where `auto` takes more than 1.5 times the best variant.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm import tqdm

from benchmarks.report import (
    Parser,
    Quantiles,
    Row,
    compare,
    environment,
    markdown_table,
    measure,
    new_figure,
    peak_bytes,
    results_path,
    save_figure,
    write_report,
)
from tritonsnap import BPTT, GRU, RNN, RTRL, Cell, SnAp
from tritonsnap.console import run_command
from tritonsnap.files import write_atomically
from tritonsnap.online.chunk_choice import predicted_seconds
from tritonsnap.online.learner import Learner

INPUTS, BATCH, STEPS = 64, 8, 192
BASELINE = "BPTT"
ORDERS: tuple[int | None, ...] = (1, 2, 3, None)
CHUNKS: dict[str, Any] = {"step": 1, "chunk 64": 64, "auto": "auto"}
MOST_BYTES = 4 << 30
MASKED_STEPS = 4
MASKED = f"dense, masked, from {MASKED_STEPS} steps"


def squared_error(state: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of each row and step."""
    return ((state - y) ** 2).sum(axis=-1)


class Problem:
    """A network and a sequence."""

    def __init__(self, cell: Cell, steps: int = STEPS) -> None:
        rng = np.random.default_rng(0)
        self.cell = cell
        self.params = cell.init(0, like="jax")
        self.xs = jnp.asarray(rng.normal(size=(steps, BATCH, INPUTS)), jnp.float32)
        self.ys = jnp.asarray(rng.normal(size=(steps, BATCH, cell.hidden)), jnp.float32)

    def compiled(self, learner: Learner, chunk: Any) -> tuple[Callable[[], Any], int]:
        """The gradient of the sequence as a function, and the bytes that it needs at once."""
        carry = learner.init(BATCH, like="jax")
        chunking = learner.chunking(chunk, self.xs)

        def run(
            learner: Learner, chunking: Any, params: Any, carry: Any, xs: jax.Array, ys: jax.Array
        ) -> Any:
            return learner.sequence(params, carry, xs, ys, squared_error, chunk=chunking)

        arguments = (learner, chunking, self.params, carry, self.xs, self.ys)
        program = jax.jit(run).lower(*arguments).compile()
        return partial(program, *arguments), peak_bytes(program)

    def by_autodiff(self) -> tuple[Callable[[], Any], int]:
        """The same by `jax.grad` through a scan."""

        def loss(params: Any, xs: jax.Array, ys: jax.Array) -> jax.Array:
            ready = self.cell.prepare(params)

            def body(state: jax.Array, pair: Any) -> tuple[jax.Array, jax.Array]:
                state = self.cell.step(ready, state, pair[0])
                return state, squared_error(state, pair[1]).sum()

            start = jnp.zeros((BATCH, self.cell.rows), xs.dtype)
            return lax.scan(body, start, (xs, ys))[1].sum()

        arguments = (self.params, self.xs, self.ys)
        program = jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile()
        return partial(program, *arguments), peak_bytes(program)

    def masked_afterwards(self, learner: SnAp) -> tuple[Callable[[], Any], int]:
        """The same as the SnAp authors' code: J is dense, D J is computed whole, then masked."""
        cell, rows = self.cell, self.cell.rows
        mask = jnp.asarray(learner.plan.mask.to_dense(), jnp.float32)
        flat = {
            linear.name: linear.flat(jnp.asarray(self.params[linear.name])) for linear in cell.maps
        }

        def run(mask: jax.Array, flat: Any, xs: jax.Array, ys: jax.Array) -> Any:
            def step(flat: Any, state: jax.Array, x: jax.Array) -> jax.Array:
                params = {linear.name: linear.shaped(flat[linear.name]) for linear in cell.maps}
                return cell.step(cell.prepare(params), state[None], x[None])[0]

            immediate = jax.vmap(jax.jacrev(step), in_axes=(None, 0, 0))
            dynamics = jax.vmap(jax.jacrev(step, argnums=1), in_axes=(None, 0, 0))

            def body(carry: Any, pair: Any) -> tuple[Any, None]:
                state, influence, gradient = carry
                x, y = pair
                own = immediate(flat, state, x)
                own = jnp.concatenate([own[linear.name] for linear in cell.maps], axis=-1)
                influence = (dynamics(flat, state, x) @ influence + own) * mask
                state = jax.vmap(step, in_axes=(None, 0, 0))(flat, state, x)
                delta = jax.grad(lambda state: squared_error(state, y).sum())(state)
                return (
                    state,
                    influence,
                    gradient + jnp.einsum("bm,bmp->p", delta, influence),
                ), None

            start = (
                jnp.zeros((BATCH, rows)),
                jnp.zeros((BATCH, rows, cell.num_parameters)),
                jnp.zeros(cell.num_parameters),
            )
            return lax.scan(body, start, (xs, ys))[0][2]

        arguments = (mask, flat, self.xs, self.ys)
        program = jax.jit(run).lower(*arguments).compile()
        return partial(program, *arguments), peak_bytes(program)


def network(kind: type[Cell], hidden: int, density: float) -> Cell:
    """A network of the benchmark."""
    return kind(inputs=INPUTS, hidden=hidden, density=density, seed=1)


def one_network(
    kind: type[Cell], hidden: int, density: float, repeats: int, budget: float
) -> list[Row]:
    """The rows of one network: times, memory, and what was left out."""
    cell = network(kind, hidden, density)
    problem = Problem(cell)
    case = kind.__name__
    parameters = {"units": hidden, "density": density}
    programs = {BASELINE: problem.compiled(BPTT(cell), "auto")}
    programs["BPTT by jax.grad"] = problem.by_autodiff()
    rows = []

    def left_out(variant: str, seconds: float, size: int, most: float = budget) -> bool:
        """Whether a variant passes the limits; its row then says so."""
        if seconds <= most and size <= MOST_BYTES:
            return False
        reason = f"{most:g} s" if seconds > most else f"{MOST_BYTES >> 30} GB"
        note = {"note": f"not run, predicted: over {reason}"}
        if seconds > most:
            rows.append(Row(case, variant, "s", {**parameters, **note}, value=seconds))
        else:
            rows.append(Row(case, variant, "B", {**parameters, **note}, value=float(size)))
        return True

    seen = set()
    for order in ORDERS:
        learner = SnAp(cell, order)
        if learner.plan.digest in seen:  # the same influence: the smaller order stands for it
            continue
        seen.add(learner.plan.digest)
        name = "RTRL" if order is None else f"SnAp-{order}"
        values = BATCH * learner.plan.mask.nnz
        for label, chunk in CHUNKS.items():
            predicted = predicted_seconds(learner, chunk, "xla", STEPS, BATCH)
            if not left_out(f"{name}, {label}", predicted, 4 * 4 * values):
                programs[f"{name}, {label}"] = problem.compiled(learner, chunk)
    functions = {name: function for name, (function, _) in programs.items()}
    seconds = measure(functions, wait=jax.block_until_ready, repeats=repeats)
    whole = BATCH * cell.rows * cell.num_parameters
    scale = STEPS / MASKED_STEPS
    predicted = STEPS * whole * cell.rows * 5e-11
    if not left_out(MASKED, predicted, 4 * 4 * whole, 4 * scale * budget):
        function, _ = Problem(cell, MASKED_STEPS).masked_afterwards(SnAp(cell, 1))
        (few,) = measure({MASKED: function}, wait=jax.block_until_ready, repeats=2).values()
        seconds[MASKED] = Quantiles(*(scale * each for each in few))
    rows += [Row.timed(case, name, each, parameters) for name, each in seconds.items()]
    rows += [
        Row(case, name, "B", parameters, value=float(size)) for name, (_, size) in programs.items()
    ]
    return rows


def exact_rtrl(hidden: int) -> list[Row]:
    """Exact RTRL with dense weights: chunks cost O(H^3) a step, steps O(H^4)."""
    steps = 128
    cell = network(RNN, hidden, 1.0)
    problem, learner = Problem(cell, steps), RTRL(cell)
    variants = {"RTRL, step": 1, "RTRL, chunk 64": 64}
    functions = {name: problem.compiled(learner, k)[0] for name, k in variants.items()}
    seconds = measure(functions, wait=jax.block_until_ready, repeats=2)
    parameters = {"units": hidden, "density": 1.0, "steps": steps}
    rows = [Row.timed("exact RTRL", name, each, parameters) for name, each in seconds.items()]
    return compare(rows, "RTRL, step")


def braintrace(python: str, repeats: int) -> list[Row]:
    """The rows of `benchmarks.braintrace_peer`, which `python` runs; none where it has no peer."""
    command = [python, "-m", "benchmarks.braintrace_peer", "--repeats", str(max(repeats, 2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr and done.returncode:
        print("braintrace is skipped: `--braintrace-python` must name a Python that has it")
        return []
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    rows = [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    return compare(rows, "SnAp-1, auto")


def off_the_best(rows: list[Row]) -> list[str]:
    """Where `auto` takes more than 1.5 times as long as another variant of the same rule."""
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        rule, _, label = row.variant.partition(", ")
        if row.unit == "s" and row.p50 is not None and label in CHUNKS and row.case != "exact RTRL":
            place = (row.case, json.dumps(row.parameters, sort_keys=True), rule)
            best.setdefault(place, {})[label] = row.p50
    found = []
    for place, times in best.items():
        if "auto" in times and times["auto"] > 1.5 * min(times.values()):
            found.append(f"{place}: {times}")
    return found


def memory_over_time(lengths: Sequence[int]) -> list[Row]:
    """Peak memory of SnAp-1 in chunks of 64, and of BPTT, for sequences of several lengths."""
    rows = []
    for steps in lengths:
        cell = network(GRU, 256, 1.0)
        problem = Problem(cell, steps)
        for name, learner, chunk in (
            (BASELINE, BPTT(cell), "auto"),
            ("SnAp-1, chunk 64", SnAp(cell, 1), 64),
        ):
            data = problem.xs.nbytes + problem.ys.nbytes
            size = problem.compiled(learner, chunk)[1] - data
            rows.append(
                Row(
                    "memory beside the data",
                    name,
                    "B",
                    {"units": 256, "density": 1.0, "steps": steps},
                    value=float(size),
                )
            )
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Time over units for each density, and memory over steps."""
    timed = [row for row in rows if row.unit == "s" and row.p50 is not None and row.case == "RNN"]
    densities = sorted({row.parameters["density"] for row in timed}, reverse=True)
    figure, axes = new_figure(len(densities) + 1)
    for ax, density in zip(axes, densities, strict=False):
        here = [row for row in timed if row.parameters["density"] == density]
        for variant in dict.fromkeys(row.variant for row in here):
            if variant != BASELINE and not variant.endswith(("auto", MASKED)):
                continue
            points = [(r.parameters["units"], r.number) for r in here if r.variant == variant]
            ax.loglog(*zip(*points, strict=True), marker="o", label=variant)
        ax.set(title=f"RNN, density {density:g}", xlabel="units", ylabel="s per sequence")
        ax.legend(fontsize="x-small")
    lasting = [row for row in rows if row.case == "memory beside the data"]
    for variant in dict.fromkeys(row.variant for row in lasting):
        points = [(r.parameters["steps"], r.number / 1e6) for r in lasting if r.variant == variant]
        axes[-1].loglog(*zip(*points, strict=True), marker="o", label=variant)
    axes[-1].set(title="GRU, 256 units, dense", xlabel="steps", ylabel="MB beside the data")
    axes[-1].legend(fontsize="x-small")
    save_figure(figure, path)


class Progress:
    """Rows by part of the benchmark, kept on disk until the report is written."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.path = path
        self.kept: dict[str, Any] = {"options": options, "parts": {}}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["options"] == options:
                self.kept = known

    def has(self, part: str) -> bool:
        """Whether the rows of a part are kept."""
        return part in self.kept["parts"]

    def rows(self, part: str, make: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a part: those that are kept, or those that `make` measures."""
        parts = self.kept["parts"]
        if part not in parts:
            parts[part] = [asdict(row) for row in make()]
            write_atomically(self.path, json.dumps(self.kept))
        return [Row(**row) for row in parts[part]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its table and its plot."""
    parser = Parser(
        "sequence",
        __doc__,
        repeats=2,
        budget=0.05,
        units=[64],
        density=[0.25],
        lengths=[192, 768],
        exact=32,
    )
    parser.add_argument("--repeats", type=int, default=3, help="samples of each variant")
    parser.add_argument("--budget", type=float, default=1.0, help="most predicted seconds of a run")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="most for networks")
    parser.add_argument("--units", type=int, nargs="+", default=[256, 64, 1024])
    parser.add_argument("--density", type=float, nargs="+", default=[1.0, 0.25, 0.0625, 0.0156])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[192, 768, 4096], help="steps, for the memory"
    )
    parser.add_argument("--exact", type=int, default=128, help="units of exact RTRL")
    parser.add_argument(
        "--braintrace-python", default=sys.executable, metavar="PATH", help="has braintrace"
    )
    options = parser.parse_args(arguments)
    names = ("units", "density", "repeats", "budget", "lengths", "exact")
    measured = {name: getattr(options, name) for name in names}
    path = results_path("sequence", environment()["device"], ".partial.json", options.results)
    progress = Progress(path, measured)
    end = time.monotonic() + 60 * options.minutes
    networks = [
        (kind, units, density)
        for units in options.units
        for density in options.density
        for kind in (RNN, GRU)
    ]
    rows: list[Row] = []
    for kind, units, density in tqdm(networks, disable=None):
        part = f"{kind.__name__} {units} {density}"
        if time.monotonic() > end and not progress.has(part):
            note = {"units": units, "density": density, "note": "not run: the time was up"}
            rows.append(Row(kind.__name__, "variants measured", "1", note, value=0.0))
            continue
        rows += progress.rows(
            part, partial(one_network, kind, units, density, options.repeats, options.budget)
        )
        jax.clear_caches()
    rows = compare(rows, BASELINE)
    rows += compare(progress.rows("memory", partial(memory_over_time, options.lengths)), BASELINE)
    rows += progress.rows("RTRL", partial(exact_rtrl, options.exact))
    rows += progress.rows(
        "braintrace", partial(braintrace, options.braintrace_python, options.repeats)
    )
    print(markdown_table(rows))
    print(f"results are in {write_report('sequence', rows, results=options.results)}")
    plot(rows, results_path("sequence", environment()["device"], ".png", options.results))
    progress.path.unlink()
    wrong = off_the_best(rows)
    print(*(f"auto is over 1.5 times off the best: {each}" for each in wrong), sep="\n")
    return int(bool(wrong) and not options.quick)  # so little time says nothing about a choice


if __name__ == "__main__":
    raise SystemExit(run_command(main, "interrupted; what is finished is kept for the next run"))
