"""The Jacobian of a reaction-diffusion step in at most ten passes, however large the grid.

Draws the pattern with the colors of its rows, and the time of a Jacobian against the number of
cells, beside `jax.jacrev`. Needs the extras jax and plots.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import tritonsnap as ts
from tritonsnap.jax import make_jacobian_projection, sp_jacrev, verify_projection


def step(field: jax.Array) -> jax.Array:
    """One explicit step of the Fisher-KPP equation on a square with periodic edges."""
    neighbours = sum(jnp.roll(field, shift, axis) for shift in (1, -1) for axis in (0, 1))
    return field + 0.1 * (neighbours - 4 * field) + 0.01 * field * (1 - field)


def stencil_pattern(side: int) -> ts.SparsityPattern:
    """Each cell of the new field depends on itself and its four neighbours."""
    cells = np.arange(side * side).reshape(side, side)
    shifted = [cells] + [np.roll(cells, shift, axis) for shift in (1, -1) for axis in (0, 1)]
    rows = np.tile(cells.ravel(), len(shifted))
    cols = np.concatenate([array.ravel() for array in shifted])
    return ts.SparsityPattern.from_coo(rows, cols, (side * side, side * side))


def seconds_of(function: Callable[..., Any], *args: Any, repeats: int = 5) -> float:
    """Median time of a call, without its compilation."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print a table, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[10, 20, 30, 40, 60])
    parser.add_argument("--dense-limit", type=int, default=40, help="largest side for jax.jacrev")
    parser.add_argument("--out", type=Path, default=Path("sparse_jacobian.png"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)

    cells, passes, sparse, dense = [], [], [], []
    for side in options.sides:
        field = jnp.asarray(np.random.default_rng(0).random((side, side)), jnp.float32)
        projection = make_jacobian_projection(stencil_pattern(side))
        verify_projection(step, projection, field)
        jacobian = jax.jit(lambda p, f: sp_jacrev(step, p, format="data")(f))
        cells.append(side * side)
        passes.append(projection.num_passes)
        sparse.append(seconds_of(jacobian, projection, field))
        small = side <= options.dense_limit
        dense.append(seconds_of(jax.jit(jax.jacrev(step)), field) if small else np.nan)
        print(
            f"{cells[-1]:6} cells: {passes[-1]} passes, {1e3 * sparse[-1]:.3f} ms; "
            + (f"jax.jacrev {1e3 * dense[-1]:.3f} ms" if small else "jax.jacrev is left out")
        )

    figure = Figure(figsize=(10, 4), layout="constrained")
    picture, times = figure.subplots(1, 2)
    pattern = stencil_pattern(options.sides[0])
    ts.color_rows(pattern).plot(pattern, picture)
    picture.set_title(f"{pattern.shape[0]} cells: rows of a color share one pass")
    times.loglog(cells, dense, marker="o", label="jax.jacrev")
    times.loglog(cells, sparse, marker="o", label="sp_jacrev")
    times.set(xlabel="cells", ylabel="seconds for one Jacobian")
    times.legend()
    figure.savefig(options.out, dpi=150)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
