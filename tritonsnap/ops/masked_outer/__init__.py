"""The adjoint of the masked product in D."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.ops.arguments import Form
from tritonsnap.plan.dsmm_plan import DsmmPlan


def masked_outer(r: Any, x: Any, plan: DsmmPlan, *, form: Form = "values") -> Any:
    """``R X^T`` where the plan needs D: the sum over columns of outer products of columns.

    It is the adjoint of `masked_dsmm` in D: where ``y = masked_dsmm(d, x, plan)`` and r is the
    gradient of a loss with respect to y, this is the gradient with respect to d.

    Parameters
    ----------
    r : float array [..., nnz(plan.mask)], or tuple of blocks
        Values on M, flat in canonical order or packed.
    x : float array [..., nnz(plan.x)], or tuple of blocks
        Values on X, flat where `r` is flat. Batch axes broadcast.
    plan : DsmmPlan
        The plan of the product.
    form : {"values", "dense"}
        The form that D had in the product, which the result gets.

    Returns
    -------
    float array [..., nnz(plan.dynamics)] or [..., m, k]
        A dense result is zero outside of `plan.dynamics`.

    Raises
    ------
    ValueError
        For shapes that do not fit, an unknown form, or one flat and one packed operand.
    TypeError
        For dtypes that are not floating-point, a wrong plan, or mixed array libraries.
    """
    face: Any
    library = library_of_arguments({}, packed={"r": r, "x": x})
    if library == "torch":
        from tritonsnap.ops.masked_outer import torch as face
    elif library == "jax":
        from tritonsnap.ops.masked_outer import jax as face
    else:
        from tritonsnap.ops.masked_outer import numpy as face
    return face.masked_outer(r, x, plan, form=form)
