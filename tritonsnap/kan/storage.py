"""Models as files: one `.npz` without pickle, or JSON text with the same names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.files import parse_json, read_arrays, write_arrays
from tritonsnap.kan.functions import Functions

FORMAT = "tritonsnap.KAN/1"

SETTINGS = (
    "inputs",
    "addends",
    "inner_points",
    "outer_points",
    "targets",
    "convention",
    "inner_step",
    "outer_step",
    "dtype",
    "seed",
    "frozen",
    "epochs",
    "records",
    "updates",
)
"""What a file holds beside the functions: the arguments of `KAN` and its attributes."""


Settings = dict[str, Any]


def write_model(
    path: str | os.PathLike[str], settings: Mapping[str, Any], functions: Functions | None
) -> None:
    """Write a model; see `KAN.save`."""
    write_arrays(path, FORMAT, to_arrays(settings, functions))


def read_model(path: str | os.PathLike[str]) -> tuple[Settings, Functions | None]:
    """Read a model; see `KAN.load`."""
    arrays = read_arrays(path, FORMAT)
    try:
        return from_arrays(arrays)
    except ValueError as error:
        raise ValueError(f"{path} holds no valid model: {error}") from error


def to_arrays(settings: Mapping[str, Any], functions: Functions | None) -> dict[str, NDArray[Any]]:
    """All of a model as named arrays; settings are scalars."""
    arrays = {name: np.asarray(settings[name]) for name in SETTINGS}
    return arrays if functions is None else arrays | functions._asdict()


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> tuple[Settings, Functions | None]:
    """Take the parts of a model from the arrays of `to_arrays`.

    Raises
    ------
    ValueError
        If something is missing or does not fit.
    """
    try:
        settings = {name: arrays[name].item() for name in SETTINGS}
        if "inner" not in arrays:
            return settings, None
        functions = Functions(*(arrays[name] for name in Functions._fields))
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    if any(array.dtype.kind not in "iuf" for array in functions):
        raise ValueError("the functions must be real numbers")
    _check_shapes(functions, settings)
    return settings, functions


def to_json(settings: Mapping[str, Any], functions: Functions | None) -> str:
    """Write a model as JSON text; see `KAN.to_json`."""
    values = {name: array.tolist() for name, array in to_arrays(settings, functions).items()}
    return json.dumps({"format": FORMAT, **values})


def from_json(text: str) -> tuple[Settings, Functions | None]:
    """Read a model from JSON text; see `KAN.from_json`."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ValueError(f"`text` is not JSON: {error}") from error
    found = values.pop("format", None) if isinstance(values, dict) else None
    if not isinstance(found, str) or found != FORMAT:
        raise ValueError(f"`text` holds {found!r}, expected {FORMAT!r}")
    try:
        return from_arrays({name: np.asarray(value) for name, value in values.items()})
    except ValueError as error:
        raise ValueError(f"`text` holds no valid model: {error}") from error


def _check_shapes(functions: Functions, settings: Mapping[str, Any]) -> None:
    inputs, addends, targets = settings["inputs"], settings["addends"], settings["targets"]
    expected = Functions(
        inner=(inputs, settings["inner_points"], addends),
        outer=(targets, settings["outer_points"], addends),
        input_low=(inputs,),
        input_high=(inputs,),
        sum_low=(addends,),
        sum_high=(addends,),
        shift=(targets,),
        scale=(targets,),
    )
    for name, shape in expected._asdict().items():
        found = getattr(functions, name)
        if found.shape != shape:
            raise ValueError(f"`{name}` must have the shape {list(shape)}, got {list(found.shape)}")
        if not np.isfinite(found).all():
            raise ValueError(f"`{name}` holds NaN or infinite values")
