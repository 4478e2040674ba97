"""A KAN learns determinants of 4x4 matrices: threads, processes, and two ways to use a block.

Draws the held-out correlation against seconds and records. Needs the extra plots.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tritonsnap.kan import KAN, Trainer
from tritonsnap.kan.tasks import TASKS

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "two processes": {"engine": "processes", "clients": 2},
    "two clients, two servers": {"clients": 2, "servers": 2},
    "Kaczmarz, largest quarter": {"solver": "kaczmarz", "select": 0.25},
    "Kaczmarz, all records": {"solver": "kaczmarz", "select": 1.0},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train each variant, print where it got, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("concurrent_kan.png"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)

    task = TASKS["det4"]
    (x, y), validation = task.records(seed=0, training=options.records)
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_seconds, by_records = figure.subplots(1, 2, sharey=True)
    for name, settings in VARIANTS.items():
        model = KAN(task.inputs, task.addends, task.inner_points, task.outer_points)
        history = Trainer(model, **settings).fit(
            x, y, epochs=options.epochs, validation=validation, progress=False
        )
        last = history[-1]
        print(
            f"{name}: correlation {last.pearson:.4f} after {last.seconds:.1f} s, "
            f"{last.records_per_second:.0f} records/s, "
            f"at most {max(last.staleness)} versions late"
        )
        accuracy = [report.pearson for report in history]
        by_seconds.plot([r.seconds for r in history], accuracy, marker=".", label=name)
        by_records.plot([r.records for r in history], accuracy, marker=".", label=name)
    by_seconds.set(xlabel="seconds of training", ylabel="held-out correlation")
    by_records.set(xlabel="records")
    by_records.legend()
    figure.savefig(options.out, dpi=150)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
