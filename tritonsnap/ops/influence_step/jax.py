"""`influence_step` in JAX as one primitive, where there is one kernel for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tritonsnap.ops import canonical_kernels
from tritonsnap.ops.arguments import Form, check_rows, dynamics_form, read_influence
from tritonsnap.ops.canonical import block_of
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_gradient.jax import influence_gradient
from tritonsnap.ops.influence_update.compressed import check_immediate
from tritonsnap.ops.influence_update.jax import check_over, immediate_of, influence_update
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.jax_target import jax_packing

Array = jax.Array
Structure = FactorStructure | CompressedStructure


def is_fused(
    d: Array, j: Any, immediate: Any, delta: Array, plan: DsmmPlan, row_scale: Array | None
) -> bool:
    """Whether the kernel serves these operands on a GPU: columns of one row, one real dtype."""
    packing = jax_packing(plan)
    if not packing.target.canonical or not isinstance(immediate, (Factors, Compressed)):
        return False
    operands = [d, delta, *immediate[:-1], *(j if isinstance(j, (tuple, list)) else [j])]
    operands += [] if row_scale is None else [row_scale]
    same = all(one.dtype == d.dtype for one in operands)
    return same and canonical_kernels.floats(d) is not None and block_of(packing).elementwise


def fused_step(
    d: Array,
    j: Any,
    immediate: Factors | Compressed,
    delta: Array,
    plan: DsmmPlan,
    row_scale: Array | None,
    form: Form | None,
    packed: bool,
    out: tuple[Array, ...] | None = None,
) -> tuple[Any, Any]:
    """The step in one launch."""
    packing = jax_packing(plan)
    given = read_influence("j", j, packing, "x")
    check_over(out, given, packing)
    form = dynamics_form(d, plan, given.batch, form)
    rows = {"delta": delta} if row_scale is None else {"delta": delta, "row_scale": row_scale}
    for name, array in rows.items():
        check_rows(name, array, plan.mask.shape[0], given.batch)
    check_immediate(immediate, plan, given.batch)
    *added, structure = immediate
    own = [2] if isinstance(immediate, Compressed) else [2, 1]
    influence, gradient = _influence_step(
        structure,
        (d, *added, *rows.values(), given.blocks[0]),
        [2 if form == "dense" else 1, *own, *(1 for _ in rows), 1],
        form=form,
        scaled=row_scale is not None,
        over=out is not None,
    )
    blocks = (influence,)
    updated = packing.unpack(blocks, like=given.values) if given.flat else blocks
    return updated, (gradient,) if packed else gradient


def _implementation(
    structure: Structure, d: Array, *operands: Array, form: Form, scaled: bool, over: bool
) -> tuple[Array, ...]:
    immediate, rest = immediate_of(structure, operands)
    delta, scale, j = rest[0], rest[1] if scaled else None, rest[-1]
    plan = structure.plan
    influence = influence_update(d, (j,), immediate, plan, row_scale=scale, form=form)
    (gradient,) = influence_gradient(delta, influence, plan, sum_batch=True, packed=True)
    return influence[0], gradient


def _kernels(
    launch: Launch,
    structure: Structure,
    d: Array,
    *operands: Array,
    form: Form,
    scaled: bool,
    over: bool,
) -> tuple[Array, ...]:
    packing = jax_packing(structure.plan)
    immediate, rest = immediate_of(structure, operands)
    delta, scale, j = rest[0], rest[1] if scaled else None, rest[-1]
    dynamics = Dynamics(d, form, packing, jnp)
    return canonical_kernels.step(launch, packing, dynamics, j, delta, scale, immediate, over)


class _Step(PlanPrimitive):
    def _batch(
        self, args: Sequence[Any], dims: Sequence[Any], *, tree: Any, axes: Any, params: Any
    ) -> tuple[Any, Any]:
        """Every mapped row keeps a gradient of its own, which takes two kernels."""
        structure = jax.tree_util.tree_unflatten(tree, args[len(axes) :])
        run = partial(_implementation, structure, **dict(params))
        outputs = jax.vmap(run, dims[: len(axes)])(*args[: len(axes)])
        return outputs, [0] * len(outputs)


_influence_step = _Step("influence_step", _implementation, kernels=_kernels)
