"""The copy task: repeat a sequence of bits, longer and longer ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_integer
from tritonsnap.online.tasks.stream import Batch, StreamState, one_hot

ZERO, ONE, REQUEST, BLANK = range(4)


class CopyTask:
    """Read bits, then a request, then give the bits back (Menick et al. 2021, section 5.2).

    A sequence of L bits takes 2 L + 1 steps: the bits, the request, and L blank inputs at which the
    bits are the targets; only those count. L is uniform between ``max(1, limit - 5)`` and
    ``limit``. Whenever the mean over the last `WINDOW` predictions is under `SOLVED_BITS`, the
    limit grows by one. Rows are independent: each starts its next sequence, with a reset, as soon
    as it ends one.

    Parameters
    ----------
    rows
        Number of rows (the batch).
    seed
        Which stream.

    Raises
    ------
    ValueError
        If `rows` is not positive.
    """

    inputs = 4
    outputs = 2
    SOLVED_BITS = 0.15
    WINDOW = 500

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rows = check_integer("rows", rows, 1)
        self.seed = check_integer("seed", seed)

    @property
    def fingerprint(self) -> str:
        """Rows and seed."""
        return f"copy of {self.rows} rows, seed {self.seed}"

    def start(self) -> StreamState:
        """The limit is one bit."""
        return {
            "limit": np.asarray(1),
            "sequences": np.asarray(0),
            "sequence": np.zeros(self.rows, np.int64),
            "length": np.zeros(self.rows, np.int64),
            "position": np.zeros(self.rows, np.int64),
            "window_bits": np.asarray(0.0),
            "window_predictions": np.asarray(0),
        }

    def read(self, state: StreamState, steps: int) -> tuple[Batch, StreamState]:
        """The next `steps` symbols of every row."""
        sequence, length, position = (
            state[name].copy() for name in ("sequence", "length", "position")
        )
        started = int(state["sequences"])
        sequences, lengths, positions = (np.empty((steps, self.rows), np.int64) for _ in range(3))
        for step in range(steps):
            new = np.flatnonzero(position == 0)
            sequence[new] = started + np.arange(len(new))
            started += len(new)
            length[new] = self._draw_lengths(sequence[new], int(state["limit"]))
            sequences[step], lengths[step], positions[step] = sequence, length, position
            position = (position + 1) % (2 * length + 1)
        answering = positions > lengths
        # the answer at position L + 1 + k is bit k
        bits = self._random(sequences, np.where(answering, positions - lengths - 1, positions)) % 2
        symbols = np.where(answering, BLANK, np.where(positions < lengths, bits, REQUEST))
        batch = Batch(
            inputs=one_hot(symbols, self.inputs),
            targets=np.where(answering, bits, 0).astype(np.int32),
            mask=answering.astype(np.float32),
            resets=positions == 0,
        )
        return batch, state | {
            "sequences": np.asarray(started),
            "sequence": sequence,
            "length": length,
            "position": position,
        }

    def observe(self, state: StreamState, bits: float, predictions: int) -> StreamState:
        """Count the loss; at the end of a window, raise the limit if it was low."""
        bits = float(state["window_bits"]) + bits
        predictions = int(state["window_predictions"]) + predictions
        limit = int(state["limit"])
        if predictions >= self.WINDOW:
            limit += bits / predictions < self.SOLVED_BITS
            bits, predictions = 0.0, 0
        return state | {
            "limit": np.asarray(limit),
            "window_bits": np.asarray(bits),
            "window_predictions": np.asarray(predictions),
        }

    def report(self, state: StreamState) -> dict[str, float]:
        """The longest sequence asked for."""
        return {"copy_length": int(state["limit"])}

    def _draw_lengths(self, sequence: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        shortest = max(1, limit - 5)
        return shortest + self._random(sequence, np.full_like(sequence, -1)) % (
            limit - shortest + 1
        )

    def _random(self, sequence: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """63 random bits that depend on seed, sequence and index alone (splitmix64, chained)."""
        bits = np.full(sequence.shape, self.seed, np.uint64)
        for part in (sequence, index):
            bits = _mix(bits ^ part.astype(np.uint64))
        return (bits >> np.uint64(1)).astype(np.int64)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
