"""Checks of a factored immediate Jacobian."""

from __future__ import annotations

from tritonsnap.ops.arguments import check_float, check_rows
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors


def check_factors(immediate: Factors, plan: DsmmPlan, batch: tuple[int, ...]) -> None:
    """Raise unless the factors fit the plan and the batch axes."""
    structure = immediate.structure
    rows = plan.mask.shape[0]
    if structure.plan is not plan and structure.plan.digest != plan.digest:
        raise ValueError("`immediate.structure` was made for another plan than `plan`")
    check_rows("immediate.sources", immediate.sources, structure.num_sources, batch)
    check_float("immediate.gains", immediate.gains)
    if tuple(immediate.gains.shape[-2:]) != (structure.num_targets, rows):
        raise ValueError(
            f"`immediate.gains` must have shape [..., {structure.num_targets}, {rows}], "
            f"got {list(immediate.gains.shape)}"
        )
