"""Count the memory traffic of every kernel over a sweep of densities."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # must be set before triton is imported

import itertools
from collections.abc import Sequence

from tqdm import tqdm

from benchmarks import report
from benchmarks.roofline import DEVICES
from benchmarks.traffic.kernels import KERNELS, NAIVE, SNAP1_STEP
from benchmarks.traffic.model import Traffic, measure_traffic
from benchmarks.traffic.problem import Problem, snap_problem
from tritonsnap.console import run_command

DENSITIES = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
DEVICE = "Triton interpreter"

Case = tuple[str, float, int]  # kernel, density, batch


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sweep, print the table, write the report and the plot."""
    names = [kernel.name for kernel in (*KERNELS, SNAP1_STEP)]
    parser = report.Parser(
        "traffic", __doc__, hidden=128, densities=(0.03, 1.0), batches=(1,), programs=2
    )
    parser.add_argument("--hidden", type=int, default=1024, help="units of the network")
    parser.add_argument("--order", type=int, default=2, help="n of SnAp-n")
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES)
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--kernels", nargs="+", choices=names, help="(default: all that apply)")
    parser.add_argument(
        "--programs", type=int, help="programs to run of each launch (default: by column size)"
    )
    options = parser.parse_args(arguments)

    cases = list(itertools.product(options.densities, options.batches))
    known = [*KERNELS, SNAP1_STEP] if options.order == 1 else list(KERNELS)
    if options.kernels:
        known = [kernel for kernel in known if kernel.name in options.kernels]
    found: dict[Case, Traffic] = {}
    with tqdm(total=len(cases) * len(known), unit="case", disable=None) as progress:
        for density, batch in cases:
            problem = snap_problem(options.hidden, density, batch, options.order)
            enough = _enough_programs(problem)
            for kernel in known:
                programs = options.programs or min(enough, kernel.most_programs)
                progress.set_postfix_str(f"{kernel.name}, density {density:g}, batch {batch}")
                traffic = measure_traffic(kernel, problem, programs)
                found[kernel.name, density, batch] = traffic
                progress.update()

    print(_table(found))
    case = f"snap{options.order}"
    name = "traffic" if options.order == 2 else f"traffic-{case}"
    rows = _rows(found, case, options.hidden)
    print("wrote", report.write_report(name, rows, device=DEVICE, results=options.results))
    try:
        figure = _plot(found)
    except ImportError as error:
        print("no plot:", error)
    else:
        path = report.results_path(name, DEVICE, ".png", options.results)
        print("wrote", report.save_figure(figure, path))


def _enough_programs(problem: Problem) -> int:
    """Fewer for long columns: they take longer, and differ less from one another."""
    mean_column = problem.mask.nnz / problem.mask.shape[1]
    return min(max(16, round(8192 / mean_column)), 256)


def _table(found: dict[Case, Traffic]) -> str:
    header = ["density", "batch", "kernel", "useful J, MB", "J sectors, MB", "J efficiency"]
    header += ["coalescing", "L1 / J", "L2 / J", "GFLOP", "FLOP/B"]
    header += [f"{device.name}, us" for device in DEVICES]
    lines = []
    for (kernel, density, batch), traffic in found.items():
        numbers = [
            traffic.influence_bytes / 1e6,
            32 * traffic.influence.sectors / 1e6,
            traffic.influence.efficiency,
            traffic.total.coalescing,
            traffic.l1_ratio,
            traffic.l2_ratio,
            traffic.flops / 1e9,
            traffic.intensity,
            *(1e6 * traffic.seconds(device) for device in DEVICES),
        ]
        lines.append([f"{density:g}", str(batch), kernel, *(f"{number:.3g}" for number in numbers)])
    return report.format_table(header, lines)


def _rows(found: dict[Case, Traffic], case: str, hidden: int) -> list[report.Row]:
    rows = []
    for (kernel, density, batch), traffic in found.items():
        quantities = {
            "useful J": (traffic.influence_bytes, "B"),
            "J sectors": (32 * traffic.influence.sectors, "B"),
            "J sector efficiency": (traffic.influence.efficiency, "1"),
            "coalescing": (traffic.total.coalescing, "1"),
            "L1": (traffic.l1_bytes, "B"),
            "L2": (traffic.l2_bytes, "B"),
            "L1 over useful J": (traffic.l1_ratio, "1"),
            "L2 over useful J": (traffic.l2_ratio, "1"),
            "operations": (traffic.flops, "FLOP"),
            "arithmetic intensity": (traffic.intensity, "FLOP/B"),
            **{f"roofline {gpu.name}": (traffic.seconds(gpu), "s") for gpu in DEVICES},
        }
        for quantity, (value, unit) in quantities.items():
            parameters = {
                "hidden": hidden,
                "density": density,
                "batch": batch,
                "quantity": quantity,
            }
            rows.append(report.Row(case, kernel, unit, parameters, value=value))
    return report.compare(rows, NAIVE.name)


def _plot(found: dict[Case, Traffic]) -> object:
    figure, axes = report.new_figure(columns=3)
    titles = ("L1 bytes / useful J", "L2 bytes / useful J", "sector efficiency of J")
    curves = dict.fromkeys((kernel, batch) for kernel, _, batch in found)
    for kernel, batch in curves:
        points = {d: t for (name, d, b), t in found.items() if (name, b) == (kernel, batch)}
        series = (
            [traffic.l1_ratio for traffic in points.values()],
            [traffic.l2_ratio for traffic in points.values()],
            [traffic.influence.efficiency for traffic in points.values()],
        )
        for ax, values in zip(axes, series, strict=True):
            ax.plot(list(points), values, marker="o", label=f"{kernel}, batch {batch}")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, xlabel="density", xscale="log")
    for ax in axes[:2]:
        ax.set_yscale("log")
    axes[2].set_ylim(0, 1.05)
    axes[2].legend(loc="lower left", fontsize=7)
    return figure


if __name__ == "__main__":
    raise SystemExit(run_command(main))
