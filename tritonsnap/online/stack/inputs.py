"""How a cell's new state depends on its input: what goes through the depth of a `Stack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import preactivation_adjoint
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
    shape = (cell.rows, cell.inputs)
    found = []
    for linear in input_maps(cell):
        begins = cell.hidden * np.array(
            [cell.parts.index(p) for p in cell.gain_parts[linear.target]]
        )
        if linear.pattern is None:  # one support for all inputs
            rows = (begins[:, None] + np.arange(cell.hidden)).ravel()
            kinds = np.zeros(cell.inputs, np.int64)
            found.append(SparsityPattern.from_columns(shape, [0, len(rows)], rows, kinds))
        else:
            rows = (begins[:, None] + linear.units.astype(np.int64)).ravel()
            cols = np.tile(linear.rows, len(begins))
            found.append(SparsityPattern.from_coo(rows, cols, shape))
    return found[0].union(*found[1:])


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
