"""`explain`: what each rule would cost for a cell, before anything large is allocated."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import LIBRARIES, Library, fastest_library
from tritonsnap.checks import check_choice, check_instance, check_integer
from tritonsnap.files import write_atomically
from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_choice import predicted_seconds
from tritonsnap.online.dynamics import dynamics_pattern, preactivation_pattern
from tritonsnap.online.snap import SnAp
from tritonsnap.plan.assignment import choose, count_flops
from tritonsnap.plan.cost import TARGETS, Target, group_costs
from tritonsnap.plan.dsmm_plan import default_target
from tritonsnap.sparsity.coloring import color_rows
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import check_order, snap_pattern

_FLOAT = 4  # bytes of a float32
_MOST_PIXELS = 512
_MOST_PARAMETERS = 1 << 18


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
    colors
        Derivative passes that would give the immediate Jacobian: row colors of its pattern. The
        cells of this library need none, they know its factors.
    rows
        The rules, one `Method` each.
    masks
        By name the pattern [rows, targets * units] of the influence, one column for all parameters
        of a unit that act through the same preactivation.
    """

    cell: Cell
    batch: int
    steps: int
    library: Library
    target: str
    colors: int
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
        cell = self.cell
        title = (
            f"{type(cell).__name__} of {cell.hidden} units and {cell.inputs} inputs, "
            f"density {cell.density:g}: {cell.num_parameters:,} parameters, batch {self.batch}; "
            f"the immediate Jacobian has {self.colors} color{'s' * (self.colors != 1)}; "
            f"predicted for {self.library} ({self.target}), float32"
        )
        return "\n".join([title, *text])

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the masks, one panel for each rule, and write them as PNG.

        A panel has a row for each row of the state and a column for each unit and preactivation;
        masks of more than 512 rows or columns are shown by shares.

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


def explain(
    cell: Cell,
    orders: Sequence[int | None] = (1, 2, 3, None),
    *,
    batch: int = 1,
    steps: int = 48,
    library: Library | None = None,
) -> Explanation:
    """Say what SnAp-n, exact RTRL and BPTT would cost for a cell, without running them.

    Works on groups of columns: nothing of the size of the influence is allocated, so a case far
    too large to run is explained as well. Up to 2^18 parameters it also says in which chunks
    `sequence` would go through time, and counts the sequence so.

    Parameters
    ----------
    cell
        The network.
    orders
        The n of SnAp-n to compare; None is exact RTRL. BPTT is always there.
    batch, steps
        Rows side by side, and the length T of the sequence.
    library
        Whose cost model to use: "numpy", "torch" or "jax", on the CPU; by default the fastest one
        that is installed.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError, TypeError
        If an argument is not allowed; the message names it.

    Examples
    --------
    >>> import tritonsnap as ts
    >>> found = ts.explain(ts.RNN(inputs=2, hidden=64, density=0.1), batch=8, library="numpy")
    >>> [(row.name, row.nonzeros) for row in found.rows[:2]]
    [('SnAp-1', 602), ('SnAp-2', 4344)]
    """
    check_instance("cell", cell, Cell)
    check_instance("orders", orders, Sequence)
    for order in orders:
        check_order(order)
    check_integer("batch", batch, 1)
    check_integer("steps", steps, 1)
    library = fastest_library() if library is None else library
    check_choice("library", library, LIBRARIES)
    target = TARGETS["xla" if library == "jax" else default_target()]
    immediate, dynamics = preactivation_pattern(cell), dynamics_pattern(cell)
    masks = {
        "RTRL" if order is None else f"SnAp-{order}": snap_pattern(dynamics, immediate, order)
        for order in dict.fromkeys(orders)
    }
    rows = [
        _method(name, order, cell, masks[name], dynamics, target, batch, steps)
        for name, order in zip(masks, dict.fromkeys(orders), strict=True)
    ]
    rows.append(_bptt(cell, target, batch, steps))
    colors = color_rows(immediate).num_colors
    return Explanation(cell, batch, steps, library, target.name, colors, tuple(rows), masks)


