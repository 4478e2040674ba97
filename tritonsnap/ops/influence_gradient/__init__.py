"""The gradient that an influence gives: delta^T J."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.checks import check_flag
from tritonsnap.plan.dsmm_plan import DsmmPlan


def influence_gradient(
    delta: Any, j: Any, plan: DsmmPlan, *, sum_batch: bool = False, packed: bool = False
) -> Any:
    """``delta^T J``: the gradient with respect to every parameter.

    Parameters
    ----------
    delta : float array [..., m]
        The gradient of the loss with respect to the state.
    j : float array [..., nnz(plan.mask)], or tuple of blocks
        The influence, flat in canonical order or packed.
    plan : DsmmPlan
        The plan of the influence.
    sum_batch
        Whether to sum over all batch axes.
    packed
        Whether to return one array ``[..., G, C]`` a block, as ``plan.unpack_columns`` takes it:
        cheaper where gradients of many steps are added up.

    Returns
    -------
    float array [..., p], or tuple of blocks

    Raises
    ------
    ValueError, TypeError
        For shapes, dtypes or libraries that do not fit.

    References
    ----------
    Menick et al., ICLR 2021, equation 2.
    """
    check_flag("sum_batch", sum_batch)
    check_flag("packed", packed)
    face: Any
    library = library_of_arguments({"delta": delta}, packed={"j": j})
    if library == "torch":
        from tritonsnap.ops.influence_gradient import torch as face
    elif library == "jax":
        from tritonsnap.ops.influence_gradient import jax as face
    else:
        from tritonsnap.ops.influence_gradient import numpy as face
    return face.influence_gradient(delta, j, plan, sum_batch=sum_batch, packed=packed)
