"""One form for all benchmark results: rows, a header, a JSON file, a table, a plot style.

A report is a JSON object with

- ``schema``: `SCHEMA`,
- ``header``: where and with what it was measured (see `environment`),
- ``rows``: a list of `Row` as objects, each with the name of the benchmark.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import tritonsnap
from tritonsnap.files import write_atomically

SCHEMA = "tritonsnap.benchmark/1"
RESULTS = Path(__file__).parent / "results"
QUICK_RESULTS = Path("runs") / "benchmarks-quick"


class Parser(argparse.ArgumentParser):
    """Options of a benchmark; all have ``--quick`` and ``--results``.

    Parameters
    ----------
    name
        Of the benchmark's module in `benchmarks`.
    description
        Its docstring.
    quick
        Values of its options that ``--quick`` chooses in place of their defaults: small sizes. The
        results then go to `QUICK_RESULTS`, so that none that are worth keeping are overwritten.
    """

    def __init__(self, name: str, description: str | None, **quick: Any) -> None:
        super().__init__(
            prog=f"python -m benchmarks {name}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._quick = {"results": QUICK_RESULTS, **quick}
        self.add_argument("--quick", action="store_true", help="small, for a first look")
        self.add_argument(
            "--results", type=Path, default=RESULTS, help="folder of the results (%(default)s)"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the options given over the defaults, the quick ones if asked for.

        Results that could not be written are refused before any are measured.
        """
        args = list(sys.argv[1:] if args is None else args)
        if "--quick" in args:
            self.set_defaults(**self._quick)
        options, unknown = super().parse_known_args(args, namespace)
        folder = next(path for path in (options.results, *options.results.parents) if path.exists())
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            self.error(f"argument --results: cannot write to {options.results}")
        return options, unknown


class Quantiles(NamedTuple):
    """The 20 %, 50 % and 80 % quantiles of a sample."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Quantiles:
        """Take the quantiles of at least two numbers, interpolated linearly."""
        tenths = statistics.quantiles(sample, n=10, method="inclusive")
        return cls(tenths[1], tenths[4], tenths[7])


@dataclass(frozen=True)
class Row:
    """One result: either the quantiles of a sample or a single value.

    Parameters
    ----------
    case
        What is computed, for instance ``"snap2"``.
    variant
        Who computes it, for instance ``"triton"`` or ``"naive"``.
    unit
        The unit of the quantiles or the value: ``"s"``, ``"B"``, ``"1"``, ...
    parameters
        What else distinguishes this row: sizes, density, dtype. JSON values only.
    p20, p50, p80
        Quantiles of the sample; all three or none.
    value
        The single value, if there is no sample.
    baseline, ratio
        The variant this row is compared with, and this row's number over that one's.
    """

    case: str
    variant: str
    unit: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    p20: float | None = None
    p50: float | None = None
    p80: float | None = None
    value: float | None = None
    baseline: str | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        sampled = [quantile is not None for quantile in (self.p20, self.p50, self.p80)]
        if any(sampled) != all(sampled) or any(sampled) == (self.value is not None):
            raise ValueError(
                "a row needs `p20`, `p50` and `p80`, or `value` alone; got "
                f"{self.p20}, {self.p50}, {self.p80} and {self.value}"
            )

    @classmethod
    def timed(
        cls, case: str, variant: str, seconds: Quantiles, parameters: Mapping[str, Any]
    ) -> Row:
        """Make the row of one variant that `measure` timed."""
        return cls(case, variant, "s", parameters, *seconds)

    @property
    def number(self) -> float:
        """The median or the value."""
        number = self.value if self.p50 is None else self.p50
        assert number is not None
        return number


def compare(rows: Iterable[Row], baseline: str) -> list[Row]:
    """Give each row its ratio to the variant `baseline` of equal case, unit and parameters.

    Rows without such a partner, and those whose partner is zero, are left as they are.
    """
    rows = list(rows)
    numbers = {_place(row): row.number for row in rows if row.variant == baseline}
    return [
        replace(row, baseline=baseline, ratio=row.number / numbers[_place(row)])
        if numbers.get(_place(row))
        else row
        for row in rows
    ]


def _place(row: Row) -> tuple[str, str, str]:
    return row.case, row.unit, json.dumps(row.parameters, sort_keys=True)


def measure(
    variants: Mapping[str, Callable[[], Any]],
    *,
    wait: Callable[[Any], object] = lambda result: None,
    repeats: int = 20,
    shortest: float = 1e-3,
) -> dict[str, Quantiles]:
    """Time several functions interleaved, A B C A B C ..., so that drift hits all alike.

    Each is called once for compilation and once to find how many calls fill a sample.

    Parameters
    ----------
    variants
        What to time, by name.
    wait
        Called with the result of a sample's last call; must return only when that result is
        there: ``jax.block_until_ready``, or ``lambda _: torch.cuda.synchronize()``.
    repeats
        Samples per variant, at least 2.
    shortest
        Least length of a sample, seconds: faster functions are called several times in one.

    Returns
    -------
    dict
        Seconds per call of each variant.
    """
    if repeats < 2:
        raise ValueError(f"`repeats` must be at least 2, got {repeats}")
    calls = {}
    for name, function in variants.items():
        _seconds(function, 1, wait)
        calls[name] = max(1, math.ceil(shortest / max(_seconds(function, 1, wait), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, function in variants.items():
            samples[name].append(_seconds(function, calls[name], wait) / calls[name])
    return {name: Quantiles.of(sample) for name, sample in samples.items()}


def _seconds(function: Callable[[], Any], calls: int, wait: Callable[[Any], object]) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        result = function()
    wait(result)
    return time.perf_counter() - start


def peak_bytes(program: Any) -> int:
    """Bytes of the arguments, results and temporary values of a program that `jax.jit` compiled."""
    sizes = program.memory_analysis()
    return int(sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes)


def environment(device: str | None = None) -> dict[str, Any]:
    """Describe the machine and the software: the header of a report.

    Parameters
    ----------
    device
        What the numbers were measured on; by default the GPU that torch sees, else the CPU.
    """
    return {
        "device": device or _gpu_model() or _cpu_model(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "scipy", "torch", "jax", "triton")},
        "tritonsnap": tritonsnap.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu_model() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def write_report(
    benchmark: str, rows: Sequence[Row], *, device: str | None = None, results: Path = RESULTS
) -> Path:
    """Write ``<results>/<device>/<benchmark>.json`` and return its path.

    Raises
    ------
    ValueError
        If a number is NaN or infinite: no such number is a result.
    """
    header = environment(device)
    report = {
        "schema": SCHEMA,
        "header": header,
        "rows": [{"benchmark": benchmark, **asdict(row)} for row in rows],
    }
    path = results_path(benchmark, header["device"], ".json", results)
    write_atomically(path, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return path


def read_report(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read the header and the rows of a report.

    Raises
    ------
    ValueError
        If the file holds a report of another schema.
    """
    report = json.loads(path.read_text(encoding="utf-8"))
    if report.get("schema") != SCHEMA:
        raise ValueError(f"{path} has the schema {report.get('schema')!r} in place of {SCHEMA!r}")
    rows = [
        {key: value for key, value in row.items() if key != "benchmark"} for row in report["rows"]
    ]
    return report["header"], [Row(**row) for row in rows]


