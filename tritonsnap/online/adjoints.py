"""From adjoints of the state to gradients of the parameters, for any stretch of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonsnap.online.backend import index_like, take, take_or_zero
from tritonsnap.online.cell import Cell, Params


@dataclass(frozen=True, eq=False)
class Held:
    """The units whose parameters' gradients are wanted.

    Attributes
    ----------
    unit : [U]
        The units.
    slot : [units of the cell]
        Where each is among them, one past the last if it is not.
    """

    unit: Any
    slot: Any


def preactivation_adjoint(cell: Cell, gains: Any, adjoint: Any) -> Any:
    """The gradient in every preactivation.

    Parameters
    ----------
    cell
        The network.
    gains : [..., targets, rows]
        What each preactivation does to each row of the state.
    adjoint : [..., rows] or [..., targets, rows]
        The gradient in the state, if need be as each preactivation sees it.

    Returns
    -------
    [..., targets, units]
    """
    through = gains * (adjoint[..., None, :] if adjoint.ndim < gains.ndim else adjoint)
    parts = len(cell.parts)
    if parts == 1:
        return through
    return through.reshape(*through.shape[:-1], parts, cell.hidden).sum(axis=-2)


def parameter_gradients(
    cell: Cell, sources: Any, preactivation: Any, held: Held | None = None
) -> Params:
    """Gradients of all parameters, summed over all leading axes.

    Parameters
    ----------
    cell
        The network.
    sources : [..., sources]
        What the parameters multiply.
    preactivation : [..., targets, units]
        The gradient in every preactivation.
    held
        Finds only the gradients of weights into these units; others are zero.
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
        if held is None:
            dense = rows[:, begin : begin + size].T @ target
        else:
            dense = rows[:, begin : begin + size].T @ take(target, held.unit)
            dense = take_or_zero(dense, held.slot)
        if linear.pattern is not None:
            dense = dense.reshape(-1)[index_like(dense, linear.place)]
        gradients[linear.name] = dense
    return gradients
