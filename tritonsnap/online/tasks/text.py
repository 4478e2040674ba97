"""Character-level language modelling: predict the next character of a text."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_instance, check_integer
from tritonsnap.online.tasks.stream import Batch, StreamState, one_hot


def reference_text() -> str:
    """The Python language reference that comes with CPython: every topic, in sorted order."""
    from pydoc_data.topics import topics

    return "".join(topics[name] for name in sorted(topics))


class TextTask:
    """A text read by `rows` readers at once, each on its own contiguous stretch.

    The last tenth is held out. The alphabet is that of the whole text. Readers that reach the end
    of their stretch start again at its beginning, with a reset.

    Parameters
    ----------
    text
        What to learn.
    rows
        Number of readers (the batch).

    Raises
    ------
    ValueError
        If the text is too short: every row needs two characters, the held-out tenth one.
    """

    def __init__(self, text: str, rows: int) -> None:
        check_instance("text", text, str)
        check_integer("rows", rows, 1)
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        alphabet, ids = np.unique(codes, return_inverse=True)
        split = len(ids) - len(ids) // 10
        if len(ids) < 10 or split - 1 < 2 * rows:
            raise ValueError(f"`text` has {len(ids)} characters, too few for {rows} rows")
        self.alphabet = "".join(map(chr, alphabet))
        self.train, self.held_out = np.split(ids.astype(np.int32), [split])
        self.rows = rows
        self._stretch = (split - 1) // rows
        self._starts = np.arange(rows) * self._stretch

    @property
    def inputs(self) -> int:
        """One input per character of the alphabet."""
        return len(self.alphabet)

    @property
    def outputs(self) -> int:
        """One class per character of the alphabet."""
        return len(self.alphabet)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the text and the number of rows."""
        ids = self.train.tobytes() + self.held_out.tobytes()
        return hashlib.sha256(f"{self.rows} {self.alphabet} ".encode() + ids).hexdigest()

    def start(self) -> StreamState:
        """All rows at the beginning of their stretch."""
        return {"position": np.asarray(0)}

    def read(self, state: StreamState, steps: int) -> tuple[Batch, StreamState]:
        """The next `steps` characters of every row, and their successors as targets."""
        position = (int(state["position"]) + np.arange(steps + 1)) % self._stretch
        places = position[:-1, None] + self._starts
        batch = Batch(
            inputs=one_hot(self.train[places], self.inputs),
            targets=self.train[places + 1],
            mask=np.ones(places.shape, np.float32),
            resets=np.repeat(position[:-1, None] == 0, self.rows, axis=1),
        )
        return batch, {"position": np.asarray(position[-1])}

    def observe(self, state: StreamState, bits: float, predictions: int) -> StreamState:
        """Nothing depends on the loss."""
        return state

    def report(self, state: StreamState) -> dict[str, float]:
        """Nothing beside the loss."""
        return {}

    def held_out_windows(self, rows: int, warm_up: int) -> tuple[NDArray[np.int32], ...]:
        """The held-out text cut into windows that can be read side by side.

        Every held-out character is a target exactly once. Each window begins `warm_up` characters
        early, so that the state has seen some context before predictions count; the first window
        takes them from the end of the training text.

        Returns
        -------
        inputs, targets
            Character ids ``[warm_up + n, rows]`` with n = ceil(held-out / rows).
        mask
            The same shape, 1 where the target counts.
        """
        warm_up = min(warm_up, len(self.train) - 1)
        whole = np.concatenate([self.train[-warm_up - 1 :], self.held_out])
        length = -(-len(self.held_out) // rows)
        places = np.arange(rows) * length + np.arange(warm_up + length)[:, None]
        counted = (np.arange(warm_up + length)[:, None] >= warm_up) & (places < len(whole) - 1)
        places = np.minimum(places, len(whole) - 2)
        return whole[places], whole[places + 1], counted.astype(np.int32)

    def decode(self, ids: NDArray[np.integer]) -> str:
        """Characters of some ids."""
        return "".join(self.alphabet[i] for i in ids)

    @cached_property
    def unigram_entropy(self) -> float:
        """Entropy of one character of the whole text, in bits."""
        return _entropy(np.concatenate([self.train, self.held_out]))

    @cached_property
    def bigram_entropy(self) -> float:
        """Entropy of a character given the one before it, in bits, over the whole text."""
        ids = np.concatenate([self.train, self.held_out]).astype(np.int64)
        return _entropy(ids[:-1] * len(self.alphabet) + ids[1:]) - _entropy(ids[:-1])


def _entropy(symbols: NDArray[np.integer]) -> float:
    _, counts = np.unique(symbols, return_counts=True)
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log2(frequencies)).sum())
