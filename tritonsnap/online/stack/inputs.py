"""How a cell's new state depends on its input: what goes through the depth of a `Stack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.online.cell import Cell, Prepared
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.sparsity.pattern import SparsityPattern


def input_maps(cell: Cell) -> list[LinearMap]:
    """The maps that read the input."""
    return [linear for linear in cell.maps if linear.source == "input"]


def input_kernel(cell: Cell, ready: Prepared) -> Any:
    """[inputs, maps * hidden]: the kernels of the maps that read the input, side by side."""
    return ready.kernels[0]  # the input is the first source


def input_pattern(cell: Cell) -> SparsityPattern:
    """Where ``ds/dx`` may be nonzero: [rows, inputs]."""
    rows, cols = [], []
    for linear in input_maps(cell):
        for part in cell.gain_parts[linear.target]:
            rows.append(cell.parts.index(part) * cell.hidden + linear.units.astype(np.int64))
            cols.append(linear.rows)
    shape = (cell.rows, cell.inputs)
    return SparsityPattern.from_coo(np.concatenate(rows), np.concatenate(cols), shape)


def input_jacobian(cell: Cell, kernel: Any, gains: Any) -> Any:
    """``ds/dx`` [..., rows, inputs] from a step's gains [..., targets, rows]."""
    xp = namespace_of(gains)
    total = None
    for number, linear in enumerate(input_maps(cell)):
        weights = kernel[:, number * cell.hidden : (number + 1) * cell.hidden].T
        every_part = xp.concat([weights] * len(cell.parts), axis=0)
        part = gains[..., cell.targets.index(linear.target), :, None] * every_part
        total = part if total is None else total + part
    return total


def input_adjoint(cell: Cell, kernel: Any, gains: Any, delta: Any) -> Any:
    """The gradient in the input [..., inputs] from that in the new state [..., rows]."""
    xp = namespace_of(delta)
    through = preactivation_adjoint(cell, gains, delta)
    targets = [cell.targets.index(linear.target) for linear in input_maps(cell)]
    return xp.concat([through[..., target, :] for target in targets], axis=-1) @ kernel.T


def preactivation_adjoint(cell: Cell, gains: Any, delta: Any) -> Any:
    """[..., targets, units]: the gradient in every preactivation."""
    through = gains * delta[..., None, :]
    if len(cell.parts) == 1:
        return through
    return through.reshape(*through.shape[:-1], len(cell.parts), cell.hidden).sum(axis=-2)
