"""Sparse Jacobians in JAX: this library, asdex and sparsejac side by side, and peak memory.

Run with ``python -m benchmarks jacobian``. The first part times
coloring and one Jacobian under jit on five patterns; the second reads, from the compiled programs,
how much memory our Jacobians and dense `jax.jacrev` take for one step of a tanh RNN and a GRU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import asdex
import jax
import jax.numpy as jnp
import numpy as np
import sparsejac
from jax.experimental.sparse import BCOO
from scipy.sparse import coo_matrix

from benchmarks.report import (
    Parser,
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
from tritonsnap.console import run_command
from tritonsnap.jax import make_jacobian_projection, sp_jacrev
from tritonsnap.sparsity import Compression, SparsityPattern, snap_pattern

MEMORY_SIZES = (64, 128, 256, 512)


@dataclass(frozen=True)
class Case:
    """A function from a vector to a vector, where to differentiate it, and its pattern."""

    name: str
    function: Callable[[jax.Array], jax.Array]
    point: jax.Array
    pattern: SparsityPattern


def banded(size: int = 1000, width: int = 2) -> Case:
    """Make ``y_i = sum over |k| <= width of sin(c_k x_{i+k})``."""
    offsets = range(-width, width + 1)

    def function(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, width)
        terms = (jnp.sin((1 + k**2) * padded[width + k : width + k + size]) for k in offsets)
        return reduce(jnp.add, terms)

    rows = np.concatenate([np.arange(size)] * len(offsets))
    cols = rows + np.repeat(offsets, size)
    inside = (cols >= 0) & (cols < size)
    pattern = SparsityPattern.from_coo(rows[inside], cols[inside], (size, size))
    return Case(f"banded {size}", function, _normal(size), pattern)


def snap1(hidden: int = 128) -> Case:
    """Make one step of a dense tanh RNN as a function of its weights."""
    state = _normal(hidden, 1)

    def function(weights: jax.Array) -> jax.Array:
        return jnp.tanh(weights.reshape(hidden, hidden).T @ state)

    owner = np.tile(np.arange(hidden), hidden)
    pattern = SparsityPattern.from_coo(owner, np.arange(hidden**2), (hidden, hidden**2))
    return Case(f"SnAp-1 dense H={hidden}", function, _normal(hidden**2), pattern)


def two_steps(hidden: int = 256, density: float = 0.02) -> Case:
    """Make two steps of a sparse tanh RNN as a function of its nonzero weights."""
    weights = SparsityPattern.random((hidden, hidden), density)  # [from, to]
    start = _normal(hidden, 1)

    def function(values: jax.Array) -> jax.Array:
        matrix = jnp.zeros((hidden, hidden)).at[weights.rows, weights.cols].set(values)
        return jnp.tanh(jnp.tanh(start @ matrix) @ matrix)

    immediate = SparsityPattern.from_coo(
        weights.cols, np.arange(weights.nnz), (hidden, weights.nnz)
    )
    pattern = snap_pattern(weights.T, immediate, 2)
    return Case(f"two-step RNN H={hidden}", function, _normal(weights.nnz), pattern)


def random(size: int = 2000, density: float = 0.005) -> Case:
    """Make ``y = A sin(x)`` with a random A."""
    pattern = SparsityPattern.random((size, size), density)
    matrix = jnp.asarray(pattern.to_dense(np.asarray(_normal(pattern.nnz, 1))))
    return Case(f"random {size}", lambda x: matrix @ jnp.sin(x), _normal(size), pattern)


def brusselator(size: int = 32) -> Case:
    """Make the right-hand side of the 2-D Brusselator on a periodic grid (u and v)."""

    def laplacian(field: jax.Array) -> jax.Array:
        around = sum(jnp.roll(field, step, axis) for step in (1, -1) for axis in (0, 1))
        return around - 4 * field

    def function(flat: jax.Array) -> jax.Array:
        u, v = flat.reshape(2, size, size)
        reaction = u**2 * v
        du = 1 + reaction - 4.4 * u + 0.1 * laplacian(u)
        dv = 3.4 * u - reaction + 0.1 * laplacian(v)
        return jnp.stack([du, dv]).reshape(-1)

    cells = np.arange(size**2).reshape(size, size)
    around = [np.roll(cells, step, axis) for step in (1, -1) for axis in (0, 1)]
    near = np.stack([cells, *around]).reshape(5, -1)
    same = np.broadcast_to(cells.reshape(-1), near.shape)
    other = cells.reshape(-1)
    rows = np.concatenate([same, size**2 + same, other[None], size**2 + other[None]], axis=0)
    cols = np.concatenate([near, size**2 + near, size**2 + other[None], other[None]], axis=0)
    pattern = SparsityPattern.from_coo(rows.ravel(), cols.ravel(), (2 * size**2, 2 * size**2))
    return Case(f"Brusselator N={size}", function, _normal(2 * size**2), pattern)


def speed(case: Case, repeats: int) -> list[Row]:
    """Compare colors, coloring time and time per Jacobian of the three libraries."""
    pattern = case.pattern
    indices = jnp.asarray(np.stack([pattern.rows, pattern.cols], axis=1))
    bcoo = BCOO((jnp.ones(pattern.nnz), indices), shape=pattern.shape)
    theirs = _pattern_of_asdex(pattern)

    coloring: dict[str, Callable[[], Any]] = {
        "tritonsnap": lambda: Compression.of(pattern),
        "asdex": lambda: asdex.jacobian_coloring_from_sparsity(theirs),
        "sparsejac": lambda: sparsejac.jacrev(case.function, bcoo),
    }
    projection = make_jacobian_projection(pattern)
    colored = coloring["asdex"]()
    ours = jax.jit(sp_jacrev(case.function, projection))
    by_operand = jax.jit(lambda projection, x: sp_jacrev(case.function, projection)(x))
    by_asdex = jax.jit(asdex.jacobian_from_coloring(case.function, colored))
    by_sparsejac = jax.jit(coloring["sparsejac"]())
    jacobian: dict[str, Callable[[], Any]] = {
        "tritonsnap": lambda: ours(case.point),
        "tritonsnap, indices as operands": lambda: by_operand(projection, case.point),
        "asdex": lambda: by_asdex(case.point),
        "sparsejac": lambda: by_sparsejac(case.point),
    }
    expected = jacobian["asdex"]().todense()
    for name, run in jacobian.items():
        np.testing.assert_allclose(run().todense(), expected, rtol=1e-4, atol=1e-5, err_msg=name)

    colors = {
        "tritonsnap": projection.num_passes,
        "asdex": colored.num_colors,
        "sparsejac": _colors_of_sparsejac(pattern),
    }
    rows = [Row(f"{case.name}: colors", name, "1", value=float(n)) for name, n in colors.items()]
    for what, variants, times in (
        ("coloring", coloring, min(repeats, 20)),
        ("jacobian", jacobian, repeats),
    ):
        measured = measure(variants, wait=jax.block_until_ready, repeats=times, shortest=3e-3)
        rows += [
            Row.timed(f"{case.name}: {what}", name, seconds, {})
            for name, seconds in measured.items()
        ]
    return compare(rows, "tritonsnap")


def first_coloring(case: Case) -> list[Row]:
    """Time the first coloring of this process: asdex compiles, or loads what it once compiled."""
    pattern = case.pattern
    theirs = _pattern_of_asdex(pattern)
    coloring: dict[str, Callable[[], Any]] = {
        "tritonsnap": lambda: Compression.of(pattern),
        "asdex": lambda: asdex.jacobian_coloring_from_sparsity(theirs),
    }
    rows = []
    for name, color in coloring.items():
        start = time.perf_counter()
        color()
        seconds = time.perf_counter() - start
        rows.append(Row(f"{case.name}: first coloring", name, "s", value=seconds))
    return compare(rows, "tritonsnap")


def memory(cell: str, hidden: int) -> list[Row]:
    """Compare the peak memory of our Jacobian in the weights with that of dense `jax.jacrev`."""
    gates = {"rnn": 1, "gru": 3}[cell]
    weights = {
        "recurrent": jax.ShapeDtypeStruct((hidden, gates, hidden), jnp.float32),
        "bias": jax.ShapeDtypeStruct((gates, hidden), jnp.float32),
    }
    state = jax.ShapeDtypeStruct((hidden,), jnp.float32)
    function = {"rnn": _rnn, "gru": _gru}[cell]
    mask = {
        name: SparsityPattern.from_coo(
            np.arange(np.prod(leaf.shape)) % hidden,
            np.arange(np.prod(leaf.shape)),
            (hidden, int(np.prod(leaf.shape))),
        )
        for name, leaf in weights.items()
    }
    projection = make_jacobian_projection(mask)
    ours = jax.jit(lambda projection, *args: sp_jacrev(function, projection, format="data")(*args))
    programs = {
        "tritonsnap": ours.lower(projection, weights, state),
        "jax.jacrev": jax.jit(jax.jacrev(function)).lower(weights, state),
    }
    rows = []
    for name, program in programs.items():
        size = float(peak_bytes(program.compile()))
        rows.append(Row(cell, name, "B", {"hidden": hidden}, value=size))
    return compare(rows, "jax.jacrev")


def _rnn(weights: dict[str, jax.Array], state: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.einsum("j,jgi->gi", state, weights["recurrent"]) + weights["bias"])[0]


def _gru(weights: dict[str, jax.Array], state: jax.Array) -> jax.Array:
    reset, update, new = jnp.einsum("j,jgi->gi", state, weights["recurrent"]) + weights["bias"]
    update = jax.nn.sigmoid(update)
    return update * state + (1 - update) * jnp.tanh(jax.nn.sigmoid(reset) * new)


def plot_memory(rows: Sequence[Row], path: Path) -> Path:
    """Draw peak memory against hidden units."""
    figure, axes = new_figure(2)
    for ax, cell in zip(axes, ("rnn", "gru"), strict=True):
        for name in ("jax.jacrev", "tritonsnap"):
            own = [row for row in rows if row.case == cell and row.variant == name]
            ax.loglog(
                [row.parameters["hidden"] for row in own],
                [row.number / 2**20 for row in own],
                marker="o",
                label=name,
            )
        ax.set(title=cell, xlabel="hidden units", ylabel="peak memory, MiB")
        ax.legend()
    return save_figure(figure, path)


def _pattern_of_asdex(pattern: SparsityPattern) -> asdex.SparsityPattern:
    rows, cols = (indices.astype(np.int32) for indices in (pattern.rows, pattern.cols))
    return asdex.SparsityPattern.from_coo(rows, cols, pattern.shape)


def _colors_of_sparsejac(pattern: SparsityPattern) -> int:
    """Count the VJPs of sparsejac, which does not tell."""
    ones = np.ones(pattern.nnz)
    matrix = coo_matrix((ones, (pattern.rows, pattern.cols)), shape=pattern.shape)
    inside = sparsejac.sparsejac
    connected = inside._output_connectivity_from_sparsity(matrix)
    return int(inside._greedy_color(connected, "largest_first")[1])


def _normal(size: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(size), jnp.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    parser = Parser("jacobian", __doc__, repeats=3)
    parser.add_argument("--repeats", type=int, default=50, help="samples per variant")
    options = parser.parse_args(arguments)
    timed = first_coloring(banded())
    for make in (banded, snap1, two_steps, random, brusselator):
        timed += speed(make(), options.repeats)
    print(markdown_table(timed))
    peaks = [row for cell in ("rnn", "gru") for h in MEMORY_SIZES for row in memory(cell, h)]
    print(markdown_table(peaks))
    device = environment()["device"]
    print(write_report("jacobian", [*timed, *peaks], results=options.results))
    print(plot_memory(peaks, results_path("jacobian-memory", device, ".png", options.results)))


if __name__ == "__main__":
    raise SystemExit(run_command(main))
