"""What every task offers to the training loop."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

StreamState = dict[str, NDArray[Any]]
"""Where a stream stands: named arrays of fixed shapes, saved in the checkpoint."""


class Batch(NamedTuple):
    """Some consecutive time steps of every row; NumPy arrays, as a task reads them.

    Attributes
    ----------
    inputs
        ``[steps, rows, inputs]`` float32.
    targets
        ``[steps, rows]`` class ids.
    mask
        ``[steps, rows]`` float32, 1 where the prediction counts.
    resets
        ``[steps, rows]`` bool, true where a row starts anew before this input.
    """

    inputs: Any
    targets: Any
    mask: Any
    resets: Any


class Task(Protocol):
    """A stream of rows and what to report of it."""

    @property
    def inputs(self) -> int:
        """Width of the inputs."""

    @property
    def outputs(self) -> int:
        """Number of classes to predict."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the stream would: a checkpoint goes on only with the same."""

    def start(self) -> StreamState:
        """State at the beginning of the stream."""

    def read(self, state: StreamState, steps: int) -> tuple[Batch, StreamState]:
        """The next time steps, and the state after them; `state` is left as it is."""

    def observe(self, state: StreamState, bits: float, predictions: int) -> StreamState:
        """State after the learner's total loss (in bits) on the last batch is known."""

    def report(self, state: StreamState) -> dict[str, float]:
        """Named figures that go beside the loss."""


def one_hot(ids: NDArray[Any], classes: int) -> NDArray[np.float32]:
    """``[..., classes]`` with a one at each id."""
    return np.asarray(ids[..., None] == np.arange(classes), dtype=np.float32)
