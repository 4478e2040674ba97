"""How far SnAp-1, SnAp-2, RTRL and BPTT get in the copy task on the same data.

``python -m benchmarks copy_task [--hidden N] [--steps N] [--seeds N]`` trains a GRU of 128 units,
75 % of whose recurrent weights are missing, on the curriculum of Menick et al. (ICLR 2021, section
5.2): repeat L bits, where L grows by one whenever the loss falls below 0.15 bits. Every method
reads as many symbols, starts from the same parameters and updates them every `UPDATE_EVERY` time
steps. BPTT looks back as many steps and no further; the influence of the others goes on across
updates. The curves are the lengths asked for, by time steps: the median of the seeds, and the range
from the lowest to the highest of them.

Runs are kept in a folder. The same command goes on where it was interrupted, and with more seeds or
more steps it runs only what is missing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.report import (
    Parser,
    Quantiles,
    Row,
    environment,
    markdown_table,
    new_figure,
    results_path,
    save_figure,
    write_report,
)
from tritonsnap.console import run_command
from tritonsnap.online.configuration import TrainingConfig
from tritonsnap.online.training import Budget, Run

NAME = "copy_task"
RUNS = Path("runs") / "copy_task"
UPDATE_EVERY = 16
UPDATES_PER_POINT = 10
LENGTH, SECONDS = "copy length", "training time"
METHODS: dict[str, dict[str, Any]] = {
    "SnAp-1": {"method": "snap", "order": 1},
    "SnAp-2": {"method": "snap", "order": 2},
    "RTRL": {"method": "rtrl"},
    "BPTT": {"method": "bptt"},
}


def train(name: str, hidden: int, steps: int, seed: int, runs: Path = RUNS) -> list[Row]:
    """The copy length that a method had reached at every report, and the time it took.

    Goes on with the run if `runs` holds its beginning.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, with everything kept.
    """
    config = TrainingConfig(
        task="copy",
        hidden=hidden,
        density=0.25,
        batch=4,
        update_every=UPDATE_EVERY,
        learning_rate=0.01,
        seed=seed,
        **METHODS[name],
    )
    folder = runs / f"{name}-{hidden}-units-seed-{seed}"
    run = Run(config, folder, resume=(folder / "checkpoint.npz").exists())
    if not run.train(Budget(steps=steps), UPDATES_PER_POINT):
        raise KeyboardInterrupt
    sizes = {"units": hidden, "density": config.density, "batch": config.batch, "seed": seed}
    points = [
        row
        for row in run.metrics.rows
        if row["step"] == steps
        or (row["step"] < steps and row["step"] % (UPDATE_EVERY * UPDATES_PER_POINT) == 0)
    ]
    return [
        Row(case, name, unit, {**sizes, "step": row["step"]}, value=row[key])
        for case, unit, key, chosen in (
            (LENGTH, "1", "copy_length", points),
            (SECONDS, "s", "seconds", points[-1:]),
        )
        for row in chosen
    ]


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """One row for all seeds, with quantiles where there are several."""
    samples: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        samples.setdefault((row.case, row.variant, row.parameters["step"]), []).append(row)
    joined = []
    for sample in samples.values():
        first, numbers = sample[0], [row.number for row in sample]
        shared = {**first.parameters, "seeds": len(numbers)}
        del shared["seed"]
        if len(numbers) == 1:
            joined.append(Row(first.case, first.variant, first.unit, shared, value=numbers[0]))
        else:
            spread = Quantiles.of(numbers)
            joined.append(Row(first.case, first.variant, first.unit, shared, *spread))
    return joined


def plot(rows: Sequence[Row], path: Path) -> Path:
    """Draw the copy length over time steps: the median of the seeds, and their range."""
    figure, (axes,) = new_figure()
    for number, name in enumerate(METHODS):
        curve: dict[int, list[float]] = {}
        for row in rows:
            if (row.variant, row.case) == (name, LENGTH):
                curve.setdefault(row.parameters["step"], []).append(row.number)
        steps = sorted(curve)
        lengths = [curve[step] for step in steps]
        width = 1.5 * (len(METHODS) - number)  # so that equal curves are all seen
        median = [statistics.median(sample) for sample in lengths]
        axes.step(steps, median, where="post", color=f"C{number}", label=name, linewidth=width)
        low, high = ([end(sample) for sample in lengths] for end in (min, max))
        axes.fill_between(steps, low, high, step="post", color=f"C{number}", alpha=0.2, lw=0)
    axes.set_xlabel("time steps")
    axes.set_ylabel("bits to copy")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print the last rows, write all of them and the plot."""
    parser = Parser(NAME, __doc__, hidden=16, steps=800)
    parser.add_argument("--hidden", type=int, default=128, help="units (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=4_000, help="time steps of each run (%(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each method: seeds 0, 1, ... (%(default)s)"
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, help="folder in which runs go on (%(default)s)"
    )
    options = parser.parse_args(arguments)
    for name, least in (("steps", UPDATE_EVERY), ("seeds", 1)):
        value = getattr(options, name)
        if value < least or value % least:
            parser.error(f"--{name} must be a positive multiple of {least}, got {value}")
    runs = [(name, seed) for seed in range(options.seeds) for name in METHODS]
    rows: list[Row] = []
    for name, seed in tqdm(runs, desc=NAME, unit="run", disable=None):
        rows += train(name, options.hidden, options.steps, seed, options.runs)
    last = [row for row in rows if row.parameters["step"] == options.steps]
    print(markdown_table(over_seeds(last)))
    print(f"results are in {write_report(NAME, rows, results=options.results)}")
    path = results_path(NAME, environment()["device"], ".png", options.results)
    print(f"plot is in {plot(rows, path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main, "interrupted; what is finished is kept for the next run"))
