"""Checks of a compressed immediate Jacobian."""

from __future__ import annotations

from tritonsnap.ops.arguments import check_float, compatible
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan


def check_compressed(immediate: Compressed, plan: DsmmPlan, batch: tuple[int, ...]) -> None:
    """Raise unless the compressed Jacobian fits the plan and the batch axes."""
    structure = immediate.structure
    if structure.plan is not plan and structure.plan.digest != plan.digest:
        raise ValueError("`immediate.structure` was made for another plan than `plan`")
    check_float("immediate.values", immediate.values)
    shape = tuple(immediate.values.shape)
    expected = (structure.num_colors, plan.mask.shape[1])
    if shape[-2:] != expected or not compatible(shape[:-2], batch):
        raise ValueError(
            f"`immediate.values` must have shape [..., {expected[0]}, {expected[1]}] with batch "
            f"axes that broadcast with {list(batch)}, got {list(shape)}"
        )
