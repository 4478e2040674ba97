"""The faces for torch and JAX with corrupted arguments, and ops with other libraries mixed in."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from corruptions import Entry, corrupted
from entry_points import op_entries
from library_entry_points import jax_entries, torch_entries
from test_entry_points import check

import tritonsnap as ts


def moved(value: Any, library: str) -> Any:
    """The same argument with its arrays in another library; what has no such dtype stays."""
    if isinstance(value, ts.Factors):
        return ts.Factors(*(moved(one, library) for one in value[:2]), value.structure)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return value
    if library == "torch":
        torch = pytest.importorskip("torch")
        try:
            return torch.from_numpy(value.copy())
        except TypeError:
            return value
    if value.dtype.kind not in "biufc" or value.dtype == np.longdouble:
        return value
    return pytest.importorskip("jax.numpy").asarray(value)


def in_library(entry: Entry, library: str) -> Entry:
    arguments = {name: moved(value, library) for name, value in entry.arguments.items()}
    return dataclasses.replace(entry, arguments=arguments)


CASES = [pytest.param(e, n, id=f"{e}-{n}") for e in op_entries() for n in e.arguments]


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_torch(entry: Entry, name: str) -> None:
    values = list(corrupted(entry.arguments[name]))
    trials = [(what, {name: moved(value, "torch")}) for what, value in values]
    trials += [(f"{what}, in NumPy", {name: v}) for what, v in values if isinstance(v, np.ndarray)]
    check(in_library(entry, "torch"), trials)


@pytest.mark.parametrize("entry", op_entries(), ids=str)
def test_tensors_on_two_devices(entry: Entry) -> None:
    torch = pytest.importorskip("torch")
    valid = in_library(entry, "torch")
    tensors = {n: v for n, v in valid.arguments.items() if isinstance(v, torch.Tensor)}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if len(tensors) > 1:
        check(valid, [(name, {name: tensor.to("meta")}) for name, tensor in tensors.items()])


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_jax(entry: Entry, name: str) -> None:
    values = list(corrupted(entry.arguments[name]))
    trials = [(what, {name: moved(value, "jax")}) for what, value in values]
    check(in_library(entry, "jax"), trials)


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_only_one_library_has(library: str) -> None:
    pytest.importorskip(library)
    for entry in {"torch": torch_entries, "jax": jax_entries}[library]():
        entry.function(**entry.arguments)
        trials = [
            (f"{entry}, {name} {what}", {name: value})
            for name, valid in entry.arguments.items()
            for what, value in corrupted(valid)
        ]
        check(entry, trials)
