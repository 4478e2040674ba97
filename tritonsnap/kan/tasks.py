"""Problems to train KANs on, with the sizes of the models that are known to suit them."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_integer
from tritonsnap.kan.step import Solver

Records = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """A problem and the model for it.

    Parameters
    ----------
    generate : callable
        ``generate(records, seed) -> (x, y)``.
    training, held_out : int
        How many records to train and to validate on.
    inputs, addends, inner_points, outer_points : int
        Of the model; see `KAN`.
    epochs : int
        After which the model is known to be good.
    solver : {"newton-kaczmarz", "kaczmarz"}
        What learns it. Where the first million records tell next to nothing, as in det5, solving
        for each block fits noise, and following its records one by one averages it.
    """

    generate: Callable[[int, int], Records]
    training: int
    held_out: int
    inputs: int
    addends: int
    inner_points: int
    outer_points: int
    epochs: int
    solver: Solver = "newton-kaczmarz"

    def records(self, seed: int, training: int | None = None) -> tuple[Records, Records]:
        """Training and held-out records."""
        check_integer("seed", seed)
        training = self.training if training is None else check_integer("training", training, 1)
        x, y = self.generate(training + self.held_out, seed)
        return (x[:training], y[:training]), (x[training:], y[training:])


def determinants(records: int, order: int, seed: int) -> Records:
    """Determinants of random matrices with entries uniform in [0, 10].

    Returns
    -------
    x : float32 array, shape [records, order * order]
        Entries.
    y : float32 array, shape [records]
        Determinants.
    """
    x = np.random.default_rng(seed).uniform(0, 10, (records, order, order)).astype(np.float32)
    y = np.linalg.det(x.astype(float)).astype(np.float32)
    return x.reshape(records, -1), y


def formula3(records: int, seed: int) -> Records:
    """Sum of two sharp steps in five variables, a test of KANs by Polar and Poluektov.

    Returns
    -------
    x : float32 array, shape [records, 5]
        Uniform in [0, 1].
    y : float32 array, shape [records]
        ``sum over s in (+1, -1) of (2 + 2 x_i) / (3 pi) (atan(20 exp(x5) (x1 - 1/2 + s x2 / 6))
        + pi / 2)`` with x_i = x3 for s = +1 and x4 for s = -1.
    """
    x = np.random.default_rng(seed).uniform(0, 1, (records, 5))
    x1, x2, x3, x4, x5 = x.T

    def step(height: NDArray[Any], sign: int) -> Any:
        angle = np.arctan(20 * np.exp(x5) * (x1 - 0.5 + sign * x2 / 6))
        return (2 + 2 * height) / (3 * np.pi) * (angle + np.pi / 2)

    return x.astype(np.float32), (step(x3, 1) + step(x4, -1)).astype(np.float32)


def triangle_areas(records: int, seed: int) -> Records:
    """Areas of triangles with random corners in a square of 100 x 100.

    Returns
    -------
    x : float32 array, shape [records, 6]
        Coordinates of the three corners.
    y : float32 array, shape [records]
        Areas.
    """
    x = np.random.default_rng(seed).uniform(0, 100, (records, 3, 2))
    (ax, ay), (bx, by) = (x[:, 1] - x[:, 0]).T, (x[:, 2] - x[:, 0]).T
    area = np.abs(ax * by - ay * bx) / 2
    return x.reshape(records, 6).astype(np.float32), area.astype(np.float32)


TASKS: dict[str, Task] = {
    "det4": Task(lambda n, seed: determinants(n, 4, seed), 100_000, 20_000, 16, 70, 3, 30, 12),
    "det5": Task(
        lambda n, seed: determinants(n, 5, seed), 1_000_000, 50_000, 25, 200, 5, 22, 6, "kaczmarz"
    ),
    "formula3": Task(formula3, 10_000, 2_000, 5, 11, 6, 12, 36),
    "triangle": Task(triangle_areas, 10_000, 2_000, 6, 32, 8, 12, 36),
}


def read_csv(path: str | os.PathLike[str], target: str | None = None) -> Records:
    """Read numbers from a CSV file with a header line.

    Parameters
    ----------
    path
        The file.
    target : str, optional
        Name of the target's column; by default the last one. All others are inputs.

    Returns
    -------
    x : float64 array, shape [records, columns - 1]
        Inputs; empty fields are NaN.
    y : float64 array, shape [records]
        Targets.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no text, its first line holds numbers in place of names, a field is no
        number, a line has too few or too many, or `target` names no column.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        try:
            header = next(lines, [])
            if len(header) < 2 or all(map(_is_number, header)):
                raise ValueError("it must have a header, the names of at least two columns")
            rows = []
            for line in lines:
                if line and len(line) != len(header):
                    raise ValueError(f"{len(line)} fields, expected {len(header)}")
                if line:
                    rows.append([float(text) if text.strip() else np.nan for text in line])
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}") from None
    if not rows:
        raise ValueError(f"{path} holds no records")
    names = [name.strip() for name in header]
    target = names[-1] if target is None else target
    if target not in names:
        raise ValueError(f"`target` must be one of {', '.join(names)}, got {target!r}")
    column = names.index(target)
    values = np.array(rows)
    return np.delete(values, column, axis=1), values[:, column]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
