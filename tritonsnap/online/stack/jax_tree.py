"""Learners and chunks of stacks as JAX pytrees: their index arrays are operands."""

from __future__ import annotations

import copy
from typing import Any

import jax

from tritonsnap.online.chunk_structure import map_arrays
from tritonsnap.online.jax_sequence import places_of, view_of, with_places
from tritonsnap.online.stack.bptt import StackBPTT
from tritonsnap.online.stack.crossing import Crossing
from tritonsnap.online.stack.exact_structure import ExactChunking
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.stack.learner import StackLearner
from tritonsnap.online.stack.snap import StackRTRL, StackSnAp
from tritonsnap.plan.jax_tree import Static, on_device


def _flatten(learner: StackLearner) -> tuple[Any, Static]:
    host = learner.__dict__.get("host", learner)
    crossings = list(learner.crossings) if isinstance(learner, StackSnAp) else []
    places = [
        places_of(layer) if isinstance(layer, FeedForward) else [] for layer in learner.stack.layers
    ]
    settings = [getattr(host, name, None) for name in ("order", "influence_dtype")]
    digest = f"{type(host).__name__} {host.stack.digest} {settings}"
    return (list(learner.learners), crossings, places), Static(host, digest)


def _unflatten(static: Static, children: Any) -> StackLearner:
    learners, crossings, places = children
    view: Any = view_of(static.value)
    view.__dict__.update(learners=tuple(learners), crossings=tuple(crossings))
    if isinstance(places, list):  # else a placeholder of a tree transformation
        layers: list[Any] = list(view.cell.layers)
        for number, (layer, learner, own) in enumerate(zip(layers, learners, places, strict=True)):
            if learner is not None:
                layers[number] = learner.cell
            elif isinstance(layer, FeedForward):
                layers[number] = with_places(layer, own)
        view.cell = copy.copy(view.cell)
        object.__setattr__(view.cell, "layers", tuple(layers))
    return view


def _flatten_chunking(chunking: ExactChunking) -> tuple[Any, Static]:
    host = chunking.host or chunking
    arrays: list[Any] = []
    map_arrays(arrays.append, chunking.parts)
    return (on_device(arrays, chunking),), Static(host, host.digest)


def _unflatten_chunking(static: Static, children: Any) -> ExactChunking:
    host: ExactChunking = static.value
    (arrays,) = children
    if not isinstance(arrays, list):  # a placeholder of a tree transformation
        return host
    return host.with_arrays(iter(arrays))


jax.tree_util.register_pytree_node(ExactChunking, _flatten_chunking, _unflatten_chunking)
jax.tree_util.register_dataclass(Crossing, ["products", "plan"], ["sources"])
for kind in (StackSnAp, StackRTRL, StackBPTT):
    jax.tree_util.register_pytree_node(kind, _flatten, _unflatten)
