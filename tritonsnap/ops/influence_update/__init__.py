"""One step of an influence: product, mask and immediate Jacobian at once."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.ops.arguments import Form
from tritonsnap.plan.compressed import Compressed
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
    out: tuple[Any, ...] | None = None,
) -> Any:
    """``J' = M * (D J) + I``, the recurrence of RTRL and SnAp-n, in one pass.

    Parameters
    ----------
    d : float array [..., m, m] or [..., nnz(plan.dynamics)]
        The dynamics ``ds_t/ds_{t-1}``, dense or as its values on `plan.dynamics`.
    j : float array [..., nnz(plan.x)], or tuple of blocks
        The influence ``ds_{t-1}/dtheta``, flat in canonical order or packed by ``plan.pack``.
    immediate : Factors, Compressed, float array [..., nnz(plan.mask)], or tuple of blocks
        The immediate Jacobian ``df/dtheta``: as factors, which are never multiplied out, in its
        compressed form ``[..., colors, p]``, whose values are read where they are added, or as
        values on the whole mask.
    plan, row_scale, precision, form
        As in `masked_dsmm`.
    out : tuple of blocks, optional
        Where to write the result, for a packed `j`: contiguous blocks of its shape and dtype. They
        may be those of `j` itself, of which the step then needs no second one, where
        ``plan.packing_for(*j).in_place``: on the CPU always; on a GPU for columns of one row
        (SnAp-1) and for dense products of at most 256 rows, but not for walks over D's nonzeros.
        In JAX, whose arrays never change, `out` must be `j`: it says that `j` is needed no more,
        so that XLA lays the result over it (and copies it first where it *is* needed).

    Returns
    -------
    float array [..., nnz(plan.mask)], or tuple of blocks
        In the form that `j` had; `out`, where it is given (not in JAX).

    Raises
    ------
    ValueError, TypeError
        As `masked_dsmm`, and where the factors or the compressed Jacobian do not fit the plan.
    ValueError
        That names `out`, where it does not fit the result, may not be `j`, shares memory with
        another argument, or derivatives are taken or operands mapped over in PyTorch.

    References
    ----------
    Menick et al., "Practical Real Time Recurrent Learning with a Sparse Approximation",
    ICLR 2021, equation 3 and section 3.
    """
    face: Any
    added: dict[str, Any] = {"immediate": immediate}
    if isinstance(immediate, Factors):
        added = {"immediate.gains": immediate.gains, "immediate.sources": immediate.sources}
    elif isinstance(immediate, Compressed):
        added = {"immediate.values": immediate.values}
    if out is not None:
        added["out"] = out
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
        d, j, immediate, plan, row_scale=row_scale, precision=precision, form=form, out=out
    )
