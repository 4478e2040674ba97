"""Random signs from a key and a counter: the same bits in NumPy, torch and JAX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import Library, device_of, namespace, namespace_of

_LAST = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def draw_words(generator: np.random.Generator) -> NDArray[np.uint32]:
    """The two words of a key."""
    return generator.integers(0, _LAST, 2, np.uint32, endpoint=True)


def make_key(words: NDArray[np.uint32], like: Library) -> Any:
    """A key [2] of a library: uint32, in torch (which lacks its arithmetic) int64."""
    return namespace(like).asarray(words.astype(np.int64) if like == "torch" else words)


def threefry(key: Any, counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Two random words for each pair of counters, by Threefry-2x32 with 20 rounds.

    Parameters
    ----------
    key : [2]
        The key, from `make_key`.
    counter : pair of arrays
        Words of the key's dtype.

    References
    ----------
    Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    xp = namespace_of(key)
    word = xp.asarray(_LAST, dtype=key.dtype, device=device_of(key))  # wraps torch's int64
    schedule = (key[:1], key[1:], key[:1] ^ key[1:] ^ _PARITY)
    one, two = ((number + own) & word for number, own in zip(counter, schedule, strict=False))
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            one = (one + two) & word
            two = one ^ (((two << rotation) & word) | (two >> (32 - rotation)))
        one = (one + schedule[(group + 1) % 3]) & word
        two = (two + schedule[(group + 2) % 3] + (group + 1)) & word
    return one, two


def random_signs(key: Any, step: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of -1 and 1, each with probability 1/2, that depends on `key` and `step` alone."""
    xp = namespace_of(key, step)
    size = math.prod(shape)
    place = {"dtype": key.dtype, "device": device_of(key)}
    index = xp.arange(-(-size // 64), **place)
    words = xp.stack(threefry(key, (index, xp.astype(step, key.dtype))), axis=-1)
    bits = (words[..., None] >> xp.arange(32, **place)) & 1
    return 2 * xp.astype(bits.reshape(-1)[:size].reshape(shape), dtype) - 1
