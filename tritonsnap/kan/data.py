"""Records in blocks: from arrays or from an iterable, shuffled, without NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Block(NamedTuple):
    """Some records.

    Parameters
    ----------
    x : array, shape [records, inputs]
        Inputs.
    y : array, shape [records, targets]
        Targets.
    """

    x: NDArray[Any]
    y: NDArray[Any]


class Source:
    """Blocks of at most `size` finite records, which counts the others.

    Parameters
    ----------
    parts : iterable of Block
        Records in blocks of any sizes. Those of one block are cut up, never joined to the next.
    size : int
        Records of a block that goes out.

    Attributes
    ----------
    rejected : int
        Records left out so far for a NaN or an infinity.
    """

    def __init__(self, parts: Iterable[Block], size: int) -> None:
        self._parts, self._size = parts, size
        self.rejected = 0

    def __iter__(self) -> Iterator[Block]:
        for part in self._parts:
            for first in range(0, len(part.x), self._size):
                block = Block(*(array[first : first + self._size] for array in part))
                if not all(np.isfinite(array).all() for array in block):
                    finite = finite_records(block)
                    self.rejected += len(finite) - int(finite.sum())
                    block = Block(block.x[finite], block.y[finite])
                if len(block.x):
                    yield block


def finite_records(block: Block) -> NDArray[np.bool_]:
    """Which records [records] have neither a NaN nor an infinity."""
    finite: NDArray[np.bool_] = np.isfinite(block.x).all(axis=1) & np.isfinite(block.y).all(axis=1)
    return finite


def shuffled(x: NDArray[Any], y: NDArray[Any], size: int, seed: tuple[int, int]) -> Iterator[Block]:
    """All records of arrays in random order, in blocks of `size`, the last one smaller."""
    order = np.random.default_rng(seed).permutation(len(x))
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        yield Block(x[chosen], y[chosen])


def checked_blocks(
    blocks: Iterable[Any], check: Callable[[Any, Any], tuple[NDArray[Any], NDArray[Any]]]
) -> Iterator[Block]:
    """Bring each of the user's blocks (x, y) to the model's shapes by `check`.

    Raises
    ------
    TypeError
        If an item is no pair.
    """
    for item in blocks:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"`x` without `y` must yield pairs (x, y), got {type(item).__name__}")
        yield Block(*check(*item))
