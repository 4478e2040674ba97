"""JAX primitives over plans: batching, differentiation and lowering, given once for all ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Implementation = Callable[..., tuple[Any, ...]]


class PlanPrimitive:
    """A primitive whose operands have leading batch axes, and a structure without.

    Parameters
    ----------
    name
        The primitive's name in a jaxpr.
    implementation
        ``implementation(structure, *operands, **params) -> tuple of arrays`` in jax.numpy, whose
        operands may have any leading axes that broadcast with each other.
    """

    def __init__(self, name: str, implementation: Implementation) -> None:
        self.implementation = implementation
        self.primitive = primitive = Primitive(f"tritonsnap_{name}")
        primitive.multiple_results = True
        primitive.def_impl(jax.jit(self._run, static_argnames=_STATIC))
        primitive.def_abstract_eval(self._abstract)
        mlir.register_lowering(primitive, mlir.lower_fun(self._run, multiple_results=True))
        batching.primitive_batchers[primitive] = self._batch
        ad.primitive_jvps[primitive] = self._jvp

    def __call__(
        self, structure: Any, operands: Sequence[Any], axes: Sequence[int], **params: Any
    ) -> tuple[Any, ...]:
        """Bind the primitive.

        Parameters
        ----------
        structure
            A pytree of index arrays: a plan or a factor structure.
        operands
            Arrays with leading batch axes.
        axes
            For each operand how many of its axes are not batch.
        """
        leaves, tree = jax.tree_util.tree_flatten(structure)
        outputs = self.primitive.bind(
            *operands, *leaves, tree=tree, axes=tuple(axes), params=tuple(sorted(params.items()))
        )
        return tuple(outputs)

    def _run(self, *args: Any, tree: Any, axes: tuple[int, ...], params: Any) -> tuple[Any, ...]:
        structure = jax.tree_util.tree_unflatten(tree, args[len(axes) :])
        return self.implementation(structure, *args[: len(axes)], **dict(params))

    def _abstract(self, *args: Any, **static: Any) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args]
        outputs = jax.eval_shape(partial(self._run, **static), *shapes)
        return [jax.core.ShapedArray(output.shape, output.dtype) for output in outputs]

    def _batch(
        self, args: Sequence[Any], dims: Sequence[Any], *, tree: Any, axes: Any, params: Any
    ) -> tuple[Any, Any]:
        operands, leaves = args[: len(axes)], args[len(axes) :]
        if any(dim is not None for dim in dims[len(axes) :]):
            raise ValueError("`plan` must not be mapped over by vmap: give its axis as None")
        lead = max(
            operand.ndim - own - (dim is not None)
            for operand, own, dim in zip(operands, axes, dims, strict=False)
        )
        moved = []
        for operand, own, dim in zip(operands, axes, dims, strict=False):
            if dim is not None:  # the mapped axis goes before all batch axes of all operands
                operand = jnp.moveaxis(operand, dim, 0)
                missing = lead - (operand.ndim - 1 - own)
                operand = operand.reshape(operand.shape[0], *(1,) * missing, *operand.shape[1:])
            moved.append(operand)
        outputs = self.primitive.bind(*moved, *leaves, tree=tree, axes=axes, params=params)
        return outputs, [0] * len(outputs)

    def _jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any, axes: Any, params: Any
    ) -> tuple[Any, Any]:
        num = len(axes)
        leaves = primals[num:]

        def run(*operands: Any) -> tuple[Any, ...]:
            return self._run(*operands, *leaves, tree=tree, axes=axes, params=params)

        instantiated = [ad.instantiate_zeros(tangent) for tangent in tangents[:num]]
        return jax.jvp(run, tuple(primals[:num]), tuple(instantiated))


_STATIC = ("tree", "axes", "params")
