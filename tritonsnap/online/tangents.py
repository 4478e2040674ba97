"""Products of a cell's Jacobians with vectors, from its factored partial derivatives."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import namespace_of
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


def preactivation_adjoint(cell: Cell, gains: Any, adjoint: Any) -> Any:
    """[..., targets, units]: the gradient in every preactivation of that in the new state.

    `adjoint` is [..., rows], or [..., targets, rows] where each preactivation sees another one.
    """
    through = gains * (adjoint[..., None, :] if adjoint.ndim < gains.ndim else adjoint)
    if len(cell.parts) == 1:
        return through
    shape = (*through.shape[:-1], len(cell.parts), cell.hidden)
    return through.reshape(shape).sum(axis=-2)


def parameter_gradients(cell: Cell, sources: Any, preactivation: Any) -> Params:
    """Gradients of all parameters, summed over all leading axes.

    Parameters
    ----------
    cell
        The network.
    sources : [..., sources]
        What the parameters multiply.
    preactivation : [..., targets, units]
        The gradient in every preactivation.
    """
    rows = sources.reshape(-1, sources.shape[-1])
    gradients = {}
    for linear in cell.maps:
        begin, size = cell.sources[linear.source]
        target = preactivation[..., cell.targets.index(linear.target), :]
        target = target.reshape(-1, cell.hidden)
        if linear.source == "one":
            gradients[linear.name] = target.sum(axis=0)
            continue
        dense = rows[:, begin : begin + size].T @ target
        if linear.pattern is not None:
            dense = dense.reshape(-1)[index_like(dense, linear.place)]
        gradients[linear.name] = dense
    return gradients


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
