"""Learners in JAX: pytrees whose index arrays are operands, and a compiled `sequence`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from tritonsnap.online.bptt import BPTT
from tritonsnap.online.learner import Learner, LossFunction
from tritonsnap.online.snap import RTRL, SnAp
from tritonsnap.plan.jax_tree import Static, on_device


@partial(jax.jit, static_argnames="loss_fn")
def _run(
    learner: Learner,
    params: Any,
    carry: Any,
    xs: Any,
    ys: Any,
    loss_fn: LossFunction,
    mask: Any,
    resets: Any,
    readout: Any,
) -> Any:
    return learner.run_sequence(params, carry, xs, ys, loss_fn, mask, resets, readout)


def run(learner: Learner, *arguments: Any) -> Any:
    """`Learner.run_sequence`, compiled once for each loss function and each set of shapes."""
    return _run(learner, *arguments)


def _flatten_snap(learner: SnAp) -> tuple[Any, Static]:
    dynamics = learner.dynamics
    arrays = [*dynamics.weight_index, dynamics.row, dynamics.own_index]
    kept = [array for array in arrays if array is not None]
    host = learner.__dict__.get("host", learner)
    digest = f"{type(host).__name__} {host.cell.digest} {host.structure.digest}"
    return (learner.structure, on_device(kept, dynamics)), Static(host, digest)


def _unflatten_snap(static: Static, children: Any) -> SnAp:
    host: SnAp = static.value
    structure, arrays = children
    view = object.__new__(type(host))
    view.__dict__.update(host.__dict__)
    view.__dict__.update(host=host, structure=structure)
    if isinstance(arrays, list):
        dynamics, rest = host.dynamics, iter(arrays)
        weights = tuple(next(rest) for _ in dynamics.weight_index)
        row = None if dynamics.row is None else next(rest)
        own = None if dynamics.own_index is None else next(rest)
        view.__dict__["dynamics"] = type(dynamics)(host.cell, weights, row, own)
    return view


for kind in (SnAp, RTRL):
    jax.tree_util.register_pytree_node(kind, _flatten_snap, _unflatten_snap)
jax.tree_util.register_pytree_node(
    BPTT,
    lambda learner: ((), Static(learner, f"BPTT {learner.cell.digest}")),
    lambda static, _: static.value,
)
