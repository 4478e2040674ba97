"""Measure the accuracy of KANs against the time of their training, and that of peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks import report
from benchmarks.kan_peers import (
    Point,
    count_parameters,
    perceptron,
    spline_kan,
    train_compiled,
    train_network,
)
from tritonsnap.console import run_command
from tritonsnap.kan import KAN, Trainer
from tritonsnap.kan.tasks import TASKS, Records, Task

GOALS = {"det4": 0.965, "det5": 0.8, "formula3": 0.999, "triangle": 0.94}
"""The correlation whose time is compared."""
SEQUENTIAL = 20_000
"""Records of the record-by-record engine, which is too slow for all; speed is per record."""

Curve = list[Point]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every variant, print the table, write the report and the plot."""
    parser = report.Parser("kan", __doc__, task="formula3", records=4_000, epochs=2)
    parser.add_argument("--task", choices=TASKS, default="det4")
    parser.add_argument("--epochs", type=int, help="default: the task's")
    parser.add_argument("--records", type=int, help="to train on; default: the task's")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args(arguments)
    task = TASKS[options.task]
    epochs = options.epochs or task.epochs
    records = task.records(0, options.records)
    curves = {}
    trainings = variants(task, records, epochs)
    unknown = set(options.variants or ()) - set(trainings)
    if unknown:
        parser.error(f"--variants must be of {', '.join(trainings)}, got {', '.join(unknown)}")
    for name in tqdm(options.variants or trainings, disable=None):
        curves[name] = list(trainings[name]())
    rows = compare(options.task, curves)
    print(report.markdown_table(rows))
    path = report.write_report(f"kan-{options.task}", rows, results=options.results)
    print(plot(options.task, curves, path.with_suffix(".png")))


def variants(task: Task, records: tuple[Records, Records], epochs: int) -> dict[str, Any]:
    """Each variant's training, which yields a point each epoch."""
    (x, y), validation = records

    def model() -> KAN:
        return KAN(task.inputs, task.addends, task.inner_points, task.outer_points)

    def ours(limit: int | None = None, **settings: Any) -> Callable[[], Iterator[Point]]:
        def train() -> Iterator[Point]:
            trainer = Trainer(model(), **{"solver": task.solver, **settings})
            history = trainer.fit(
                x[:limit],
                y[:limit],
                epochs=1 if limit else epochs,
                validation=validation,
                progress=False,
            )
            yield from ((r.records, r.seconds, float(r.pearson or 0)) for r in history)

        return train

    def network(make: Callable[[int, int], Any]) -> Callable[[], Iterator[Point]]:
        size = model().parameters
        print(f"{make.__name__}: {count_parameters(make(task.inputs, size))} parameters of {size}")
        return lambda: train_network(lambda: make(task.inputs, size), x, y, validation, epochs)

    plain: dict[str, Any] = {"solver": "kaczmarz", "select": 1.0}
    return {
        "default": ours(),
        "threads, 2 clients": ours(clients=2),
        "threads, 4 clients": ours(clients=4),
        "threads, 2 clients, 2 servers": ours(clients=2, servers=2),
        "processes, 2 clients": ours(engine="processes", clients=2),
        "all records": ours(select=1.0, block=128),
        "plain blocks": ours(**plain),
        "plain blocks, 2 clients": ours(**plain, clients=2),
        "plain blocks, 2 processes": ours(**plain, engine="processes", clients=2),
        "plain blocks, quarter": ours(solver="kaczmarz", select=0.25),
        "sequential": ours(SEQUENTIAL, engine="sequential", solver="kaczmarz"),
        "compiled sequential": lambda: train_compiled(model(), x, y, validation, epochs),
        "torch MLP": network(perceptron),
        "torch B-spline KAN": network(spline_kan),
    }


def compare(task: str, curves: dict[str, Curve]) -> list[report.Row]:
    """Rows of speed, best accuracy, and time to the task's goal."""
    goal = GOALS[task]
    speed, best, time_to = [], [], []
    for name, curve in curves.items():
        count, seconds, _ = curve[-1]
        speed.append(report.Row(task, name, "records/s", value=count / seconds))
        accuracy = max(point[2] for point in curve)
        best.append(report.Row(task, name, "correlation", value=accuracy))
        reached = seconds_to(curve, goal)
        if reached is not None:
            parameters = {"correlation": goal}
            time_to.append(report.Row(task, name, "s", parameters, value=reached))
    return [*report.compare([*speed, *time_to], "compiled sequential"), *best]


def seconds_to(curve: Curve, goal: float) -> float | None:
    """The training time of the first epoch that ends at the goal or above."""
    return next((seconds for _, seconds, correlation in curve if correlation >= goal), None)


def plot(task: str, curves: dict[str, Curve], path: Path) -> Path:
    """Plot what is left to a perfect correlation against records and seconds."""
    figure, axes = report.new_figure(2)
    styles = {
        name: {"color": f"C{i % 10}", "linestyle": "-" if i < 10 else "--"}
        for i, name in enumerate(curves)
    }
    for name, curve in curves.items():
        count, seconds, correlation = np.array(curve).T
        for place, values in zip(axes, (count, seconds), strict=True):
            place.plot(values, 1 - correlation, marker=".", label=name, **styles[name])
    for place, label in zip(axes, ("records", "seconds of training"), strict=True):
        place.set(xscale="log", yscale="log", xlabel=label, ylabel="1 - validation correlation")
        place.axhline(1 - GOALS[task], color="gray", linewidth=0.8)
    axes[0].set_title(task)
    axes[1].legend(fontsize=6)
    return report.save_figure(figure, path)


if __name__ == "__main__":
    raise SystemExit(run_command(main))
