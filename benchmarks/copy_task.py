"""How far SnAp-1, SnAp-2, RTRL and BPTT get in the copy task on the same data.

``python -m benchmarks copy_task [--hidden N] [--steps N] [--seeds N]`` trains a GRU of 128 units,
75 % of whose recurrent weights are missing, on the curriculum of Menick et al. (ICLR 2021, section
5.2): repeat L bits, where L grows by one whenever the loss falls below 0.15 bits. Every method sees
the same stream of symbols, starts from the same parameters and updates them every `UPDATE_EVERY`
time steps. BPTT looks back as many steps and no further; the influence of the others goes on across
updates. The curves are the lengths asked for, by time steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.report import (
    Parser,
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
UPDATE_EVERY = 16
METHODS: dict[str, dict[str, Any]] = {
    "SnAp-1": {"method": "snap", "order": 1},
    "SnAp-2": {"method": "snap", "order": 2},
    "RTRL": {"method": "rtrl"},
    "BPTT": {"method": "bptt"},
}


def train(name: str, hidden: int, steps: int, seed: int) -> list[Row]:
    """The copy length that a method had reached at every report."""
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
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder) / "run")
        if not run.train(Budget(steps=steps)):
            raise KeyboardInterrupt
        figures = run.metrics.rows
    sizes = {"units": hidden, "density": config.density, "batch": config.batch, "seed": seed}
    return [
        Row("copy length", name, "1", {**sizes, "step": row["step"]}, value=row["copy_length"])
        for row in figures
    ]


def plot(rows: Sequence[Row], path: Path) -> Path:
    """Draw the copy length over time steps, a line for each method and seed."""
    figure, (axes,) = new_figure()
    for color, name in enumerate(METHODS):
        curves: dict[int, list[tuple[int, float]]] = {}
        for row in rows:
            if row.variant == name:
                curve = curves.setdefault(row.parameters["seed"], [])
                curve.append((row.parameters["step"], row.number))
        for number, curve in enumerate(curves.values()):
            label = name if number == 0 else None
            width = 1.5 * (len(METHODS) - color)  # so that equal curves are all seen
            points = zip(*curve, strict=True)
            axes.step(*points, where="post", color=f"C{color}", label=label, linewidth=width)
    axes.set_xlabel("time steps")
    axes.set_ylabel("bits to copy")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print the last rows, write all of them and the plot."""
    parser = Parser(NAME, __doc__, hidden=16, steps=800)
    parser.add_argument("--hidden", type=int, default=128, help="units")
    parser.add_argument("--steps", type=int, default=4_000, help="time steps of each run")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method")
    options = parser.parse_args(arguments)
    runs = [(name, seed) for seed in range(options.seeds) for name in METHODS]
    rows: list[Row] = []
    for name, seed in tqdm(runs, desc=NAME, unit="run", disable=None):
        rows += train(name, options.hidden, options.steps, seed)
    print(markdown_table([row for row in rows if row.parameters["step"] == options.steps]))
    print(f"results are in {write_report(NAME, rows, results=options.results)}")
    path = results_path(NAME, environment()["device"], ".png", options.results)
    print(f"plot is in {plot(rows, path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command(main))
