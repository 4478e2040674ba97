"""`influence_update` and the fused SnAp-1 step on a GPU: torch tensors go to Triton kernels."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    Influence,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.canonical import Addend, block_of
from tritonsnap.ops.canonical_launches import step_launch
from tritonsnap.ops.device import (
    DeviceDynamics,
    batch_rows,
    device_colors,
    device_factors,
    device_packing,
    full_batch,
)
from tritonsnap.ops.influence_update.compressed import check_compressed
from tritonsnap.ops.influence_update.factors import check_factors
from tritonsnap.ops.launch import launch, run
from tritonsnap.ops.masked_dsmm.triton import batch_shape, product
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.packing import Packing

Immediate = Tensor | tuple[Tensor, ...] | Factors | Compressed


def influence_update(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Immediate,
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> Tensor | tuple[Tensor, ...]:
    """`tritonsnap.influence_update` on the device of `d`; blocks are those of "triton"."""
    check_precision(precision)
    packing, given, dynamics, addend, batch = _read(d, j, immediate, plan, row_scale)
    out = product(packing, dynamics, full_batch(given.blocks[0], batch), addend, precision)
    blocks = (out.reshape(*batch, out.shape[-1]),)
    return packing.unpack(blocks) if given.flat else blocks


def snap1_step(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Immediate,
    delta: Tensor,
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    form: Form | None = None,
) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
    """One SnAp-1 step and its gradient; J is read once and written once.

    Equal to `influence_update` and, of what that returns, `influence_gradient` with
    ``sum_batch=True``.

    Parameters
    ----------
    d, j, immediate, plan, row_scale, form
        As of `tritonsnap.influence_update`; every column of the plan has one row.
    delta : [..., m]
        The gradient of the loss with respect to the new state.

    Returns
    -------
    influence
        In the form that `j` had.
    gradient : [p]
        Summed over the batch.
    """
    packing, given, dynamics, addend, batch = _read(d, j, immediate, plan, row_scale, form)
    if not block_of(packing).elementwise:
        raise ValueError("`plan` must have one row in every column for `snap1_step`")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    x = full_batch(given.blocks[0], batch)
    one = step_launch(packing, dynamics, x, addend, full_batch(delta, batch))
    found = run(one, x.dtype, x)
    blocks = (found["out"].reshape(*batch, x.shape[-1]),)
    return packing.unpack(blocks) if given.flat else blocks, found["gradient"][: plan.mask.nnz]


def _read(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Immediate,
    plan: DsmmPlan,
    row_scale: Tensor | None,
    form: Form | None = None,
) -> tuple[Packing, Influence, DeviceDynamics, Addend, tuple[int, ...]]:
    """The checked operands of a step, and the batch axes of its result."""
    check_plan(plan)
    packing = device_packing(plan.packing("triton"), d.device)
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    lead = [given.batch, tuple(d.shape[: -2 if form == "dense" else -1])]
    scale = None
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
        lead.append(tuple(row_scale.shape[:-1]))
    if isinstance(immediate, Factors):
        check_factors(immediate, plan, given.batch)
        lead += [tuple(immediate.gains.shape[:-2]), tuple(immediate.sources.shape[:-1])]
    elif isinstance(immediate, Compressed):
        check_compressed(immediate, plan, given.batch)
        lead.append(tuple(immediate.values.shape[:-2]))
    else:
        added = read_influence("immediate", immediate, packing, "mask")
        lead.append(added.batch)
    batch = batch_shape(*lead)
    if row_scale is not None:
        scale = batch_rows(row_scale, 1, batch)
    values = immediate if isinstance(immediate, (Factors, Compressed)) else added.blocks[0]
    addend = addend_of(values, scale, batch)
    return packing, given, DeviceDynamics(d, form, packing, batch), addend, batch


def addend_of(
    immediate: Tensor | Factors | Compressed, row_scale: Tensor | None, batch: tuple[int, ...]
) -> Addend:
    """The immediate Jacobian, or its block, as the kernels add it.

    `row_scale` is [batch or 1, m].
    """
    if isinstance(immediate, Tensor):
        return Addend(mode=2, added=full_batch(immediate, batch), row_scale=row_scale)
    if isinstance(immediate, Compressed):
        structure = immediate.structure
        return Addend(
            mode=3,
            added=batch_rows(immediate.values.flatten(-2), 1, batch),
            color=device_colors(structure, immediate.values.device),
            num_colors=structure.num_colors,
            num_columns=structure.plan.mask.shape[1],
            row_scale=row_scale,
        )
    columns = device_factors(immediate.structure, immediate.gains.device)
    return Addend(
        mode=1,
        gains=batch_rows(immediate.gains.flatten(-2), 1, batch),
        sources=batch_rows(immediate.sources, 1, batch),
        column_gain=columns.column_gain,
        column_source=columns.column_source,
        num_units=immediate.structure.num_units,
        row_scale=row_scale,
    )


def update_block(
    host: Packing,
    d: Tensor,
    form: Form,
    j: Tensor,
    immediate: Tensor | Factors | Compressed,
    row_scale: Tensor | None,
    batch: tuple[int, ...],
    precision: str,
    out: Tensor | None = None,
) -> Tensor:
    """The block of M * (D J) + I, ``[*batch, padded nnz(mask)]``, in `out` where it is given."""
    packing, dynamics, addend = _on_device(host, d, form, immediate, row_scale, batch)
    x = full_batch(j, batch)
    into = None if out is None else out.view(len(x), out.shape[-1])
    result = product(packing, dynamics, x, addend, precision, into)
    return result.reshape(*batch, result.shape[-1])


def step_block(
    host: Packing,
    d: Tensor,
    form: Form,
    j: Tensor,
    immediate: Tensor | Factors | Compressed,
    row_scale: Tensor | None,
    delta: Tensor,
    out: Tensor,
) -> Tensor:
    """The gradient [p] of a SnAp-1 step, whose influence ``[..., padded values]`` goes to `out`."""
    batch = tuple(out.shape[:-1])
    packing, dynamics, addend = _on_device(host, d, form, immediate, row_scale, batch)
    x = full_batch(j, batch)
    one = step_launch(packing, dynamics, x, addend, full_batch(delta, batch))
    outputs = {
        "gradient": x.new_empty(one.outputs["gradient"]),
        "out": out.view(len(x), out.shape[-1]),
    }
    launch(one.kernel, one.arguments | outputs, one.sizes, x.dtype)
    return outputs["gradient"][: host.groups.mask.nnz]


def _on_device(
    host: Packing,
    d: Tensor,
    form: Form,
    immediate: Tensor | Factors | Compressed,
    row_scale: Tensor | None,
    batch: tuple[int, ...],
) -> tuple[Packing, DeviceDynamics, Addend]:
    packing = device_packing(host, d.device)
    scale = None if row_scale is None else batch_rows(row_scale, 1, batch)
    addend = addend_of(immediate, scale, batch)
    return packing, DeviceDynamics(d, form, packing, batch), addend
