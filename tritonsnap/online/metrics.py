"""The record of a run: `metrics.jsonl` and `loss.png`."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

from tritonsnap.files import write_atomically


class Metrics:
    """Rows of named figures, one JSON object a line, on disk as soon as they are added.

    Parameters
    ----------
    path
        The file. Rows already in it are kept up to time step `keep_until` and the rest dropped.
    keep_until
        0 for a new record, the step of the checkpoint when a run goes on.
    """

    def __init__(self, path: Path, keep_until: int = 0) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if keep_until and path.exists():
            self.rows = [row for row in _complete_rows(path) if row["step"] <= keep_until]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, row: dict[str, Any]) -> None:
        """Append a row; it needs a ``step``."""
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def plot(self, path: Path, references: dict[str, float]) -> bool:
        """Draw the loss over time steps, with named reference levels.

        Returns
        -------
        bool
            False, and nothing is drawn, if matplotlib is not installed.
        """
        if importlib.util.find_spec("matplotlib") is None:
            return False
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        training = [row for row in self.rows if "bits_per_character" in row]
        axes.plot(
            [row["step"] for row in training],
            [row["bits_per_character"] for row in training],
            label="training",
        )
        for place, (name, level) in enumerate(references.items(), start=1):
            axes.axhline(level, linestyle="--", color=f"C{place}", label=f"{name}: {level:.2f}")
        axes.set_xlabel("time steps")
        axes.set_ylabel("bits per character")
        axes.set_ylim(bottom=0)
        axes.legend()
        image = io.BytesIO()
        figure.savefig(image, format="png")
        write_atomically(path, image.getvalue())
        return True


def _complete_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a run that was cut off
            break
    return rows
