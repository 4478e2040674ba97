"""The masked product over densities, against what one would use instead.

``python -m benchmarks density_sweep [--hidden H] [--order N] [--batch B]`` sweeps the density of
the recurrent weights from 1e-4 to 1 (SnAp-2, float32) on the GPU if there is one, otherwise on
the CPU, and checks every variant before it is timed.

On a GPU: ours, the dense product (cuBLAS) and mask, snapjax's kernel of one thread per
nonzero, a sparse-dense product of `torch.sparse` with the mask's entries taken from it, and
CuPy's cuSPARSE where CuPy is installed. On the CPU: ours in NumPy (with SciPy where it is), the
dense product and mask, SciPy's sparse product and mask, and that algorithm as a
compiled loop. Dense variants are left out where X would need over 4 GB, loops on the CPU where
they would take over 2^30 steps; of large influences a sample of the units' columns is taken.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.masked_dsmm import nonzero_loop
from benchmarks.report import (
    Parser,
    Row,
    compare,
    environment,
    markdown_table,
    measure,
    new_figure,
    results_path,
    save_figure,
    write_report,
)
from benchmarks.traffic.problem import snap_problem
from tritonsnap import DsmmPlan, masked_dsmm
from tritonsnap.arrays import to_numpy
from tritonsnap.console import run_command

DENSITIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
OURS, DENSE = "tritonsnap", "dense product and mask"
_DENSE_LIMIT = 4 << 30
_NONZERO_LIMIT = 1 << 23
_MOST_STEPS = 1 << 30

Calls = dict[str, Callable[[], Any]]


def cpu_variants(plan: DsmmPlan, d: NDArray[Any], x: NDArray[Any]) -> Calls:
    """What to time on the CPU; results are flat values, ours packed."""
    from scipy.sparse import csc_array

    packing, mask = plan.packing(), plan.mask
    given = d if packing.wants_dense else np.ascontiguousarray(plan.dynamics.values_of(d))
    calls: Calls = {OURS: partial(masked_dsmm, given, packing.pack(x), plan)}
    rows, cols, indptr = mask.rows, mask.cols, mask.indptr
    d_sparse = csc_array(
        (plan.dynamics.values_of(d[0]), plan.dynamics.rows, plan.dynamics.indptr),
        shape=plan.dynamics.shape,
    )

    def sparse() -> NDArray[Any]:
        found = []
        for values in x:
            product = d_sparse @ csc_array((values, rows, indptr), shape=mask.shape)
            found.append(np.asarray(product[rows, cols]).ravel())
        return np.stack(found)

    def loop() -> NDArray[Any]:
        out = np.empty_like(x)
        for one, values, into in zip(d, x, out, strict=True):
            nonzero_loop(one, values, indptr, rows, rows, cols, into)
        return out

    sizes = np.diff(indptr)
    if len(x) * int((sizes**2).sum()) < _MOST_STEPS:
        calls["loop over nonzeros (numba)"] = loop
        if len(d) == 1:
            calls["SciPy sparse product and mask"] = sparse
    if _dense_bytes(plan, x.shape[0]) < _DENSE_LIMIT:
        whole = mask.to_dense(x)
        calls[DENSE] = lambda: mask.values_of(d @ whole)
    return calls


def gpu_variants(plan: DsmmPlan, d: NDArray[Any], x: NDArray[Any]) -> Calls:
    """What to time on the GPU; results are flat values."""
    from benchmarks.naive import NaiveDsmm

    device = torch.device("cuda")
    dense_d, values = torch.from_numpy(d).to(device), torch.from_numpy(x).to(device)
    mask = plan.mask
    rows, cols = (torch.from_numpy(i.astype(np.int64)).to(device) for i in (mask.rows, mask.cols))
    entries = torch.from_numpy(np.ascontiguousarray(plan.dynamics.values_of(d))).to(device)
    packing = plan.packing("triton")
    blocks = packing.pack(values)
    given = dense_d if packing.wants_dense else entries
    naive = NaiveDsmm(plan.x, mask, device)
    calls: Calls = {
        OURS: partial(masked_dsmm, given, blocks, plan),
        "one thread per nonzero": partial(naive, dense_d, values),
    }
    if _dense_bytes(plan, x.shape[0]) >= _DENSE_LIMIT:
        return calls
    whole = torch.zeros(len(x), *mask.shape, device=device)
    whole[:, rows, cols] = values
    calls[DENSE] = lambda: (dense_d @ whole)[:, rows, cols]
    if len(x) == 1:
        sparse_d = dense_d[0].to_sparse_csr()
        calls["torch.sparse"] = lambda: (sparse_d @ whole[0])[rows, cols][None]
        if importlib.util.find_spec("cupy"):
            import cupy
            import cupyx.scipy.sparse as cusparse

            cu_d = cusparse.csr_matrix(cupy.asarray(dense_d[0]))
            cu_x = cupy.asarray(whole[0])
            at = cupy.asarray(rows), cupy.asarray(cols)
            calls["CuPy, cuSPARSE"] = lambda: (cu_d @ cu_x)[at][None]
    return calls


def run(hidden: int, order: int, batch: int, repeats: int, densities: tuple[float, ...]) -> Any:
    """Time all densities; raises an `AssertionError` if a result is wrong."""
    on_gpu = torch.cuda.is_available()
    rows: list[Row] = []
    for density in tqdm(densities, desc="densities", disable=None):
        problem = snap_problem(hidden, density, batch, order, most_nonzeros=_NONZERO_LIMIT // batch)
        plan = DsmmPlan(problem.mask, problem.mask, problem.dynamics)
        rng = np.random.default_rng(0)
        entries = rng.normal(size=(batch, plan.dynamics.nnz)).astype(np.float32)
        d = plan.dynamics.to_dense(entries)
        x = rng.normal(size=(batch, plan.x.nnz)).astype(np.float32)
        calls = (gpu_variants if on_gpu else cpu_variants)(plan, d, x)
        reference = _reference(plan, d, x)
        for name, call in calls.items():
            _check(name, call(), reference, plan)
        wait = (lambda _: torch.cuda.synchronize()) if on_gpu else (lambda _: None)
        seconds = measure(calls, wait=wait, repeats=repeats)
        parameters = {
            "hidden": hidden,
            "order": order,
            "batch": batch,
            "density": density,
            "nnz": plan.mask.nnz,
            "share of columns": 1 / problem.scale,
        }
        rows += [Row.timed("density_sweep", n, s, parameters) for n, s in seconds.items()]
    return compare(rows, OURS)


def _dense_bytes(plan: DsmmPlan, batch: int) -> int:
    return 2 * 4 * batch * plan.mask.shape[0] * plan.mask.shape[1]


def _reference(plan: DsmmPlan, d: NDArray[Any], x: NDArray[Any]) -> NDArray[np.float64]:
    """float64 values of a sample of columns, NaN in the others."""
    mask = plan.mask
    found = np.full(x.shape, np.nan)
    for column in np.linspace(0, mask.shape[1] - 1, 64).astype(int):
        support = mask.column(column)
        begin = mask.indptr[column]
        place = slice(begin, begin + len(support))
        matrix = d[:, support[:, None], support].astype(np.float64)
        found[:, place] = (matrix @ x[:, place, None])[..., 0]
    return found


def _check(name: str, result: Any, reference: NDArray[np.float64], plan: DsmmPlan) -> None:
    if isinstance(result, tuple):
        result = plan.packing_for(*result).unpack(result)
    values = result.get() if hasattr(result, "get") else to_numpy(result)
    known = ~np.isnan(reference)
    error = np.abs(values - reference)[known].max(initial=0) / np.abs(reference[known]).max(
        initial=1
    )
    if not error < 1e-4:
        raise AssertionError(f"{name} is wrong by {error:.1e}")


def plot(rows: list[Row]) -> Any:
    """Time over density, one line a variant."""
    figure, (ax,) = new_figure()
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        ax.plot(
            [r.parameters["density"] for r in own], [1e3 * r.number for r in own], "o-", label=name
        )
    ax.set(xscale="log", yscale="log", xlabel="density of the weights", ylabel="milliseconds")
    ax.legend(fontsize=7)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; print, plot and write its table."""
    parser = Parser(
        "density_sweep", __doc__, hidden=256, repeats=3, densities=(1e-3, 1e-2, 0.1, 1.0)
    )
    parser.add_argument("--hidden", type=int, default=1024, help="units")
    parser.add_argument("--order", type=int, default=2, help="steps of SnAp")
    parser.add_argument("--batch", type=int, default=1, help="batch rows")
    parser.add_argument("--repeats", type=int, default=10, help="samples of each variant")
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES)
    options = parser.parse_args(arguments)
    rows = run(
        options.hidden, options.order, options.batch, options.repeats, tuple(options.densities)
    )
    print(markdown_table(rows))
    print(f"results are in {write_report('density_sweep', rows, results=options.results)}")
    path = results_path("density_sweep", environment()["device"], ".png", options.results)
    print(f"the plot is {save_figure(plot(rows), path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
