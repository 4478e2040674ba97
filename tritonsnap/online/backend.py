"""The few things that no array standard has: scan, and derivatives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tritonsnap.arrays import Library, library_of, namespace_of
from tritonsnap.online.trees import map_tree

P = ParamSpec("P")
R = TypeVar("R")


def untracked(function: Callable[P, R]) -> Callable[P, R]:
    """A function during which torch records no graph: gradients go through the influence."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch")
        with nullcontext() if torch is None else torch.no_grad():
            return function(*args, **kwargs)

    return run


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, *, reverse: bool = False
) -> tuple[Any, Any]:
    """Run ``carry, y = body(carry, x)`` over the first axis of the leaves of `xs`.

    As `jax.lax.scan`; a loop in the other libraries. With `reverse` it goes from the last entry to
    the first. Returns the last carry and the stacked `y`, each at the place of its `x`.
    """
    leaves: list[Any] = []
    map_tree(leaves.append, xs)
    if library_of(leaves[0]) == "jax":
        from jax import lax

        return lax.scan(body, carry, xs, reverse=reverse)
    outputs = []
    length = leaves[0].shape[0]
    for step in range(length - 1, -1, -1) if reverse else range(length):
        carry, y = body(carry, map_tree(lambda leaf, step=step: leaf[step], xs))
        outputs.append(y)
    xp = namespace_of(leaves[0])
    ordered = outputs[::-1] if reverse else outputs
    return carry, map_tree(lambda *rows: xp.stack(rows), *ordered) if outputs else None


def matmul(one: Any, other: Any) -> Any:
    """Products of matrices at the full precision of their dtype, on a GPU too."""
    if library_of(one, other) == "jax":
        from jax import lax

        return namespace_of(one).matmul(one, other, precision=lax.Precision.HIGHEST)
    return one @ other


def product_over_time(weights: Any, sources: Any) -> Any:
    """[batch, G, C]: the sum over time of ``weights[t] sources[t]^T`` for each row of the batch.

    Parameters
    ----------
    weights : [K, batch, G]
    sources : [K, batch, C]
    """
    xp = namespace_of(weights, sources)
    if library_of(weights) == "jax":  # XLA transposes rows faster than single numbers
        from jax import lax

        weights, sources = xp.swapaxes(weights, 0, 1), xp.swapaxes(sources, 0, 1)
        dimensions = (((1,), (1,)), ((0,), (0,)))
        return lax.dot_general(weights, sources, dimensions, precision=lax.Precision.HIGHEST)
    return xp.moveaxis(weights, 0, -1) @ xp.moveaxis(sources, 0, 1)


def sum_batch(array: Any) -> Any:
    """Sum over the first axis; in JAX written out, where XLA's reduction is slow."""
    if library_of(array) == "jax":
        from tritonsnap.ops.influence_gradient.jax import sum_rows

        return sum_rows(array, 1)
    return array.sum(axis=0)


def reset_rows(values: Any, reset: Any) -> Any:
    """Values [batch, ...] with the rows in `reset` [batch] zeroed, NaN or not."""
    if reset is None:
        return values
    return zero_where(reset.reshape(-1, *(1,) * (values.ndim - 1)), values)


def zero_where(condition: Any, values: Any) -> Any:
    """Values with zeros where a condition holds, NaN or not."""
    xp = namespace_of(values)
    return xp.where(condition, xp.zeros_like(values), values)


def index_like(values: Any, index: Any) -> Any:
    """An index array in the form that the library of `values` indexes with."""
    if isinstance(values, np.ndarray) or not isinstance(index, np.ndarray):
        return index
    xp = namespace_of(values)
    return xp.asarray(index.astype(np.int64)) if hasattr(values, "requires_grad") else index


def take(values: Any, index: Any, axis: int = -1) -> Any:
    """Entries along a (negative) axis at an index array of any shape, all of them in bounds."""
    if library_of(values) == "jax":
        from tritonsnap.ops.masked_dsmm.jax import take as take_in_bounds

        return take_in_bounds(values, namespace_of(values).asarray(index), axis)
    return values[(..., index_like(values, index), *(slice(None),) * (-axis - 1))]


