"""`Explanation`: a table of what rules would cost, and a picture of what they keep."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import Library
from tritonsnap.files import write_atomically
from tritonsnap.sparsity.pattern import SparsityPattern

_MOST_PIXELS = 512


@dataclass(frozen=True)
class Method:
    """One rule: a row of the table. Times and FLOPs are of one step of the whole batch.

    Attributes
    ----------
    name
        "SnAp-n", "RTRL" or "BPTT(T)".
    order
        n of SnAp-n; None for the others.
    nonzeros, density
        Entries of the influence that are kept for a row of the batch, and their share of all.
    groups
        Groups of columns with equal supports.
    largest_support
        Rows of the largest group: how far influence spreads.
    regimes
        How many groups are computed in which way.
    bytes
        Of the influence in float32, or of BPTT's history, for the whole batch.
    flops
        Floating-point operations: forward pass, update and gradient.
    seconds
        Predicted for one step: forward pass, update of the influence and gradient, step by step.
    chunk
        Steps that `sequence` with ``chunk="auto"`` goes through at once, as the cost model finds it
        cheapest; 1 if it goes step by step, None if the network is too large to find that out here.
    total_seconds
        Predicted for the sequence, gone through in this way.
    """

    name: str
    order: int | None
    nonzeros: int
    density: float
    groups: int
    largest_support: int
    regimes: dict[str, int]
    bytes: int
    flops: int
    seconds: float
    chunk: int | None
    total_seconds: float


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; ``print`` shows it as a table.

    Attributes
    ----------
    cell, batch, steps, library
        What was asked for.
    target
        The cost model's name of what runs it; see `tritonsnap.plan.cost.TARGETS`.
    title, num_parameters
        The network in words, and its parameters.
    colors
        Derivative passes that would give the immediate Jacobian: row colors of its pattern. The
        cells of this library need none, they know it in closed form.
    passes
        Derivative passes that a step takes, for both Jacobians of a `FunctionCell`; else 0.
    rows
        The rules, one `Method` each.
    masks
        By name the pattern [rows, columns] of the influence. A column stands for all parameters of
        a unit that act through the same preactivation; of a `FunctionCell` for one parameter.
    """

    cell: Any
    batch: int
    steps: int
    library: Library
    target: str
    title: str
    num_parameters: int
    colors: int
    passes: int
    rows: tuple[Method, ...]
    masks: dict[str, SparsityPattern] = field(repr=False)

    def __str__(self) -> str:
        total = f"time, T={self.steps}"
        header = ("", "nonzeros", "density", "groups", "rows", "regimes", "memory")
        table = [
            (*header, "FLOP/step", "time/step", "chunk", total),
            *(_line(row) for row in self.rows),
        ]
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        text = [
            "  ".join(
                cell.ljust(width) if column in (0, 5) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        ]
        passes = f", a step takes {self.passes} derivative passes" if self.passes else ""
        title = (
            f"{self.title}: {self.num_parameters:,} parameters, batch {self.batch}; "
            f"the immediate Jacobian has {self.colors} color{'s' * (self.colors != 1)}{passes}; "
            f"predicted for {self.library} ({self.target}), float32"
        )
        return "\n".join([title, *text])

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the masks, one panel for each rule, and write them as PNG.

        A panel has a row for each row of the state and the columns of `masks`; those
         of more than 512 rows or columns are shown by shares.

        Raises
        ------
        ImportError
            If matplotlib is missing; the message names the pip command.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ImportError(
                "matplotlib is not installed; run: pip install 'tritonsnap[plots]'"
            ) from error
        figure = Figure(figsize=(3.2 * len(self.masks), 3.4), layout="constrained")
        shares = {row.name: row.density for row in self.rows}
        panels = figure.subplots(1, len(self.masks), squeeze=False)[0]
        for axes, (name, mask) in zip(panels, self.masks.items(), strict=True):
            extent = (0, mask.shape[1], mask.shape[0], 0)
            image = _shares(mask)
            axes.imshow(image, cmap="Greys", vmin=0, vmax=1, extent=extent, aspect="auto")
            axes.set_title(f"{name}: {shares[name]:.2%} kept", fontsize=10)
            axes.set_xlabel("parameters, by unit")
        panels[0].set_ylabel("state")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        write_atomically(path, buffer.getvalue())
        return Path(path)


def _shares(mask: SparsityPattern) -> NDArray[np.float64]:
    """The share of entries that are kept, in at most 512 x 512 fields of nearly equal size."""
    rows, cols = (min(size, _MOST_PIXELS) for size in mask.shape)
    row = np.arange(mask.shape[0]) * rows // max(mask.shape[0], 1)
    col = np.arange(mask.shape[1]) * cols // max(mask.shape[1], 1)
    sizes = np.diff(mask.support_indptr)
    of_kind = np.zeros((mask.num_kinds, rows))
    kind = np.repeat(np.arange(mask.num_kinds), sizes)
    np.add.at(of_kind, (kind, row[mask.support_rows]), 1)
    image = np.zeros((cols, rows))
    np.add.at(image, col, of_kind[mask.column_kind])
    entries = np.bincount(row, minlength=rows)[:, None] * np.bincount(col, minlength=cols)
    return image.T / entries


def _line(row: Method) -> tuple[str, ...]:
    structure = ("-",) * 5
    if row.groups:
        regimes = ", ".join(f"{count:,} {name}" for name, count in row.regimes.items())
        support = f"{row.largest_support:,}"
        structure = (f"{row.nonzeros:,}", f"{row.density:.2%}", f"{row.groups:,}", support, regimes)
    return (
        row.name,
        *structure,
        _scaled(row.bytes, _BYTES),
        _scaled(row.flops, _COUNTS),
        _scaled(row.seconds, _TIMES),
        "-" if row.chunk is None else str(row.chunk),
        _scaled(row.total_seconds, _TIMES),
    )


_BYTES = {unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_COUNTS = {unit: 1000.0**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _scaled(value: float, units: dict[str, float]) -> str:
    """A number with three digits in the largest unit of which it is at least one."""
    fitting = [unit for unit, size in units.items() if value >= size]
    unit = fitting[-1] if fitting else next(iter(units))
    number = value / units[unit]
    digits = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"{digits} {unit}".rstrip()