def _method(
    name: str,
    order: int | None,
    cell: Cell,
    mask: SparsityPattern,
    dynamics: SparsityPattern,
    target: Target,
    batch: int,
    steps: int,
) -> Method:
    counts = _parameters_per_column(cell)
    nonzeros = int((np.diff(mask.support_indptr)[mask.column_kind] * counts).sum())
    groups = _weighted(ColumnGroups.build(mask, mask, _segments(cell)), counts)
    costs = group_costs(groups, dynamics, target)
    restricted = dynamics.nnz < dynamics.shape[0] * dynamics.shape[1]
    nanoseconds, assignment = choose(groups, dynamics.shape, costs, target, restricted)
    forward = _weights(cell)
    product = count_flops(groups, costs, assignment)
    # a value of the influence is read once more for the gradient, delta^T J
    each = nanoseconds + target.element * nonzeros + target.multiply_add * forward
    calls = target.block * len(assignment)  # the only part that a batch does not multiply
    seconds = (batch * (each - calls) + calls) * 1e-9
    chunk, total = None, steps * seconds
    if cell.num_parameters <= _MOST_PARAMETERS:
        learner = SnAp(cell, order)
        chunking = learner.chunkings.find("auto", target.name, steps, batch)
        chunk = 1 if chunking is None else chunking.steps
        if chunking is not None:
            influence = predicted_seconds(learner, "auto", target.name, steps, batch)
            total = steps * batch * target.multiply_add * forward * 1e-9 + influence
    regimes: Counter[str] = Counter()
    for regime, members in assignment:
        regimes[str(regime)] += len(members)
    return Method(
        name=name,
        order=order,
        nonzeros=nonzeros,
        density=nonzeros / (cell.rows * cell.num_parameters),
        groups=len(groups),
        largest_support=int(groups.mask_sizes.max(initial=0)),
        regimes=dict(regimes),
        bytes=_FLOAT * batch * nonzeros,
        flops=batch * (product + 2 * nonzeros + 2 * cell.num_parameters + 2 * forward),
        seconds=seconds,
        chunk=chunk,
        total_seconds=total,
    )


def _bptt(cell: Cell, target: Target, batch: int, steps: int) -> Method:
    weights = _weights(cell)
    remembered = cell.rows * (1 + len(cell.targets)) + cell.num_sources
    if cell.own_parts:
        remembered += cell.hidden * len(cell.parts) ** 2
    # forward, back to the old state, and the gradient of the weights
    products = 3 * weights
    each = target.multiply_add * products + target.element * remembered
    seconds = batch * each * 1e-9 + 3 * target.product * 1e-9
    return Method(
        name=f"BPTT({steps})",
        order=None,
        nonzeros=0,
        density=0.0,
        groups=0,
        largest_support=0,
        regimes={},
        bytes=_FLOAT * batch * steps * remembered,
        flops=batch * 2 * products,
        seconds=seconds,
        chunk=None,
        total_seconds=steps * seconds,
    )


def _weights(cell: Cell) -> int:
    """Entries of all kernels: sparse ones are dense in the forward pass."""
    return sum(linear.shape[0] * linear.shape[1] for linear in cell.maps)


def _parameters_per_column(cell: Cell) -> NDArray[np.int64]:
    """int64 [targets * units]: parameters that feed each unit through each preactivation."""
    counts = np.zeros((len(cell.targets), cell.hidden), np.int64)
    for linear in cell.maps:
        number = cell.targets.index(linear.target)
        if linear.pattern is None:
            counts[number] += linear.shape[0]
        else:
            counts[number] += np.bincount(linear.pattern.cols, minlength=cell.hidden)
    return counts.ravel()


def _segments(cell: Cell) -> list[int]:
    """Where the columns of the next preactivation begin."""
    return [number * cell.hidden for number in range(1, len(cell.targets))]


def _weighted(groups: ColumnGroups, counts: NDArray[np.int64]) -> ColumnGroups:
    """The same groups, each of whose columns stands for `counts` parameters."""
    total = np.concatenate([[0], np.cumsum(counts)])
    begin = groups.run_start
    return replace(
        groups, run_start=total[begin], run_length=total[begin + groups.run_length] - total[begin]
    )


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
