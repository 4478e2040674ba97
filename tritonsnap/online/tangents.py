"""Products of a cell's Jacobians with vectors, from its factored partial derivatives."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import namespace_of
from tritonsnap.online.adjoints import preactivation_adjoint
from tritonsnap.online.backend import index_like
from tritonsnap.online.cell import Cell, Linearization, Params, Prepared


def state_tangent(cell: Cell, ready: Prepared, linear: Linearization, tangent: Any) -> Any:
    """``D v`` [..., rows]: how the new state moves when the old one moves by `tangent`."""
    xp = namespace_of(tangent)
    size = cell.hidden
    old = {p: tangent[..., i * size : (i + 1) * size] for i, p in enumerate(cell.parts)}
    kernels = iter(ready.kernels)
    moved: dict[str, Any] = {}
    for source in cell.sources:
        maps = [one for one in cell.maps if one.source == source]
        if not maps:
            continue
        kernel = next(kernels)
        if source not in old:
            continue
        together = old[source] @ kernel
        for number, one in enumerate(maps):
            part = together[..., number * size : (number + 1) * size]
            moved[one.target] = moved[one.target] + part if one.target in moved else part
    result = xp.zeros_like(tangent)
    for target, value in moved.items():
        repeated = value if len(cell.parts) == 1 else xp.concat([value] * len(cell.parts), axis=-1)
        result = result + linear.gains[..., cell.targets.index(target), :] * repeated
    if linear.own is not None:
        split = tangent.reshape(*tangent.shape[:-1], 1, len(cell.parts), size)
        result = result + (linear.own * split).sum(axis=-2).reshape(tangent.shape)
    return result


def parameter_adjoint(cell: Cell, linear: Linearization, adjoint: Any) -> Params:
    """``v^T I`` for each row of the batch: arrays like the parameters, [batch, ...]."""
    through = preactivation_adjoint(cell, linear.gains, adjoint)
    result = {}
    for one in cell.maps:
        begin, size = cell.sources[one.source]
        target = through[..., cell.targets.index(one.target), :]
        source = linear.sources[..., begin : begin + size]
        if one.source == "one":
            result[one.name] = target
        elif one.pattern is None:
            result[one.name] = source[..., :, None] * target[..., None, :]
        else:
            rows, units = (index_like(target, index) for index in (one.rows, one.units))
            result[one.name] = source[..., rows] * target[..., units]
    return result
