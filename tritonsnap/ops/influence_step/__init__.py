"""One step of an influence and the gradient that the new influence gives."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.checks import check_flag
from tritonsnap.ops.arguments import Form, check_plan, check_precision
from tritonsnap.ops.influence_gradient import influence_gradient
from tritonsnap.ops.influence_update import influence_update
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors


def influence_step(
    d: Any,
    j: Any,
    immediate: Any,
    delta: Any,
    plan: DsmmPlan,
    *,
    row_scale: Any = None,
    precision: str = "ieee",
    form: Form | None = None,
    packed: bool = False,
    out: tuple[Any, ...] | None = None,
) -> tuple[Any, Any]:
    """``J' = M * (D J) + I`` and ``delta^T J'``, summed over the batch.

    The same as `influence_update` and then `influence_gradient`. On a GPU, where every column of
    the plan has one row (SnAp-1), both are one kernel, which reads J once and writes J' once; so in
    a function that `torch.compile` or `jax.jit` compiles.

    Parameters
    ----------
    d, j, immediate, plan, row_scale, precision, form
        As in `influence_update`.
    delta : float array [..., m]
        The gradient of the loss with respect to the new state.
    packed
        Whether to return the gradient as the plan's blocks.
    out
        As in `influence_update`: where to write the influence.

    Returns
    -------
    influence : float array [..., nnz(plan.mask)], or tuple of blocks
        In the form that `j` had.
    gradient : float array [p], or tuple of blocks
        Of each parameter, summed over all batch axes.

    Raises
    ------
    ValueError, TypeError
        As `influence_update` and `influence_gradient`.
    """
    check_plan(plan)
    check_precision(precision)
    check_flag("packed", packed)
    added = immediate[:-1] if isinstance(immediate, (Factors, Compressed)) else immediate
    library = library_of_arguments(
        {"d": d, "delta": delta},
        packed={"j": j, "immediate": added} | ({} if out is None else {"out": out}),
        optional={"row_scale": row_scale},
    )
    face = _fused_face(library)
    if face is not None and face.is_fused(d, j, immediate, delta, plan, row_scale):
        fused: tuple[Any, Any] = face.fused_step(
            d, j, immediate, delta, plan, row_scale, form, packed, out
        )
        return fused
    influence = influence_update(
        d, j, immediate, plan, row_scale=row_scale, precision=precision, form=form, out=out
    )
    gradient = influence_gradient(delta, influence, plan, sum_batch=True, packed=packed)
    return influence, gradient


def _fused_face(library: str) -> ModuleType | None:
    """What has one kernel for a step, of the libraries that run kernels."""
    if library == "torch":
        from tritonsnap.ops.influence_step import torch

        return torch
    if library == "jax":
        from tritonsnap.ops.influence_step import jax

        return jax
    return None
