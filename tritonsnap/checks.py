"""Checks of arguments: errors that name the argument, what was given and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import numpy as np

MOST = 2**62
"""No size and no count is larger, so that sums of sizes stay within int64."""


def check_integer(
    name: str, value: Any, least: int = 0, most: int = MOST, *, allowed: str = "an integer"
) -> int:
    """An argument that must be an integer from `least` to `most`.

    Parameters
    ----------
    name, value
        The argument.
    least, most
        The smallest and the largest value.
    allowed
        What the message says that it must be.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{name}` must be {allowed}, got {_shown(value)}")
    if not least <= value <= most:
        upper = "" if most == MOST else f" and at most {most}"
        raise ValueError(f"`{name}` must be at least {least}{upper}, got {value}")
    return operator.index(value)


def check_number(name: str, value: Any, allowed: str, low: float, high: float) -> float:
    """An argument that must be a real number in `allowed`, such as ``"(0, 1]"``.

    Parameters
    ----------
    allowed
        The interval as the message shows it; a bracket includes its end, a parenthesis does not.
    low, high
        Its ends.

    Raises
    ------
    TypeError
        If it is no real number.
    ValueError
        If it lies outside.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not is_number:
        raise TypeError(f"`{name}` must be a number in {allowed}, got {_shown(value)}")
    above = low <= value if allowed[0] == "[" else low < value
    below = value <= high if allowed[-1] == "]" else value < high
    if not (above and below):
        raise ValueError(f"`{name}` must lie in {allowed}, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"`{name}` is too large for a float") from error


def check_share(name: str, value: Any) -> float:
    """An argument that must be a number in (0, 1]; see `check_number`."""
    return check_number(name, value, "(0, 1]", 0, 1)


def check_choice(name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise a `ValueError` unless `value` is one of the strings `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"`{name}` must be one of {tuple(allowed)}, got {_shown(value)}")


def check_flag(name: str, value: Any) -> None:
    """Raise a `TypeError` unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {_shown(value)}")


def check_instance(name: str, value: Any, kind: type) -> None:
    """Raise a `TypeError` unless `value` is of the class `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}, got {_shown(value)}")


def generator_of(name: str, seed: Any) -> np.random.Generator:
    """A NumPy generator from a seed, or the generator itself.

    Raises
    ------
    TypeError
        If `seed` is neither.
    ValueError
        If it is negative.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(check_integer(name, seed, 0, 2**128))


def _shown(value: Any) -> str:
    """A value in a message: itself if it is short, its type otherwise."""
    if isinstance(value, (str, int, float, complex, bool, type(None))) and len(repr(value)) <= 60:
        return repr(value)
    return type(value).__name__
