"""The passes of a sparse Jacobian in JAX: VJPs by row color, JVPs by column color."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO
from jax.extend.core import ClosedJaxpr, Jaxpr

from tritonsnap.jacobian.argument import Argument
from tritonsnap.jacobian.evaluation import Passes
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.rules import Kind, Rules
from tritonsnap.ops.gather_compressed.jax import gather_compressed
from tritonsnap.plan.jax_target import default_target
from tritonsnap.sparsity.compression import Projection

_LARGEST_CONSTANT = 1 << 16
_LANES = 8
_JAXPRS = (Jaxpr, ClosedJaxpr)


@dataclass(frozen=True)
class JaxArgument(Argument):
    """An argument of JAX arrays and BCOO matrices."""

    @classmethod
    def _flatten(cls, selected: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        found, treedef = jax.tree_util.tree_flatten_with_path(selected, is_leaf=is_bcoo)
        leaves: dict[str, Any] = {
            jax.tree_util.keystr(path): leaf if is_bcoo(leaf) else jnp.asarray(leaf)
            for path, leaf in found
        }
        values = {path: leaf.data if is_bcoo(leaf) else leaf for path, leaf in leaves.items()}
        return treedef, leaves, values

    def _join(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self.tree, leaves)

    def _with_values(self, path: str, values: Any) -> Any:
        leaf = self.leaves[path]
        if not is_bcoo(leaf):
            return values
        return BCOO(
            (values, leaf.indices),
            shape=leaf.shape,
            indices_sorted=leaf.indices_sorted,
            unique_indices=leaf.unique_indices,
        )

    def folds_cheaply(self, size: int) -> bool:
        """Whether XLA may fold constant seeds of this many entries into `f` while it compiles.

        It saves time in every call, but folding into a contraction with a constant matrix takes
        many seconds: so no contraction may be in `f`.
        """
        if size > _LARGEST_CONSTANT or not self.is_traced:
            return False
        return self.primitives.isdisjoint(("dot_general", "conv_general_dilated"))

    @property
    def is_traced(self) -> bool:
        """Whether it is part of a program, which is worth a closer look at `f`."""
        return any(isinstance(value, jax.core.Tracer) for value in self.values.values())

    @cached_property
    def equations(self) -> list[Any]:
        """The operations that `f` consists of."""
        return list(_equations(jax.make_jaxpr(lambda: ravel(self.call({})[0]))().jaxpr))

    @property
    def primitives(self) -> set[str]:
        """The names of these operations."""
        return {equation.primitive.name for equation in self.equations}

    @property
    def applies_matrices(self) -> bool:
        """Whether `f` is part of a program for the CPU and all its products are matrix @ vector."""
        if not self.is_traced or default_target() != "xla":
            return False
        products = [one for one in self.equations if one.primitive.name == "dot_general"]
        return bool(products) and all(
            one.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
            and one.invars[1].aval.ndim == 1
            for one in products
        )

    def output_of(self, path: str) -> Callable[[jax.Array], Any]:
        """The output as a function of one value."""
        return lambda value: self.call({path: value})[0]


class _JaxPasses(Passes[JaxArgument]):
    """VJPs and JVPs of JAX, in parallel by `jax.vmap`."""

    argument = JaxArgument
    sparse = "bcoo"

    def kind_of(self, value: Any) -> Kind:
        return kind_of(value)

    def size_of(self, value: Any) -> int:
        return int(value.size)

    def cast(self, array: jax.Array, dtype: Any) -> jax.Array:
        return array.astype(dtype)

    def zeros(self, size: int, like: Any) -> jax.Array:
        return jnp.zeros(size, jnp.result_type(*jax.tree.leaves(like)))

    def join(self, parts: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([part.reshape(-1) for part in parts])[None]

    def gather(self, compressed: jax.Array, leaf: Projection) -> jax.Array:
        return gather_compressed(compressed, leaf)

    def local(self, projection: JacobianProjection, argument: JaxArgument) -> JacobianProjection:
        """JVPs in place of as many VJPs, where `f` applies a matrix.

        JVPs apply it to the columns of a matrix, one for each color. VJPs apply the transposed
        matrix, for which XLA on the CPU takes 1.1 to 1.6 times as long.
        """
        if len(projection.leaves) > 1 or projection.leaves.keys() != argument.values.keys():
            return projection
        [(path, leaf)] = projection.leaves.items()
        if (
            isinstance(leaf.row_colors, jax.core.Tracer)  # its index arrays are operands
            or kind_of(argument.values[path]) != "real"
            or not argument.applies_matrices
            or "custom_vjp_call" in argument.primitives
        ):
            return projection
        forward = leaf.compression.by_as_many_columns()
        if forward is None or 2 * forward.num_passes < _LANES:
            return projection
        return JacobianProjection({path: Projection.of(forward).convert(jnp.asarray)})

    def check_output(self, projection: JacobianProjection, output: Any, rules: Rules) -> None:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(output)]
        for leaf in leaves:
            rules.check_output(kind_of(leaf), leaf.dtype)
        projection.check_output(sum(leaf.size for leaf in leaves))

    def pull(
        self,
        projection: JacobianProjection,
        argument: JaxArgument,
        paths: Sequence[str],
        chunk_size: int | None,
        rules: Rules,
    ) -> tuple[dict[str, jax.Array], Any, Any]:
        output, pullback, aux = jax.vjp(
            lambda *values: argument.call(dict(zip(paths, values, strict=True))),
            *(argument.values[path] for path in paths),
            has_aux=True,
        )
        self.check_output(projection, output, rules)
        leaf = projection[paths[0]]
        assert leaf.compression.rows is not None
        unravel = _unraveler(output)
        num_colors = leaf.compression.rows.num_colors
        rows = jnp.asarray(leaf.row_colors)
        compressed = _each_color(
            lambda chosen: pullback(unravel(chosen)), argument, rows, num_colors, chunk_size
        )
        sizes = [argument.values[path].size for path in paths]
        return (
            {
                path: block.reshape(num_colors, size)
                for path, size, block in zip(paths, sizes, compressed, strict=True)
            },
            output,
            aux,
        )

    def push(
        self,
        leaf: Projection,
        argument: JaxArgument,
        path: str,
        chunk_size: int | None,
        rules: Rules,
    ) -> jax.Array:
        assert leaf.compression.columns is not None
        value = argument.values[path]
        columns = jnp.asarray(leaf.column_colors)

        def push(chosen: jax.Array, unit: complex) -> jax.Array:
            seed = jnp.where(chosen, jnp.asarray(unit, value.dtype), 0).reshape(value.shape)
            return ravel(jax.jvp(argument.output_of(path), (value,), (seed,))[1])

        def derivative(chosen: jax.Array) -> jax.Array:
            if kind_of(value) == "complex" and not rules.holomorphic:
                return push(chosen, 1) - 1j * push(chosen, 1j)  # what jax.jacrev returns for C -> R
            return push(chosen, 1)

        num_colors = leaf.compression.columns.num_colors
        compressed: jax.Array
        if chunk_size is None and 2 * num_colors >= _LANES and argument.applies_matrices:
            compressed = _each_color_last(derivative, columns, num_colors)
        else:
            compressed = _each_color(derivative, argument, columns, num_colors, chunk_size)
        return compressed

    def to_sparse(self, values: jax.Array, leaf: Projection) -> BCOO:
        # Canonical order is by column, which BCOO does not call sorted.
        return BCOO(
            (values, jnp.asarray(leaf.coordinates)),
            shape=leaf.pattern.shape,
            indices_sorted=False,
            unique_indices=True,
        )

    def to_dense(
        self,
        values: Mapping[str, jax.Array],
        projection: JacobianProjection,
        argument: JaxArgument,
        output: Any,
        rules: Rules,
    ) -> Any:
        leaves, treedef = jax.tree.flatten(output)
        ends = np.cumsum([leaf.size for leaf in leaves]).tolist()
        matrices = {
            path: jnp.zeros(projection[path].pattern.shape, value.dtype)
            .at[projection[path].coordinates[:, 0], projection[path].coordinates[:, 1]]
            .set(value, mode="promise_in_bounds", unique_indices=True)
            for path, value in values.items()
        }

        def block(leaf: Any, end: int, path: str) -> Any:
            value = argument.values[path]
            shape = (*leaf.shape, *value.shape)
            if kind_of(value) == "integer":
                return jnp.zeros(shape, value.dtype)
            rows = matrices[path][end - leaf.size : end].reshape(shape)
            return rows.astype(leaf.dtype) if rules.forward else rows

        blocks = [
            argument.unflatten({path: block(leaf, end, path) for path in values})
            for leaf, end in zip(leaves, ends, strict=True)
        ]
        return jax.tree.unflatten(treedef, blocks)


PASSES = _JaxPasses()


def _each_color(
    function: Callable[[jax.Array], Any],
    argument: JaxArgument,
    colors: Any,
    num_colors: int,
    chunk_size: int | None,
) -> Any:
    """Stack a function of the lines of one color (bool [lines]) over all colors.

    At most `chunk_size` at once.
    """
    if num_colors == 1:  # a batch of one is slower than none
        return jax.tree.map(lambda array: array[None], function(colors == 0))
    if chunk_size is not None and chunk_size < num_colors:
        ids = jnp.arange(num_colors, dtype=colors.dtype)
        return jax.lax.map(lambda color: function(colors == color), ids, batch_size=chunk_size)
    if not isinstance(colors, jax.core.Tracer) and argument.folds_cheaply(num_colors * colors.size):
        return jax.vmap(function)(np.asarray(colors) == np.arange(num_colors)[:, None])
    return jax.vmap(lambda color: function(colors == color))(
        jnp.arange(num_colors, dtype=colors.dtype)
    )


def _each_color_last(
    function: Callable[[jax.Array], jax.Array], colors: Any, num_colors: int
) -> jax.Array:
    """What `_each_color` returns, computed as a matrix with a column for each color.

    XLA multiplies a matrix by full vectors of columns, and only by such, in half the time.
    """
    padded = -(-num_colors // _LANES) * _LANES
    chosen = colors[:, None] == jnp.arange(padded, dtype=colors.dtype)
    compressed = jax.vmap(function, in_axes=-1, out_axes=-1)(chosen)
    # Without the barrier XLA makes the transposition a part of the product again.
    separate: jax.Array = jax.lax.optimization_barrier(compressed)  # type: ignore[no-untyped-call]
    return separate[:, :num_colors].T


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of those within."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda one: isinstance(one, _JAXPRS)
        ):
            if isinstance(inner, _JAXPRS):
                yield from _equations(getattr(inner, "jaxpr", inner))


def _unraveler(tree: Any) -> Callable[[jax.Array], Any]:
    """Cut a vector into arrays of the shapes and dtypes of `tree`."""
    leaves, treedef = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves])

    def unravel(flat: jax.Array) -> Any:
        parts = [
            flat[end - leaf.size : end].reshape(leaf.shape).astype(leaf.dtype)
            for leaf, end in zip(leaves, ends.tolist(), strict=True)
        ]
        return jax.tree.unflatten(treedef, parts)

    return unravel


def ravel(tree: Any) -> jax.Array:
    """All leaves, flattened, one after the other."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def is_bcoo(leaf: Any) -> bool:
    """Whether a node is a sparse matrix: one leaf, of which the values are differentiated in."""
    return isinstance(leaf, BCOO)


def kind_of(value: Any) -> Kind:
    """Whether an array is integer (or bool), real or complex."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return "complex"
    return "real" if jnp.issubdtype(value.dtype, jnp.inexact) else "integer"
