"""What a training run measures: accuracy, speed, staleness, faults."""

from __future__ import annotations

import io
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tritonsnap.files import parse_json, write_atomically

if TYPE_CHECKING:
    from tritonsnap.kan.protocol import Outcome


def pearson(predictions: ArrayLike, targets: ArrayLike) -> NDArray[Any]:
    """Pearson's correlation of predictions and targets [records, targets], for each target.

    Constant predictions or targets have the correlation 0.

    Raises
    ------
    ValueError, TypeError
        If one is no array of numbers, or their shapes differ.
    """
    a, b = _pair(predictions, targets)
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    norms = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    products: NDArray[Any] = (a * b).sum(axis=0)
    correlation: NDArray[Any] = np.divide(
        products, norms, out=np.zeros_like(products), where=norms > 0
    )
    return correlation


def root_mean_square_error(predictions: ArrayLike, targets: ArrayLike) -> NDArray[Any]:
    """Root of the mean squared error [records, targets], for each target, in target units.

    Raises
    ------
    ValueError, TypeError
        If one is no array of numbers, or their shapes differ.
    """
    found, expected = _pair(predictions, targets)
    difference = found - expected
    root: NDArray[Any] = np.sqrt((difference * difference).mean(axis=0))
    return root


def _pair(predictions: ArrayLike, targets: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    found = []
    for name, values in (("predictions", predictions), ("targets", targets)):
        try:
            array = np.asarray(values, float)
        except (ValueError, TypeError, OverflowError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"`{name}` must be an array of numbers: {error}") from error
        if not array.ndim:
            raise ValueError(f"`{name}` must be an array, got {values!r}")
        found.append(array)
    if found[0].shape != found[1].shape:
        raise ValueError(
            f"`predictions` must have the shape {list(found[1].shape)} of `targets`, "
            f"got {list(found[0].shape)}"
        )
    return found[0], found[1]


@dataclass
class Report:
    """What one round of training measured.

    Parameters
    ----------
    epoch, records, updates : int
        Of the model after the round, all its training counted: rounds, records drawn, records
        selected and applied.
    seconds : float
        Training time so far of this trainer, without validation.
    train_error : float
        Root of the mean over this round's records of the squared error before each step, in
        standard deviations of the targets.
    pearson, rmse : float or None
        On the validation data, means over the targets; rmse in target units.
    records_per_second, updates_per_second, messages_per_second : float
        In this round.
    share_selected : float
        Records selected, of those drawn.
    staleness : dict of int to int
        How many messages were applied that were so many versions old.
    rejected : int
        Records left out for a NaN or an infinity.
    dropped : int
        Messages that were too stale.
    dead_clients, restarts, full_queues : int
        Clients that died, servers restarted from their last snapshot, and messages that had to
        wait for room in a queue.
    """

    epoch: int
    records: int
    updates: int
    seconds: float
    train_error: float
    pearson: float | None
    rmse: float | None
    records_per_second: float
    updates_per_second: float
    messages_per_second: float
    share_selected: float
    staleness: dict[int, int]
    rejected: int
    dropped: int
    dead_clients: int
    restarts: int
    full_queues: int


class History(Sequence[Report]):
    """The reports of a trainer, one a round."""

    def __init__(self, reports: Sequence[Report] = ()) -> None:
        self._reports = list(reports)

    def __len__(self) -> int:
        return len(self._reports)

    def __getitem__(self, index: Any) -> Any:
        found = self._reports[index]
        return History(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Report]:
        return iter(self._reports)

    def append(self, report: Report) -> None:
        """Add the report of a round."""
        self._reports.append(report)

    def to_json(self) -> str:
        """All reports as JSON text."""
        return json.dumps([asdict(report) for report in self._reports])

    @classmethod
    def from_json(cls, text: str) -> History:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is no JSON or holds something else.
        """
        try:
            reports = [Report(**values) for values in parse_json(text)]
            for report in reports:
                report.staleness = {int(age): count for age, count in report.staleness.items()}
        except (AttributeError, TypeError) as error:
            raise ValueError(f"`text` holds no reports: {error}") from error
        return cls(reports)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot validation accuracy against records, updates and seconds to a PNG file.

        Raises
        ------
        ValueError
            If no round was validated.
        ImportError
            If matplotlib is not installed.
        """
        reports = [report for report in self._reports if report.pearson is not None]
        if not reports:
            raise ValueError("no round of this history was validated")
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ImportError(
                "matplotlib is not installed; run: pip install 'tritonsnap[plots]'"
            ) from error
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        accuracy = np.array([report.pearson for report in reports], float)
        for place, (name, unit) in enumerate(
            (("records", "drawn"), ("updates", "applied"), ("seconds", "of training")), start=1
        ):
            axes = figure.add_subplot(1, 3, place)
            axes.plot([getattr(report, name) for report in reports], accuracy, marker=".")
            axes.set_xlabel(f"{name} {unit}")
            axes.set_ylabel("validation Pearson correlation")
            axes.grid(True, alpha=0.3)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        write_atomically(path, picture.getvalue())


@dataclass
class Meter:
    """Counts what the workers of a round do; safe to use from many threads."""

    records: int = 0
    updates: int = 0
    messages: int = 0
    squared_error: float = 0.0
    dropped: int = 0
    dead_clients: int = 0
    restarts: int = 0
    full_queues: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_block(self, outcome: Outcome) -> None:
        """Count a block whose messages have been dealt with."""
        with self._lock:
            self.records += outcome.records
            self.updates += outcome.kept
            self.squared_error += outcome.squared_error

    def count_message(self, staleness: int | None) -> None:
        """Count a message that a server applied, or dropped (None)."""
        with self._lock:
            if staleness is None:
                self.dropped += 1
            else:
                self.messages += 1
                self.staleness[staleness] += 1

    def count_dead_client(self) -> None:
        """Count a client that died."""
        with self._lock:
            self.dead_clients += 1

    def count_restart(self) -> None:
        """Count a server that died and went on from its last snapshot."""
        with self._lock:
            self.restarts += 1

    def count_full_queue(self) -> None:
        """Count a message that had to wait for room in a queue."""
        with self._lock:
            self.full_queues += 1
