"""One masked product ``M * (D X)`` on the CPU, every face against a loop over nonzeros.

``python -m benchmarks masked_dsmm [--cases N ...] [--repeats N]`` times, interleaved in one run, on
recurrent networks of several sizes (float32): NumPy alone, NumPy with SciPy, JAX, torch on packed
values (batch 1 and 8), NumPy on flat values, every regime by itself, and as baseline a compiled
single-thread loop over the nonzeros of the mask (numba). Each variant is compared with float64
before it is timed. The automatic choice of regimes must not be over 1.5 times off the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.report import Parser, Row, compare, markdown_table, measure, write_report
from tritonsnap import DsmmPlan, Regime, SparsityPattern, masked_dsmm, snap_pattern
from tritonsnap.arrays import to_numpy
from tritonsnap.console import run_command
from tritonsnap.plan import Packing

CASES = ((256, 1.0, 1), (512, 0.1, 2), (512, 0.01, 3), (1024, 0.01, 2), (1024, 0.01, 3))
"""Units, density of the recurrent weights, order of SnAp: the rows of the table."""
BASELINE = "loop over nonzeros (numba)"
WORST_CHOICE = 1.5


@numba.njit(cache=False)
def nonzero_loop(
    d: Any, x: Any, x_indptr: Any, x_rows: Any, rows: Any, cols: Any, out: Any
) -> None:
    """For each nonzero (i, c) of the mask walk column c of X: the algorithm of snapjax."""
    for nonzero in range(rows.size):
        row, col = rows[nonzero], cols[nonzero]
        total = np.float32(0)
        for entry in range(x_indptr[col], x_indptr[col + 1]):
            total += d[row, x_rows[entry]] * x[entry]
        out[nonzero] = total


def recurrent_plan(units: int, density: float, order: int) -> DsmmPlan:
    """The plan of SnAp-n for the recurrent weights of a network, one parameter a weight."""
    weights = (
        SparsityPattern.full((units, units))
        if density == 1
        else SparsityPattern.random((units, units), density, seed=0)
    )
    parameters = np.arange(weights.nnz)
    immediate = SparsityPattern.from_coo(weights.cols, parameters, (units, weights.nnz))
    mask = snap_pattern(weights.T, immediate, order)
    return DsmmPlan(mask, mask, weights.T)


@dataclass(frozen=True)
class Variant:
    """What is timed, and how its result becomes flat values to compare."""

    call: Callable[[], Any]
    flat: Callable[[Any], NDArray[Any]]


def variants(plan: DsmmPlan, d: NDArray[np.float32], x: NDArray[np.float32]) -> dict[str, Variant]:
    """All faces, on packed values unless named flat; at batch 1 the regimes not chosen too."""
    forced = () if d.ndim > 2 else (Regime.WALK, Regime.DENSE)
    faces: dict[str, Variant] = {}
    for target, name in (("numpy", "NumPy"), ("scipy", "NumPy with SciPy"), ("xla", "JAX")):
        chosen = plan.packing(target)
        others = [plan.packing(target, regime) for regime in forced]
        different = [one for one in others if one.digest != chosen.digest]
        for packing in (chosen, *different):
            regime = None if packing is chosen else forced[others.index(packing)]
            label = name if regime is None else f"{name}, {regime} forced"
            product = jax.jit(masked_dsmm) if target == "xla" else masked_dsmm
            convert = jnp.asarray if target == "xla" else np.asarray
            faces[label] = _packed(plan.with_packing(packing), packing, product, convert, d, x)
    torch_packing = plan.packing()
    faces["torch"] = _packed(plan, torch_packing, masked_dsmm, torch.from_numpy, d, x)
    if not forced:
        return faces
    for target, name in (("numpy", "NumPy, flat"), ("scipy", "NumPy with SciPy, flat")):
        packing = plan.packing(target)
        given = _operand(plan, packing, d)
        faces[name] = Variant(
            partial(masked_dsmm, given, x, plan.with_packing(packing)), lambda flat: flat
        )
    return faces


def _packed(
    plan: DsmmPlan,
    packing: Packing,
    product: Callable[..., Any],
    convert: Callable[..., Any],
    d: NDArray[np.float32],
    x: NDArray[np.float32],
) -> Variant:
    given = convert(_operand(plan, packing, d))
    blocks = packing.pack(convert(x))
    return Variant(
        partial(product, given, blocks, plan),
        lambda result: packing.unpack(tuple(map(convert, map(to_numpy, result)))),
    )


def _operand(plan: DsmmPlan, packing: Packing, d: NDArray[np.float32]) -> NDArray[np.float32]:
    """D in the form that the packing reads: dense, or as its values."""
    return d if packing.wants_dense else np.ascontiguousarray(plan.dynamics.values_of(d))


def run(cases: Sequence[tuple[int, float, int]], repeats: int) -> list[Row]:
    """Time the cases; raises an `AssertionError` if a result is wrong."""
    rows: list[Row] = []
    for units, density, order in tqdm(cases, desc="cases", disable=None):
        plan = recurrent_plan(units, density, order)
        rng = np.random.default_rng(0)
        for batch in (1, 8):
            lead = (batch,) if batch > 1 else ()
            entries = rng.normal(size=(*lead, plan.dynamics.nnz)).astype(np.float32)
            d = plan.dynamics.to_dense(entries)
            x = rng.normal(size=(*lead, plan.x.nnz)).astype(np.float32)
            faces = variants(plan, d, x)
            baseline = partial(_seed_product, plan, d, x, np.empty_like(x))
            reference = plan.mask.values_of(d.astype(np.float64) @ plan.x.to_dense(x))
            _check(BASELINE, baseline(), reference)
            for name, variant in faces.items():
                _check(name, to_numpy(variant.flat(variant.call())), reference)
            calls = {name: variant.call for name, variant in faces.items()}
            seconds = measure(
                {BASELINE: baseline, **calls},
                wait=jax.block_until_ready,
                repeats=repeats,
                shortest=1e-2,  # thread pools wake up once a sample
            )
            parameters = {
                "units": units,
                "density": density,
                "order": order,
                "batch": batch,
                "nnz": plan.mask.nnz,
            }
            rows += [
                Row.timed("masked_dsmm", name, quantiles, parameters)
                for name, quantiles in seconds.items()
            ]
    return compare(rows, BASELINE)


def _seed_product(
    plan: DsmmPlan, d: NDArray[np.float32], x: NDArray[np.float32], out: NDArray[np.float32]
) -> NDArray[np.float32]:
    for row in np.ndindex(*x.shape[:-1]):
        nonzero_loop(
            d[row], x[row], plan.x.indptr, plan.x.rows, plan.mask.rows, plan.mask.cols, out[row]
        )
    return out


def _check(name: str, result: NDArray[Any], reference: NDArray[np.float64]) -> None:
    error = np.abs(result - reference).max() / np.abs(reference).max()
    if not error < 1e-5:
        raise AssertionError(f"{name} is wrong by {error:.1e}")


def worst_choices(rows: list[Row]) -> dict[str, float]:
    """How many times slower the automatic choice is than the best forced regime, where it is."""
    worst: dict[str, float] = {}
    for name in ("NumPy", "NumPy with SciPy", "JAX"):
        for row in rows:
            if row.variant != name or row.parameters["batch"] != 1:
                continue
            forced = [
                other.number
                for other in rows
                if other.parameters == row.parameters
                and other.variant.startswith(f"{name}, ")
                and other.variant.endswith("forced")
            ]
            worst[name] = max(worst.get(name, 1.0), row.number / min([row.number, *forced]))
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print and write its table."""
    parser = Parser("masked_dsmm", __doc__, cases=[0, 2], repeats=5)
    numbers = range(len(CASES))
    parser.add_argument("--cases", type=int, nargs="+", choices=numbers, default=numbers)
    parser.add_argument("--repeats", type=int, default=30, help="samples of each variant")
    options = parser.parse_args(arguments)
    rows = run([CASES[number] for number in options.cases], options.repeats)
    print(markdown_table(rows))
    print(f"results are in {write_report('masked_dsmm', rows, results=options.results)}")
    worst = worst_choices(rows)
    for name, ratio in worst.items():
        print(f"{name}: the chosen regimes take at most {ratio:.2f} times the best one's time")
    return int(any(ratio > WORST_CHOICE for ratio in worst.values()))


if __name__ == "__main__":
    raise SystemExit(run_command(main))