def results_path(benchmark: str, device: str, suffix: str, results: Path = RESULTS) -> Path:
    """Name a result file of a device and make its folder."""
    folder = results / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{benchmark}{suffix}"


def markdown_table(rows: Sequence[Row]) -> str:
    """Format rows as a markdown table, one line each; columns that no row fills are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row.parameters))
    lines = []
    for row in rows:
        parameters = [_text(row.parameters.get(name)) for name in names]
        spread = "" if row.p20 is None else f"{_text(row.p20)} .. {_text(row.p80)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g} x {row.baseline}"
        number = f"{_text(row.number)} {row.unit}".removesuffix(" 1")
        lines.append([row.case, row.variant, *parameters, number, spread, ratio])
    return format_table(
        ["case", "variant", *names, "median or value", "p20 .. p80", "ratio"], lines
    )


def format_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Align a markdown table; columns without any content are left out."""
    filled = [i for i in range(len(header)) if any(line[i] for line in lines)]
    table = [[line[i] for i in filled] for line in (header, *lines)]
    widths = [max(len(line[i]) for line in table) for i in range(len(filled))]
    table.insert(1, ["-" * width for width in widths])
    padded = (
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    )
    return "\n".join(f"| {line} |" for line in padded)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def new_figure(columns: int = 1) -> tuple[Any, list[Any]]:
    """Open a matplotlib figure with one row of axes, in the style of all our plots.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            "matplotlib is not installed; run: pip install 'tritonsnap[plots]'"
        ) from error
    figure = Figure(figsize=(5.0 * columns, 3.6), layout="constrained")
    axes = [figure.add_subplot(1, columns, 1 + column) for column in range(columns)]
    for ax in axes:
        ax.grid(True, alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    write_atomically(path, buffer.getvalue())
    return path
