"""The masked dense-sparse product, the step of an influence."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.ops.arguments import Form
from tritonsnap.plan.dsmm_plan import DsmmPlan


def masked_dsmm(
    d: Any,
    x: Any,
    plan: DsmmPlan,
    *,
    row_scale: Any = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Any:
    """The values of ``M * (D X)``: a dense times a sparse matrix, kept where M has positions.

    Parameters
    ----------
    d : float array [..., m, k] or [..., nnz(plan.dynamics)]
        D, dense or as its values on `plan.dynamics`.
    x : float array [..., nnz(plan.x)], or tuple of blocks
        The values of X in canonical order (sorted by column, then row), or packed by
        ``plan.pack``. Leading axes are batch and broadcast with those of `d`.
    plan : DsmmPlan
        The patterns, and how the work over them is organised.
    row_scale : float array [..., m], optional
        Computes ``M * (diag(row_scale) D X)`` without forming the scaled D.
    precision : {"ieee", "tf32x3", "tf32"}
        How float32 dot products are computed on tensor cores; the CPU is always exact.
    form : {"values", "dense"}, optional
        What `d` is; needed only where its shape fits both.

    Returns
    -------
    float array [..., nnz(plan.mask)], or tuple of blocks
        In the form that `x` had. A NaN or inf stays in its batch row; finite values agree in all
        regimes (a dense product computes ``0 * inf`` where a walk has no entry).

    Raises
    ------
    ValueError
        For shapes that do not fit, a `d` that may be dense as well as values, or an unknown
        precision.
    TypeError
        For dtypes that are not floating-point, a wrong plan, or mixed array libraries.

    Notes
    -----
    On a GPU, operands that are not contiguous are copied first, and so is an `x` that lacks batch
    axes which `d` or `row_scale` has, or that is flat and no multiple of 16 values long: learners
    keep theirs packed.
    """
    face: Any
    library = library_of_arguments({"d": d}, packed={"x": x}, optional={"row_scale": row_scale})
    if library == "torch":
        from tritonsnap.ops.masked_dsmm import torch as face
    elif library == "jax":
        from tritonsnap.ops.masked_dsmm import jax as face
    else:
        from tritonsnap.ops.masked_dsmm import numpy as face
    return face.masked_dsmm(d, x, plan, row_scale=row_scale, precision=precision, form=form)
