"""Every argument of every public function, corrupted one at a time and two at a time.

A call with a wrong argument either raises a `ValueError` or a `TypeError` that names an argument,
or it is a call that the docstring allows. What lies differently in memory gives the same numbers.
"""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from corruptions import FAULTS, Entry, corrupted, harmless, names_an_argument
from entry_points import kan_entries, online_entries, op_entries, structure_entries
from rule_entry_points import rule_entries, tool_entries

OPS = op_entries()
ENTRIES = [
    *OPS,
    *structure_entries(),
    *online_entries(),
    *rule_entries(),
    *tool_entries(),
    *kan_entries(),
]


def call_with(entry: Entry, changes: dict[str, Any]) -> tuple[str, BaseException] | None:
    """What is wrong with how the call ends; None if nothing is."""
    arguments = {**entry.arguments, **changes}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            positional = [arguments.pop("other")] if "other" in arguments else []
            entry.function(*positional, **arguments)
    except FAULTS as error:
        if not names_an_argument(error):
            return "names no argument", error
    except Exception as error:
        return "is no documented error", error
    return None


def check(entry: Entry, trials: list[tuple[str, dict[str, Any]]]) -> None:
    """Fail with the list of all calls that end badly."""
    faults = []
    for what, changes in trials:
        fault = call_with(entry, changes)
        if fault is not None:
            faults.append(f"{what}: {type(fault[1]).__name__} {fault[1]} - {fault[0]}")
    assert not faults, f"{len(faults)} of {len(trials)}\n" + "\n".join(faults)


CASES = [pytest.param(e, n, id=f"{e}-{n}") for e in ENTRIES for n in e.arguments]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_right_arguments(entry: Entry) -> None:
    arguments = dict(entry.arguments)
    entry.function(*[arguments.pop("other")] if "other" in arguments else [], **arguments)


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_one_wrong_argument(entry: Entry, name: str) -> None:
    check(entry, [(what, {name: value}) for what, value in corrupted(entry.arguments[name])])


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_two_wrong_arguments(entry: Entry) -> None:
    draw = random.Random(0)
    pool = [
        (name, what, value)
        for name, valid in entry.arguments.items()
        for what, value in corrupted(valid)
    ]
    trials = []
    for _ in range(100):
        (one, first, value), (other, second, its) = draw.sample(pool, 2)
        trials.append((f"{one} {first}, {other} {second}", {one: value, other: its}))
    check(entry, trials)


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_other_memory_gives_the_same_numbers(entry: Entry, name: str) -> None:
    valid = entry.arguments[name]
    if not isinstance(valid, np.ndarray) or valid.ndim == 0:
        return
    expected = numbers_of(entry.function, entry.arguments)
    refused = []
    for what, value in harmless(valid):
        changed = {**entry.arguments, name: value}
        try:
            found = numbers_of(entry.function, changed)
        except TypeError as error:
            refused.append((what, names_an_argument(error)))
            continue
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=what)
    assert set(refused) <= {("byte-swapped", True)}  # or else it would be copied in silence


def numbers_of(function: Callable[..., Any], arguments: dict[str, Any]) -> list[np.ndarray]:
    """All arrays in what a call returns."""
    found: list[np.ndarray] = []

    def gather(value: Any) -> None:
        if isinstance(value, (np.ndarray, np.generic, float)):
            found.append(np.asarray(value))
        elif isinstance(value, dict):
            for one in value.values():
                gather(one)
        elif isinstance(value, (tuple, list)):
            for one in value:
                gather(one)
        elif hasattr(value, "rows") and hasattr(value, "cols"):
            gather((value.rows, value.cols))

    gather(function(**arguments))
    return found
