"""Plans as JAX pytrees: their index arrays are leaves, everything else is static by digest.

On a GPU a plan as an argument of a program brings what its derivatives read too. A factor
structure, and so a learner, does not, since steps forward in time need none of it: differentiated
in reverse mode they make it a constant of the program.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tritonsnap.plan.compressed import CompressedStructure
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.immediate import ImmediateStructure
from tritonsnap.plan.jax_target import jax_packing, target_of
from tritonsnap.plan.packing import collect, rebuild


class Static:
    """A host object that jit compares by its digest."""

    def __init__(self, value: Any, digest: str) -> None:
        self.value = value
        self.digest = digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def on_device(arrays: list[Any], owner: Any, name: str = "") -> list[Any]:
    """JAX arrays of host `arrays`, moved once and kept on `owner` under a name."""
    if not any(isinstance(array, np.ndarray) for array in arrays):
        return arrays
    key = f"_jax_arrays{name}"
    if key not in owner.__dict__:
        with jax.ensure_compile_time_eval():
            moved = {id(array): jnp.asarray(array) for array in arrays}  # one stays one
        object.__setattr__(owner, key, [moved[id(array)] for array in arrays])
    found: list[Any] = owner.__dict__[key]
    return found


def _flatten_plan(plan: DsmmPlan) -> tuple[list[Any], Static]:
    target = target_of(plan)
    packing = plan.packing(target)
    arrays = on_device(packing.arrays(), packing)
    is_whole = packing.target.canonical and not plan.__dict__.get("_forward_only", False)
    if is_whole:
        flipped, pairs = packing.transposed, packing.pairs
        arrays = [
            *arrays,
            *on_device(flipped.arrays(), flipped),
            *on_device(pairs.arrays(), pairs),
        ]
    digest = f"{plan.digest} {packing.digest} {is_whole}"
    return arrays, Static((plan.host, target, is_whole), digest)


def _unflatten_plan(static: Static, arrays: Any) -> DsmmPlan:
    host, target, is_whole = static.value
    arrays = list(arrays)
    packing = host.packing(target)
    own = len(packing.arrays())
    plan: DsmmPlan = host.with_arrays(target, arrays[:own])
    plan.__dict__.update(_jax_target=target, _forward_only=not is_whole)
    if is_whole:
        view, both = plan.packing(target), 2 * own
        flipped = packing.transposed.with_arrays(arrays[own:both])
        flipped.__dict__["transposed"] = view
        pairs = packing.pairs.with_arrays(arrays[both:])
        view.__dict__.update(transposed=flipped, pairs=pairs)
    return plan


def forward_only(plan: DsmmPlan) -> DsmmPlan:
    """The same plan without what derivatives read."""
    view = copy.copy(plan)
    view.__dict__["_forward_only"] = True
    return view


def _flatten_structure(structure: ImmediateStructure) -> tuple[tuple[Any, list[Any]], Static]:
    packing = jax_packing(structure.plan)
    if packing.target.canonical:
        part = structure.canonical()
        moved = on_device([getattr(part, name) for name in part.ARRAYS], part)
    else:
        layout = structure.layout(packing)
        moved = on_device([array for block in layout for array in collect(block)], structure)
    static = Static((structure.host or structure, packing.target.name), structure.digest)
    return (forward_only(structure.plan), moved), static


def _unflatten_structure(static: Static, children: Any) -> ImmediateStructure:
    (host, target), (plan, arrays) = static.value, children
    if target == "triton":
        part = host.canonical()
        whole = isinstance(arrays, list)  # else a placeholder of a tree transformation
        return host.with_layouts(plan, {"canonical": (type(part)(*arrays) if whole else part,)})
    layout = host.layout(host.plan.packing(target))
    if isinstance(arrays, list):
        rest = iter(arrays)
        layout = tuple(rebuild(block, rest) for block in layout)
    digest = host.plan.packing(target).digest
    return host.with_layouts(plan, {digest: layout})


jax.tree_util.register_pytree_node(DsmmPlan, _flatten_plan, _unflatten_plan)
for kind in (FactorStructure, CompressedStructure):
    jax.tree_util.register_pytree_node(kind, _flatten_structure, _unflatten_structure)
