"""What strangers pass instead of what is asked for, and how a call must end."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

FAULTS = (ValueError, TypeError)
"""What a wrong argument may raise; the message must name an argument in backticks."""


@dataclass(frozen=True)
class Entry:
    """A public function and arguments that it takes."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return self.name


class Stranger:
    """An object of no use."""


def corrupted(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that are not what was asked for, each with what was done to it."""
    yield from [
        ("None", None),
        ("a string", "seven"),
        ("an object", Stranger()),
        ("a list of strings", ["a", "b"]),
        ("a ragged list", [[1], [1, 2]]),
        ("an empty tuple", ()),
        ("a dict", {"a": 1}),
        ("NaN", float("nan")),
        ("a complex number", 1j),
        ("a negative number", -1),
        ("a fraction", 0.5),
        ("a bool", True),
        ("a huge number", 2**70),
        ("a number beyond floats", 10**400),
        ("an array of objects", np.array([Stranger()], object)),
        ("an array of strings", np.array(["a"])),
        ("an array of dates", np.array(["2000-01-01"], "M8[D]")),
    ]
    if isinstance(value, np.ndarray):
        yield from _corrupted_array(value)
    if isinstance(value, (tuple, list)) and value and not hasattr(value, "_fields"):
        yield "one too few", type(value)(value[:-1])
        yield "one too many", type(value)([*value, value[-1]])
        for what, one in corrupted(value[0]):
            yield f"first {what}", type(value)([one, *value[1:]])
    if isinstance(value, dict):
        for key in value:
            yield f"without {key}", {k: v for k, v in value.items() if k != key}
        yield "with an unknown key", {**value, "unknown": next(iter(value.values()))}
        key = next(iter(value))
        for what, one in corrupted(value[key]):
            yield f"{key} {what}", {**value, key: one}


def _corrupted_array(array: np.ndarray) -> Iterator[tuple[str, Any]]:
    yield "a number in place of an array", array.dtype.type(1)
    yield "one axis more", array[None]
    yield "two axes more", array[None, :, None]
    yield "flattened, one too many", np.append(array.ravel(), array.ravel()[:1])
    yield "one fewer at the end", array[..., :-1]
    yield "one fewer in front", array[:-1]
    yield "none at the end", array[..., :0]
    yield "none in front", array[:0]
    if array.ndim > 1:
        yield "transposed", array.T.copy()
        yield "one axis fewer", array[0]
    if array.dtype.kind != "b":
        yield "of booleans", array.astype(bool)
    if array.dtype.kind == "f":
        yield "of integers", array.astype(np.int32)
        yield "of half precision", array.astype(np.float16)
        yield "of long doubles", array.astype(np.longdouble)
        yield "of complex numbers", array.astype(np.complex128)
    if array.dtype.kind in "iu":
        yield "of floats", array.astype(np.float64)
        yield "negative", array - array.max(initial=0) - 1
        yield "out of range", array + 10**6
        yield "near the end of int64", array.astype(np.int64) + (2**63 - 1 - 10**6)
    yield "of strings", array.astype(str)
    yield "masked", np.ma.masked_array(array, np.ones(array.shape, bool))
    yield "a nested list", array.tolist()


def harmless(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The same values in other memory."""
    frozen = array.copy()
    frozen.flags.writeable = False
    yield "read-only", frozen
    yield "in Fortran order", np.asfortranarray(array)
    spaced = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
    spaced[...] = array
    yield "with gaps", spaced
    yield "backwards", np.flip(np.flip(array).copy())
    yield "byte-swapped", array.astype(array.dtype.newbyteorder())
    unaligned = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype)
    yield "not aligned", unaligned.reshape(array.shape)


def names_an_argument(error: BaseException) -> bool:
    """Whether the message tells the reader which argument to look at."""
    return re.search(r"`\w", str(error)) is not None
