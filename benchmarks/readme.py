"""Put the committed results into README.md: its tables, and the picture at its top.

``python -m benchmarks readme`` rewrites what stands between ``<!-- results: NAME -->`` and
``<!-- end -->``, a table for every device with results of that name, and draws `PICTURE`. A table
shows the rows that it knows; what was not measured stays empty.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import (
    RESULTS,
    Row,
    format_table,
    new_figure,
    read_report,
    save_figure,
)
from tritonsnap import RNN, explain
from tritonsnap.console import run_command
from tritonsnap.files import write_atomically

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "overview.png"
PICTURED = "intel-r-xeon-r-processor"
"""The device whose results the picture shows."""
SECTION = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
PREDICTED = " (not run: predicted)"
LOOP = "loop over nonzeros (numba)"
"""The variant that computes one dot product for each nonzero, as the first published kernel did."""

Cell = tuple[tuple[str, ...], str, str]
"""What names its line in a table, its column, and its text."""


def number(value: float) -> str:
    """Three digits, as a person writes them."""
    if value >= 1000:
        return f"{round(value, 3 - len(str(int(value)))):,.0f}"
    return f"{value:.3g}"


def milliseconds(row: Row) -> str:
    """The median in milliseconds."""
    return number(1e3 * row.number)


def pivot(
    labels: Sequence[str],
    columns: Mapping[str, str],
    cells: Iterable[Cell],
) -> str:
    """Arrange cells as a table.

    Parameters
    ----------
    labels
        Headings of what names a line.
    columns
        Headings of the other columns, by name. Cells of other columns are left out.
    cells
        In any order.
    """
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for line, column, text in cells:
        if column in columns:
            lines.setdefault(line, {})[column] = text
    body = [
        [*line, *(found.get(column, "") for column in columns)] for line, found in lines.items()
    ]
    return format_table([*labels, *columns.values()], body)


def masked_dsmm(rows: Sequence[Row]) -> str:
    """One product: milliseconds of every face, and how many times faster than the baseline."""
    columns = {
        LOOP: "loop over nonzeros",
        **{name: name for name in ("NumPy", "NumPy with SciPy", "JAX", "torch")},
    }

    def cells() -> Iterator[Cell]:
        for row in rows:
            sizes = row.parameters
            if row.variant in columns and sizes["batch"] == 1:
                line = f"{sizes['units']}, {sizes['density']:.0%}, {sizes['order']}"
                times = f" ({1 / row.ratio:.0f}x)" if row.ratio and row.ratio != 1 else ""
                yield (line, f"{sizes['nnz']:,}"), row.variant, milliseconds(row) + times

    return pivot(["units, density, order", "nonzeros"], columns, cells())


def sequence(rows: Sequence[Row]) -> str:
    """The gradient of a sequence: milliseconds by rule, and what it would take if not run."""
    columns = {"BPTT by jax.grad": "BPTT by `jax.grad`", "BPTT": "our BPTT"}
    columns |= {f"{name}, auto": name for name in ("SnAp-1", "SnAp-2", "SnAp-3", "RTRL")}
    columns |= {
        "dense, masked, from 4 steps": "dense product, masked",
        "braintrace, D-RTRL": "braintrace, D-RTRL",
    }

    def cells() -> Iterator[Cell]:
        for row in rows:
            sizes = row.parameters
            if row.unit == "s" and sizes.get("units") == 256:
                case = row.case if "steps" not in sizes else f"RNN, {sizes['steps']} steps"
                predicted = "~" if row.variant.endswith(PREDICTED) or "note" in sizes else ""
                name = row.variant.removesuffix(PREDICTED)
                yield (case, f"{sizes['density']:.3g}"), name, predicted + milliseconds(row)

    return pivot(["cell, 256 units", "density"], columns, cells())


def memory(rows: Sequence[Row]) -> str:
    """Memory over the length of a sequence, in megabytes."""
    kept = _memory(rows)
    lengths = {str(steps): f"{steps:,} steps" for steps in sorted({_steps(row) for row in kept})}
    cells = (((row.variant,), str(_steps(row)), number(row.number / 1e6)) for row in kept)
    return pivot(["GRU, 256 units, dense: MB"], lengths, cells)


def jacobian(rows: Sequence[Row]) -> str:
    """Coloring and Jacobians: milliseconds of three libraries."""
    libraries = ("tritonsnap", "asdex", "sparsejac")
    columns = {
        f"{what}, {library}": f"{what}: {library}"
        for what in ("coloring", "jacobian")
        for library in libraries
    }

    def cells() -> Iterator[Cell]:
        for row in rows:
            case, _, what = row.case.rpartition(": ")
            if row.unit == "s":
                yield (case,), f"{what}, {row.variant}", milliseconds(row)

    return pivot(["function"], columns, cells())


def kan(rows: Sequence[Row]) -> str:
    """Networks trained record by record: speed, time to a correlation, and the best one."""
    variants = {
        "default": "ours, one client",
        "processes, 2 clients": "ours, two processes",
        "compiled sequential": "record by record, compiled loop",
        "torch MLP": "torch, perceptron of equal size",
        "torch B-spline KAN": "torch, B-spline KAN of equal size",
    }
    goal = next((row.parameters["correlation"] for row in rows if row.unit == "s"), None)
    columns = {"records/s": "records per second", "s": f"s to a correlation of {goal}"}
    columns["correlation"] = "best correlation"
    cells = (
        ((variants[row.variant],), row.unit, number(row.number))
        for row in rows
        if row.variant in variants
    )
    return pivot([f"{rows[0].case}"], columns, cells)


def traffic(rows: Sequence[Row]) -> str:
    """Bytes that kernels move over the bytes of the influence."""
    columns = {"naive": "one thread per nonzero", "masked_dsmm": "`masked_dsmm`"}
    columns |= {"influence_update": "`influence_update`", "influence_step": "`influence_step`"}

    def cells() -> Iterator[Cell]:
        for row in rows:
            sizes = row.parameters
            if sizes["quantity"] == "L2 over useful J" and sizes["density"] in (
                0.001,
                0.01,
                0.1,
                1,
            ):
                line = f"{sizes['density']:g}", str(sizes["batch"])
                yield line, row.variant, number(row.number)

    return pivot(["density", "batch"], columns, cells())


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "masked_dsmm": ("masked_dsmm", masked_dsmm),
    "sequence": ("sequence", sequence),
    "memory": ("sequence", memory),
    "jacobian": ("jacobian", jacobian),
    "kan": ("kan-det4", kan),
    "traffic": ("traffic", traffic),
}
"""For each section of the README the benchmark whose results it shows, and how."""


def section(name: str, results: Path = RESULTS) -> str:
    """The tables of a section, one for each device."""
    benchmark, table = TABLES[name]
    found = []
    for path in sorted(results.glob(f"*/{benchmark}.json")):
        header, rows = read_report(path)
        device = f"{header['device']}, {header['cores']} cores, {header['date'][:10]}"
        found.append(f"\n{table(rows)}\n\n<sub>{device}</sub>\n")
    return "".join(found) or "\n(no results yet)\n"


def filled(text: str, results: Path = RESULTS) -> str:
    """A page with its sections as the results have them."""
    return SECTION.sub(lambda found: f"{found[1]}{section(found[2], results)}\n{found[3]}", text)


def picture(device: Path) -> Any:
    """Draw what SnAp keeps, one product over densities, and memory over time.

    Parameters
    ----------
    device
        The folder with its results.
    """
    figure, (kept, products, lasting) = new_figure(3)
    orders = range(1, 7)
    for density in (0.01, 0.03, 0.1):
        cell = RNN(inputs=32, hidden=256, density=density, seed=0)
        shares = [row.density for row in explain(cell, orders=orders, steps=1).rows[: len(orders)]]
        kept.plot(orders, shares, "o-", label=f"{density:.0%} of the weights")
    kept.set(yscale="log", xlabel="n", ylabel="share of the Jacobian")
    kept.set_title("What SnAp-n keeps (RNN, 256 units)", fontsize="medium")

    labels = {LOOP: "compiled loop over nonzeros"}
    _, rows = read_report(device / "density_sweep.json")
    for name in dict.fromkeys(row.variant for row in rows):
        points = [(r.parameters["density"], 1e3 * r.number) for r in rows if r.variant == name]
        products.plot(*zip(*points, strict=True), "o-", label=labels.get(name, name))
    products.set(xscale="log", yscale="log", xlabel="density of the weights", ylabel="milliseconds")
    products.set_title("One product of SnAp-2 (1024 units)", fontsize="medium")

    _, rows = read_report(device / "sequence.json")
    timed = {
        row.variant: f", {milliseconds(row)} ms for 192 steps"
        for row in rows
        if (row.case, row.unit) == ("GRU", "s") and row.parameters == {"units": 256, "density": 1.0}
    }
    for name in dict.fromkeys(row.variant for row in _memory(rows)):
        points = [(_steps(row), row.number / 1e6) for row in _memory(rows) if row.variant == name]
        rule = name.partition(",")[0]
        time = timed.get(f"{rule}, auto", timed.get(rule, ""))
        lasting.plot(*zip(*points, strict=True), "o-", label=rule + time)
    lasting.set(ylim=(0, None), xlabel="steps", ylabel="MB beside the data")
    lasting.set_title("The gradient of a sequence (GRU, 256 units)", fontsize="medium")
    for ax in (kept, products, lasting):
        ax.legend(fontsize="x-small", frameon=False)
    return figure


def _memory(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.unit == "B" and "steps" in row.parameters]


def _steps(row: Row) -> int:
    return int(row.parameters["steps"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the README's tables and draw its picture."""
    options = argparse.ArgumentParser(prog="python -m benchmarks readme", description=__doc__)
    options.parse_args(arguments)
    write_atomically(README, filled(README.read_text(encoding="utf-8")))
    save_figure(picture(RESULTS / PICTURED), PICTURE, dpi=100)
    print(f"{README} and {PICTURE} show the results")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
