"""Plans as JAX pytrees: their index arrays are leaves, everything else is static by digest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tritonsnap.plan.compressed import CompressedStructure
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.immediate import ImmediateStructure
from tritonsnap.plan.packing import collect, rebuild

TARGET = "xla"


class Static:
    """A host object that jit compares by its digest."""

    def __init__(self, value: Any, digest: str) -> None:
        self.value = value
        self.digest = digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def on_device(arrays: list[Any], owner: Any) -> list[Any]:
    """JAX arrays of host `arrays`, moved once and kept on `owner`."""
    if not any(isinstance(array, np.ndarray) for array in arrays):
        return arrays
    if "_jax_arrays" not in owner.__dict__:
        with jax.ensure_compile_time_eval():
            object.__setattr__(owner, "_jax_arrays", [jnp.asarray(array) for array in arrays])
    moved: list[Any] = owner.__dict__["_jax_arrays"]
    return moved


def _flatten_plan(plan: DsmmPlan) -> tuple[list[Any], Static]:
    packing = plan.packing(TARGET)
    return on_device(packing.arrays(), packing), Static(plan.host, plan.digest + packing.digest)


def _unflatten_plan(static: Static, arrays: Any) -> DsmmPlan:
    plan: DsmmPlan = static.value
    return plan.with_arrays(TARGET, list(arrays))


def _flatten_structure(structure: ImmediateStructure) -> tuple[tuple[Any, list[Any]], Static]:
    layout = structure.layout(structure.plan.packing(TARGET))
    arrays = [array for block in layout for array in collect(block)]
    return (structure.plan, on_device(arrays, structure)), Static(
        structure.host or structure, structure.digest
    )


def _unflatten_structure(static: Static, children: Any) -> ImmediateStructure:
    host: ImmediateStructure = static.value
    plan, arrays = children
    blocks = host.layout(host.plan.packing(TARGET))
    if not isinstance(arrays, list):  # a placeholder of a tree transformation
        return host.with_layout(plan, TARGET, blocks)
    rest = iter(arrays)
    layout = tuple(rebuild(block, rest) for block in blocks)
    return host.with_layout(plan, TARGET, layout)


jax.tree_util.register_pytree_node(DsmmPlan, _flatten_plan, _unflatten_plan)
for kind in (FactorStructure, CompressedStructure):
    jax.tree_util.register_pytree_node(kind, _flatten_structure, _unflatten_structure)
