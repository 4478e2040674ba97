"""Which kernels the ops on values in canonical order launch, and with what: for torch and JAX.

Nothing here belongs to either: arrays are passed on as they are, and triton is imported where a
kernel is chosen.
"""

from __future__ import annotations

from typing import Any, Protocol

from tritonsnap.ops.canonical import (
    Addend,
    block_of,
    gradient_arguments,
    group_arguments,
    outer_sum_arguments,
    outer_tile_arguments,
    outer_walk_arguments,
    snap1_arguments,
    walk_arguments,
)
from tritonsnap.ops.kernel import KernelLaunch
from tritonsnap.plan.canonical import UNIT
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.plan.packing import Packing


class BatchedDynamics(Protocol):
    """One D as the kernels read it."""

    @property
    def values(self) -> Any:
        """``[batch or 1, nnz(dynamics)]``."""

    @property
    def dense(self) -> Any:
        """``[batch or 1, m, k]``."""


def product_launches(
    packing: Packing, dynamics: BatchedDynamics, x: Any, addend: Addend, precision: str
) -> list[KernelLaunch]:
    """M * (D X) and what is added to it: one launch, or two for a plan of both regimes.

    Each writes its part of ``out``, ``[batch, padded nnz(mask)]``.

    Parameters
    ----------
    packing, dynamics
        On the device of `x`.
    x : [batch, padded nnz(x)]
    addend
        What is added.
    precision
        Of dense products of float32; other types have one.
    """
    from tritonsnap.ops.influence_update.kernels import SNAP1_UPDATE
    from tritonsnap.ops.masked_dsmm.kernels import GROUP_PRODUCT, WALK_PRODUCT

    block, shape = block_of(packing), packing.dynamics.shape
    num_values, batch = packing.groups.mask.nnz, int(x.shape[0])
    outputs: dict[str, tuple[int, ...]] = {"out": (batch, block.mask_values)}
    sizes = {"values": num_values, "batch": batch}
    if block.elementwise:
        counts = (shape[0], packing.dynamics.nnz, num_values)
        arguments = snap1_arguments(block, dynamics.values, x, addend, None, counts)
        outputs = {"gradient": (UNIT,), **outputs}
        return [KernelLaunch(SNAP1_UPDATE, arguments, outputs, sizes, in_place=block.in_place)]
    launches = []
    if len(block.tiles):
        arguments = walk_arguments(block, dynamics.values, x, addend, shape, num_values)
        launches.append(KernelLaunch(WALK_PRODUCT, arguments, outputs, sizes))
    if len(block.dense_tiles):
        kernel = GROUP_PRODUCT[block.dense_shape.rows, 8 if block.aligned else 1]
        columns = num_values // max(len(block.mask_row), 1)
        sizes = {"rows": block.dense_shape.rows, "columns": columns, "batch": batch}
        arguments = group_arguments(block, dynamics.dense, x, addend, shape)
        own = precision if str(x.dtype).removeprefix("torch.") == "float32" else "ieee"
        launches.append(KernelLaunch(kernel, arguments, outputs, sizes, own, block.in_place))
    return launches


def step_launch(
    packing: Packing, dynamics: BatchedDynamics, x: Any, addend: Addend, delta: Any
) -> KernelLaunch:
    """A step of SnAp-1 and the gradient it gives, ``[padded nnz]``, summed over the batch."""
    from tritonsnap.ops.influence_update.kernels import SNAP1_STEP

    block, num_values = block_of(packing), packing.groups.mask.nnz
    counts = (packing.dynamics.shape[0], packing.dynamics.nnz, num_values)
    batch = int(x.shape[0])
    return KernelLaunch(
        SNAP1_STEP,
        snap1_arguments(block, dynamics.values, x, addend, delta, counts),
        {"gradient": (block.mask_values,), "out": (batch, block.mask_values)},
        {"values": num_values, "batch": batch},
        in_place=block.in_place,
    )


def gradient_launch(packing: Packing, delta: Any, j: Any, sum_batch: bool) -> KernelLaunch:
    """delta^T J, ``[batch, p]``, or ``[1, p]`` summed over the batch.

    Parameters
    ----------
    packing
        On the device of the operands.
    delta : [batch or 1, m]
    j : [batch, padded nnz(mask)]
    """
    from tritonsnap.ops.influence_gradient.kernels import COLUMN_GRADIENT

    mask, batch = packing.groups.mask, int(j.shape[0])
    num_columns = mask.shape[1]
    mean_rows = mask.nnz / max(num_columns, 1)
    rows = next(rows for rows in (1, 4, 16) if mean_rows <= rows or rows == 16)
    return KernelLaunch(
        COLUMN_GRADIENT[rows, sum_batch],
        gradient_arguments(block_of(packing), delta, j, num_columns),
        {"gradient": (1 if sum_batch else batch, num_columns)},
        {"columns": num_columns, "batch": batch},
    )


def outer_launch(packing: Packing, pairs: OuterPairs, r: Any, x: Any) -> KernelLaunch:
    """Partial sums of R X^T, ``[batch, num_partial]``.

    Parameters
    ----------
    packing, pairs
        On the device of the operands.
    r : [batch, padded nnz(mask)]
    x : [batch, padded nnz(x)]
    """
    from tritonsnap.ops.masked_outer.kernels import OUTER_TILES, OUTER_WALK

    block, batch = block_of(packing), int(r.shape[0])
    outputs = {"partial": (batch, pairs.num_partial)}
    if pairs.tile == 1:
        arguments = outer_walk_arguments(block, pairs, r, x)
        sizes = {"pairs": pairs.num_partial, "batch": batch}
        return KernelLaunch(OUTER_WALK[pairs.columns], arguments, outputs, sizes)
    sizes = {"tiles": len(pairs.tiles), "batch": batch}
    arguments = outer_tile_arguments(block, pairs, r, x)
    return KernelLaunch(OUTER_TILES, arguments, outputs, sizes)


def outer_sum_launch(pairs: OuterPairs, partial: Any) -> KernelLaunch | None:
    """R X^T at the entries of D from its partial sums; None where they are the entries."""
    from tritonsnap.ops.masked_outer.kernels import OUTER_SUM

    if not len(pairs.entry_begin):
        return None
    num_entries, batch = len(pairs.entry_begin) - 1, int(partial.shape[0])
    outputs = {"out": (batch, num_entries)}
    sizes = {"entries": num_entries, "batch": batch}
    return KernelLaunch(OUTER_SUM, outer_sum_arguments(pairs, partial), outputs, sizes)
