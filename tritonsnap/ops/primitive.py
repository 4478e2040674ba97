"""JAX primitives over plans: batching, differentiation and lowering, given once for all ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tritonsnap.ops.jax_launch import explained, launch_for
from tritonsnap.plan.jax_target import calls_kernels

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
    groups
        ``groups(num_operands, params)`` gives the sizes of the groups of operands in each of which
        the primitive is linear: then its derivatives are the primitive itself. Without it they
        are those of the implementation.
    adjoint
        ``adjoint(structure, operands, cotangents, params)`` gives the cotangent of the operands
        that are None, where there is something better than the transposed implementation, which
        it says by returning None. They may have more batch axes than the operands.
    kernels
        ``kernels(launch, structure, *operands, **params) -> tuple of arrays or None`` does on a
        GPU by Triton kernels what the implementation does; None where no kernel does.
    reference
        What is differentiated in place of the implementation, for a primitive without `groups`.
    """

    def __init__(
        self,
        name: str,
        implementation: Implementation,
        groups: Callable[[int, dict[str, Any]], list[int]] | None = None,
        adjoint: Callable[..., list[Any] | None] | None = None,
        kernels: Callable[..., tuple[Any, ...] | None] | None = None,
        reference: Implementation | None = None,
    ) -> None:
        self.implementation = implementation
        self.groups = groups
        self.adjoint = adjoint
        self.kernels = kernels
        self.reference = implementation if reference is None else reference
        self.primitive = primitive = Primitive(f"tritonsnap_{name}")
        primitive.multiple_results = True
        primitive.def_impl(jax.jit(primitive.bind, static_argnames=_STATIC))
        primitive.def_abstract_eval(self._abstract)
        mlir.register_lowering(primitive, mlir.lower_fun(self._run, multiple_results=True))
        if kernels is not None:
            for platform in ("cuda", "rocm"):
                mlir.register_lowering(primitive, self._lowering(platform), platform=platform)
        batching.primitive_batchers[primitive] = self._batch
        ad.primitive_jvps[primitive] = self._jvp if groups is None else self._multilinear_jvp
        if groups is not None:
            ad.primitive_transposes[primitive] = self._transpose

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

    def _lowering(self, platform: str) -> Callable[..., Any]:
        """The lowering that calls the kernels on a GPU."""
        launch = launch_for(platform)

        def run(*args: Any, tree: Any, axes: tuple[int, ...], params: Any) -> tuple[Any, ...]:
            assert self.kernels is not None
            structure = jax.tree_util.tree_unflatten(tree, args[len(axes) :])
            found = self.kernels(launch, structure, *args[: len(axes)], **dict(params))
            return self._run(*args, tree=tree, axes=axes, params=params) if found is None else found

        by_kernels = mlir.lower_fun(run, multiple_results=True)
        by_arrays = mlir.lower_fun(self._run, multiple_results=True)

        def rule(context: Any, *args: Any, **static: Any) -> Any:
            if not calls_kernels():
                return by_arrays(context, *args, **static)
            # jax-triton takes the first platform of the whole program for the one it compiles for
            module = context.module_context.replace(platforms=(platform,))
            with explained(platform):
                return by_kernels(context.replace(module_context=module), *args, **static)

        return rule

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
        structure = jax.tree_util.tree_unflatten(tree, primals[num:])

        def run(*operands: Any) -> tuple[Any, ...]:
            return self.reference(structure, *operands, **dict(params))

        instantiated = [ad.instantiate_zeros(tangent) for tangent in tangents[:num]]
        return jax.jvp(run, tuple(primals[:num]), tuple(instantiated))

    def _multilinear_jvp(
        self, primals: Sequence[Any], tangents: Sequence[Any], *, axes: Any, params: Any, tree: Any
    ) -> tuple[Any, Any]:
        assert self.groups is not None
        bind = partial(self.primitive.bind, axes=axes, params=params, tree=tree)
        outputs = bind(*primals)
        total: list[Any] | None = None
        begin = 0
        for size in self.groups(len(axes), dict(params)):
            members = slice(begin, begin + size)
            begin += size
            if all(type(tangent) is ad.Zero for tangent in tangents[members]):
                continue
            along = list(primals)
            along[members] = [ad.instantiate_zeros(tangent) for tangent in tangents[members]]
            term = bind(*along)
            total = term if total is None else [a + b for a, b in zip(total, term, strict=True)]
        assert total is not None  # JAX asks only where there is a tangent
        return outputs, total

    def _transpose(
        self, cotangents: Sequence[Any], *args: Any, tree: Any, axes: Any, params: Any
    ) -> list[Any]:
        known = [one if ad.is_undefined_primal(one) else jnp.asarray(one) for one in args]
        operands, leaves = known[: len(axes)], known[len(axes) :]
        linear = [n for n, one in enumerate(operands) if ad.is_undefined_primal(one)]
        shapes = [operands[n].aval for n in linear]
        given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
        found = None
        if self.adjoint is not None:
            structure = jax.tree_util.tree_unflatten(tree, leaves)
            others = [None if n in linear else one for n, one in enumerate(operands)]
            found = self.adjoint(structure, others, given, dict(params))
        if found is None:

            def run(*unknown: Any) -> tuple[Any, ...]:
                whole = list(operands)
                for n, one in zip(linear, unknown, strict=True):
                    whole[n] = one
                return self._run(*whole, *leaves, tree=tree, axes=axes, params=params)

            avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in shapes]
            found = jax.linear_transpose(run, *avals)(tuple(given))
        result: list[Any] = [None] * len(args)
        for n, aval, cotangent in zip(linear, shapes, found, strict=True):
            result[n] = _sum_to_shape(cotangent, aval.shape)
        return result


def _sum_to_shape(array: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the axes along which `shape` would be broadcast to that of `array`."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    ones = [n for n, size in enumerate(shape) if size == 1 and array.shape[n] != 1]
    return array.sum(axis=tuple(ones), keepdims=True)


_STATIC = ("tree", "axes", "params")
