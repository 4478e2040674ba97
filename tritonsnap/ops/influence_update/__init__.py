"""One step of an influence: product, mask and immediate Jacobian at once."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.ops.arguments import Form
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors


def influence_update(
    d: Any,
    j: Any,
    immediate: Any,
    plan: DsmmPlan,
    *,
    row_scale: Any = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Any:
    """``J' = M * (D J) + I``, the recurrence of RTRL and SnAp-n, in one pass.

    Parameters
    ----------
    d : float array [..., m, m] or [..., nnz(plan.dynamics)]
        The dynamics ``ds_t/ds_{t-1}``, dense or as its values on `plan.dynamics`.
    j : float array [..., nnz(plan.x)], or tuple of blocks
        The influence ``ds_{t-1}/dtheta``, flat in canonical order or packed by ``plan.pack``.
    immediate : Factors, float array [..., nnz(plan.mask)], or tuple of blocks
        The immediate Jacobian ``df/dtheta``: as factors, which are never multiplied out, or as
        values on the whole mask.
    plan, row_scale, precision, form
        As in `masked_dsmm`.

    Returns
    -------
    float array [..., nnz(plan.mask)], or tuple of blocks
        In the form that `j` had.

    Raises
    ------
    ValueError, TypeError
        As `masked_dsmm`, and where the factors were made for another plan.

    References
    ----------
    Menick et al., "Practical Real Time Recurrent Learning with a Sparse Approximation",
    ICLR 2021, equation 3 and section 3.
    """
    face: Any
    added: dict[str, Any] = {"immediate": immediate}
    if isinstance(immediate, Factors):
        added = {"immediate.gains": immediate.gains, "immediate.sources": immediate.sources}
    library = library_of_arguments(
        {"d": d}, packed={"j": j, **added}, optional={"row_scale": row_scale}
    )
    if library == "torch":
        from tritonsnap.ops.influence_update import torch as face
    elif library == "jax":
        from tritonsnap.ops.influence_update import jax as face
    else:
        from tritonsnap.ops.influence_update import numpy as face
    return face.influence_update(
        d, j, immediate, plan, row_scale=row_scale, precision=precision, form=form
    )