def take_or_zero(values: Any, index: Any, axis: int = -1) -> Any:
    """As `take`; an index one past the last gives zero."""
    xp = namespace_of(values)
    shape = list(values.shape)
    shape[axis] = 1
    return take(xp.concat([values, xp.zeros(shape, dtype=values.dtype)], axis=axis), index, axis)


def add_to_first(block: Any, rows: Any) -> Any:
    """`block` [..., W] with `rows` [...] added to its first column; in place where that can be."""
    if library_of(block) == "jax":
        return block.at[..., 0].add(rows)
    block[..., 0] += rows
    return block


def transforms(library: Library) -> Any:
    """Where `vmap`, `vjp` and `jvp` are: `jax`, or `torch.func`."""
    if library == "jax":
        import jax

        return jax
    import torch

    return torch.func


def derivative(function: Callable[[Any], dict[str, Any]], at: Any) -> dict[str, Any]:
    """The derivative of an elementwise function, by one JVP (JAX and torch)."""
    xp = namespace_of(at)
    ones = xp.ones_like(at)
    changes: dict[str, Any] = transforms(library_of(at)).jvp(function, (at,), (ones,))[1]
    return changes


def differentiate_loss(
    loss_fn: Callable[..., Any], readout: Any, state: Any, y: Any, weight: Any
) -> tuple[Any, Any, Any]:
    """The weighted sum of the losses, and its gradients in the state and the readout.

    Parameters
    ----------
    loss_fn
        ``loss_fn(state, y)``, or ``loss_fn(readout, state, y)`` where `readout` is not None.
    readout
        A tree of arrays, or None.
    state : [..., rows]
        The state.
    y : [..., ...]
        The target.
    weight : [...] or None
        What each loss is multiplied by; None for ones.

    Raises
    ------
    TypeError
        If the arrays are NumPy's and `loss_fn` has no method `gradients`.
    ValueError
        If the losses have not the shape [...].
    """
    if hasattr(loss_fn, "gradients") and readout is not None:
        losses, delta, readout_gradient = loss_fn.gradients(readout, state, y, weight)
        weighted = losses if weight is None else _weighted(losses, weight)
        return weighted.sum(), delta, readout_gradient
    library = library_of(state)

    def total(state: Any, readout: Any) -> Any:
        losses = loss_fn(state, y) if readout is None else loss_fn(readout, state, y)
        if tuple(losses.shape) != tuple(state.shape[:-1]):
            raise ValueError(
                f"`loss_fn` must return losses of shape {list(state.shape[:-1])}, "
                f"got {list(losses.shape)}"
            )
        return (losses if weight is None else _weighted(losses, weight)).sum()

    if library == "jax":
        import jax

        loss, (delta, readout_gradient) = jax.value_and_grad(total, argnums=(0, 1))(state, readout)
        return loss, delta, readout_gradient
    if library == "torch":
        return _torch_gradients(total, state, readout)
    raise TypeError(
        "NumPy cannot differentiate `loss_fn`: give one with a method `gradients`, "
        "such as tritonsnap.Readout, and its parameters as `readout`"
    )


def _torch_gradients(total: Callable[..., Any], state: Any, readout: Any) -> tuple[Any, Any, Any]:
    import torch

    if torch.compiler.is_compiling():  # which follows no tensor that begins to be tracked
        from torch.func import grad_and_value

        argnums = (0,) if readout is None else (0, 1)
        gradients, loss = grad_and_value(total, argnums)(state, readout)
        return loss, gradients[0], None if readout is None else gradients[1]
    leaves: list[Any] = []

    def tracked(value: Any) -> Any:
        leaf = value.detach()
        leaf = (leaf.clone() if leaf.is_inference() else leaf).requires_grad_()
        leaves.append(leaf)
        return leaf

    with torch.inference_mode(False), torch.enable_grad():
        loss = total(tracked(state), map_tree(tracked, readout))
        gradients = iter(torch.autograd.grad(loss, leaves, allow_unused=True))
    filled = (
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    )
    return loss.detach(), next(filled), map_tree(lambda _: next(filled), readout)


def _weighted(losses: Any, weight: Any) -> Any:
    """Losses times weights; a loss of weight zero counts as zero, even where it is NaN."""
    xp = namespace_of(losses)
    return xp.where(weight != 0, losses * weight, xp.zeros_like(losses))
