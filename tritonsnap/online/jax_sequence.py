"""Learners in JAX: pytrees whose index arrays are operands, and a compiled `sequence`."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from tritonsnap.online.bptt import BPTT
from tritonsnap.online.cell import Cell
from tritonsnap.online.chunk_structure import Chunking, map_arrays
from tritonsnap.online.learner import Learner
from tritonsnap.online.rflo import RFLO
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.unfactored.chunk_structure import UnfactoredChunking
from tritonsnap.online.unfactored.function_cell import ProjectedJacobians
from tritonsnap.online.unfactored.learners import (
    UnfactoredBPTT,
    UnfactoredRTRL,
    UnfactoredSnAp,
    UnfactoredUORO,
)
from tritonsnap.online.unfactored.reset_before import ResetBeforeJacobians
from tritonsnap.online.unroll import LossFunction, Unroll
from tritonsnap.online.uoro import UORO
from tritonsnap.plan.jax_target import jax_packing
from tritonsnap.plan.jax_tree import Static, forward_only, on_device


@partial(jax.jit, static_argnames="loss_fn")
def _run(learner: Learner, chunking: Chunking | None, arrays: Unroll, loss_fn: LossFunction) -> Any:
    return learner.run(chunking, arrays._replace(loss_fn=loss_fn))


def run(learner: Learner, chunking: Chunking | None, unroll: Unroll) -> Any:
    """`Learner.run`, compiled once for each loss function and each set of shapes."""
    return _run(learner, chunking, unroll.arrays, unroll.loss_fn)


def places_of(layer: Cell | FeedForward) -> list[Any]:
    """The index arrays of the sparse weights."""
    return on_device([m.place for m in layer.maps if m.pattern is not None], layer)


def with_places(layer: Any, places: list[Any]) -> Any:
    """The same layer with other index arrays: operands of a program."""
    view, rest = copy.copy(layer), iter(places)
    view.__dict__["maps"] = tuple(
        linear if linear.pattern is None else linear.with_place(next(rest)) for linear in layer.maps
    )
    return view


def view_of(host: Learner) -> Any:
    """A copy of a learner whose index arrays may be replaced by operands of a program."""
    view = object.__new__(type(host))
    view.__dict__.update(host.__dict__, host=host)
    return view


def _kind(host: Learner) -> str:
    return f"{type(host).__name__} {host.cell.digest}"


def _flatten_snap(learner: SnAp) -> tuple[Any, Static]:
    dynamics = learner.dynamics
    host = learner.__dict__.get("host", learner)
    digest = f"{_kind(host)} {host.influence_dtype} {host.structure.digest}"
    children = (learner.structure, on_device(dynamics.arrays(), dynamics), places_of(learner.cell))
    return children, Static(host, digest)


def _unflatten_snap(static: Static, children: Any) -> SnAp:
    host: SnAp = static.value
    structure, arrays, places = children
    view: SnAp = view_of(host)
    view.__dict__["structure"] = structure
    if isinstance(arrays, list):  # else a placeholder of a tree transformation
        view.cell = with_places(host.cell, places)
        view.__dict__["dynamics"] = host.dynamics.with_arrays(iter(arrays), view.cell)
    return view


def register_snap(kind: type[SnAp]) -> None:
    """Let programs take learners of a kind of `SnAp` as arguments."""
    register_snap(kind)


def _flatten_plain(learner: Learner) -> tuple[Any, Static]:
    host = learner.__dict__.get("host", learner)
    signs = host._words.tolist() if isinstance(host, UORO) else None
    return (places_of(learner.cell),), Static(host, f"{_kind(host)} {signs}")


def _unflatten_plain(static: Static, children: Any) -> Learner:
    view: Learner = view_of(static.value)
    if isinstance(children[0], list):
        view.cell = with_places(view.cell, children[0])
    return view


def _flatten_unfactored(learner: UnfactoredSnAp) -> tuple[Any, Static]:
    host = learner.__dict__.get("host", learner)
    digest = f"{_kind(host)} {host.influence_dtype} {host.plan.digest}"
    packing = jax_packing(learner.plan)
    blocks = on_device(learner.places(packing), learner, packing.digest)
    plan, places = forward_only(learner.plan), places_of(learner.cell)
    return (plan, blocks, learner.jacobians, places), Static(host, digest)


def _unflatten_unfactored(static: Static, children: Any) -> UnfactoredSnAp:
    host: UnfactoredSnAp = static.value
    plan, blocks, jacobians, places = children
    view: UnfactoredSnAp = view_of(host)
    view.__dict__.update(plan=plan, jacobians=jacobians)
    if isinstance(blocks, list):  # else a placeholder of a tree transformation
        view.__dict__["_places"] = {jax_packing(plan).digest: blocks}
        view.cell = with_places(host.cell, places)
    return view


jax.tree_util.register_pytree_node(
    ProjectedJacobians,
    lambda one: ((one.projection,), Static(one.cell, one.cell.digest)),
    lambda static, children: ProjectedJacobians(static.value, *children),
)
jax.tree_util.register_pytree_node(
    ResetBeforeJacobians,
    lambda one: (on_device(list(one.arrays), one), None),
    lambda _, arrays: ResetBeforeJacobians(tuple(arrays)),
)
jax.tree_util.register_pytree_node(
    UnfactoredChunking,
    lambda one: (on_device(one.arrays(), one), Static(one.host or one, one.digest)),
    lambda static, arrays: static.value.with_arrays(arrays),
)
for form in (UnfactoredSnAp, UnfactoredRTRL):
    jax.tree_util.register_pytree_node(form, _flatten_unfactored, _unflatten_unfactored)


def _index_parts(chunking: Chunking) -> tuple[Any, ...]:
    return (
        chunking.elementwise,
        chunking.groups,
        chunking.merged,
        chunking.diagonal_place,
        chunking.own_row,
        chunking.held,
    )


def _flatten_chunking(chunking: Chunking) -> tuple[Any, Static]:
    host = chunking.host or chunking
    parts = _index_parts(chunking)
    arrays: list[Any] = []
    map_arrays(arrays.append, parts)
    structures = [one for one in (chunking.diagonal, chunking.adjoint_dynamics) if one is not None]
    arrays += [a for one in structures for a in one.arrays()]
    children = (on_device(arrays, chunking), chunking.adjoint, chunking.stepped)
    return children, Static(host, host.digest)


def _unflatten_chunking(static: Static, children: Any) -> Chunking:
    host: Chunking = static.value
    arrays, adjoint, stepped = children
    if not isinstance(arrays, list):  # a placeholder of a tree transformation
        return host
    rest = iter(arrays)
    elementwise, groups, merged, diagonal_place, own_row, held = map_arrays(
        lambda _: next(rest), _index_parts(host)
    )
    diagonal, dynamics = (
        None if one is None else one.with_arrays(rest)
        for one in (host.diagonal, host.adjoint_dynamics)
    )
    return replace(
        host,
        elementwise=elementwise,
        groups=groups,
        merged=merged,
        stepped=stepped,
        diagonal=diagonal,
        diagonal_place=diagonal_place,
        adjoint=adjoint,
        adjoint_dynamics=dynamics,
        own_row=own_row,
        held=held,
        host=host,
    )


jax.tree_util.register_pytree_node(Chunking, _flatten_chunking, _unflatten_chunking)
for kind in (SnAp, RTRL, RFLO):
    register_snap(kind)
for plain in (BPTT, UORO, UnfactoredBPTT, UnfactoredUORO):
    jax.tree_util.register_pytree_node(plain, _flatten_plain, _unflatten_plain)
