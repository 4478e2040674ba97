"""Checks of an immediate Jacobian."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.arguments import Influence, check_batch, check_float, compatible, read_influence
from tritonsnap.ops.influence_update.factors import check_factors
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.packing import Packing


def read_immediate(
    immediate: Any, plan: DsmmPlan, packing: Packing, batch: tuple[int, ...]
) -> Factors | Compressed | Influence:
    """The immediate Jacobian, checked; values as `Influence`.

    Raises
    ------
    ValueError, TypeError
        That name `immediate`, where it does not fit the plan or the batch axes.
    """
    if isinstance(immediate, (Factors, Compressed)):
        check_immediate(immediate, plan, batch)
        return immediate
    values = read_influence("immediate", immediate, packing, "mask")
    check_batch("immediate", values, batch)
    return values


def check_immediate(
    immediate: Factors | Compressed, plan: DsmmPlan, batch: tuple[int, ...]
) -> None:
    """Raise unless the immediate Jacobian fits the plan and the batch axes."""
    if isinstance(immediate, Factors):
        check_factors(immediate, plan, batch)
    else:
        check_compressed(immediate, plan, batch)


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
