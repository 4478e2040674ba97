"""Costs measured on this machine by `tritonsnap calibrate`, in place of the shipped ones."""

from __future__ import annotations

import functools
import json
import math
import platform
import re
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tritonsnap.files import locked, write_atomically
from tritonsnap.plan.cost import TARGETS, Target
from tritonsnap.tuning.lookup import user_directory

SCHEMA = "tritonsnap.costs/1"
CONSTANTS = tuple(f.name for f in fields(Target) if f.name not in ("name", "most_blocks"))
"""The nanoseconds that a calibration measures."""


def cpu_name() -> str:
    """The model of this machine's CPU."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def costs_path() -> Path:
    """Where the costs of this machine are kept, beside the user's tuned configs."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    return user_directory() / slug / "costs.json"


def write_costs(costs: Mapping[str, Mapping[str, float]]) -> Path:
    """Write nanoseconds by target and constant; others that the file has are kept.

    Processes that do so at once wait for each other, so no target is lost.

    Returns
    -------
    Path
        The file.
    """
    path = costs_path()
    with locked(path.parent):
        try:
            known = _read(path)
        except (FileNotFoundError, ValueError):
            known = {}
        data = {"schema": SCHEMA, "device": cpu_name(), "targets": {**known, **costs}}
        write_atomically(path, json.dumps(data, indent=2, sort_keys=True) + "\n")
    calibrated_target.cache_clear()
    return path


@functools.cache
def calibrated_target(name: str) -> Target:
    """The target with the costs measured on this machine, or as shipped.

    They decide how a learner goes through time, never how an influence is packed: carries fit on
    every machine. A file that cannot be used is named in a warning and passed over.
    """
    target = TARGETS[name]
    path = costs_path()
    try:
        costs = _read(path)
    except FileNotFoundError:
        return target
    except ValueError as error:
        _warn_once(f"costs passed over: {error}")
        return target
    known: dict[str, Any] = {**costs.get(name, {})}
    return replace(target, **known)


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Nanoseconds by target and constant; a `ValueError` that names the file if it is no good."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"it is not of the schema {SCHEMA!r}")
        if data.get("device") != cpu_name():
            raise ValueError(f"it was measured on {data.get('device')!r}")
        targets: Any = data.get("targets")
        if not isinstance(targets, dict) or not set(targets) <= set(TARGETS):
            raise ValueError(f"`targets` must be an object with names of {sorted(TARGETS)}")
        for name, costs in targets.items():
            if not isinstance(costs, dict) or set(costs) != set(CONSTANTS):
                raise ValueError(f"`targets[{name!r}]` must have {sorted(CONSTANTS)}")
            for constant, value in costs.items():
                number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not (number and math.isfinite(value) and value > 0):
                    raise ValueError(f"`{constant}` must be a positive number, got {value!r}")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    return targets


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
