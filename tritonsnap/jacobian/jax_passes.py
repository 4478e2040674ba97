"""The passes of a sparse Jacobian in JAX: VJPs by row color, JVPs by column color."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO

from tritonsnap.jacobian.projection import JacobianProjection, argument_numbers, check_aux
from tritonsnap.jacobian.rules import Kind, Rules
from tritonsnap.ops.gather_compressed.jax import gather_compressed
from tritonsnap.sparsity.compression import Projection

_LARGEST_CONSTANT = 1 << 16


@dataclass(frozen=True)
class Argument:
    """A call of `f`, with the arguments to differentiate in flattened to named arrays."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    treedef: Any
    leaves: Mapping[str, Any]
    values: Mapping[str, jax.Array]  # of a BCOO leaf, its stored values

    @classmethod
    def of(
        cls,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        argnums: int | Sequence[int],
        has_aux: bool,
    ) -> Argument:
        """Flatten the arguments that `argnums` names."""
        numbers = argument_numbers(argnums, len(args))
        single = isinstance(argnums, int)
        selected = args[numbers[0]] if single else tuple(args[number] for number in numbers)
        found, treedef = jax.tree_util.tree_flatten_with_path(selected, is_leaf=is_bcoo)
        leaves = {jax.tree_util.keystr(path): leaf for path, leaf in found}
        values = {
            path: jnp.asarray(leaf.data if is_bcoo(leaf) else leaf) for path, leaf in leaves.items()
        }
        position = numbers[0] if single else numbers
        return cls(f, args, kwargs, position, has_aux, treedef, leaves, values)

    def unflatten(self, leaves: Mapping[str, Any]) -> Any:
        """A tree like the argument, with other leaves."""
        return jax.tree.unflatten(self.treedef, [leaves[path] for path in self.leaves])

    def call(self, changed: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        """Output and aux of `f` with some of the values changed."""
        values = {**self.values, **changed}
        selected = self.unflatten(
            {
                path: BCOO(
                    (values[path], leaf.indices),
                    shape=leaf.shape,
                    indices_sorted=leaf.indices_sorted,
                    unique_indices=leaf.unique_indices,
                )
                if is_bcoo(leaf)
                else values[path]
                for path, leaf in self.leaves.items()
            }
        )
        args = list(self.args)
        if isinstance(self.argnums, int):
            args[self.argnums] = selected
        else:
            for number, argument in zip(self.argnums, selected, strict=True):
                args[number] = argument
        result = self.f(*args, **self.kwargs)
        return check_aux(result) if self.has_aux else (result, None)

    def folds_cheaply(self, size: int) -> bool:
        """Whether XLA may fold constant seeds of this many entries into `f` while it compiles.

        It saves time in every call, but folding into a contraction with a constant matrix takes
        many seconds: so no contraction may be in `f`.
        """
        if size > _LARGEST_CONSTANT or not any(
            isinstance(value, jax.core.Tracer) for value in self.values.values()
        ):
            return False
        operations = str(jax.make_jaxpr(lambda: ravel(self.call({})[0]))())
        return not any(name in operations for name in ("dot_general", "conv_general"))

    def output_of(self, path: str) -> Callable[[jax.Array], Any]:
        """The output as a function of one value."""
        return lambda value: self.call({path: value})[0]


def evaluate(
    projection: JacobianProjection, argument: Argument, chunk_size: int | None, rules: Rules
) -> tuple[dict[str, jax.Array], Any, Any]:
    """The Jacobian's values per leaf, the output of `f`, and its aux."""
    projection.check_leaves({path: value.size for path, value in argument.values.items()})
    for path, value in argument.values.items():
        rules.check_input(path, kind_of(value), value.dtype)
    inexact = [path for path, value in argument.values.items() if kind_of(value) != "integer"]
    by_rows: dict[str, jax.Array] = {}
    output, aux = None, None
    for paths in projection.row_groups(inexact):
        pulled, output, aux = _pull(projection, argument, paths, chunk_size, rules)
        by_rows |= pulled
    if output is None:
        output, aux = argument.call({})
        _check_output(projection, output, rules)
    dtype = jnp.result_type(*jax.tree.leaves(output))
    values = {}
    for path, value in argument.values.items():
        leaf = projection[path]
        parts = [by_rows[path]] if path in by_rows else []
        if path in inexact and leaf.compression.columns is not None:
            pushed = _push(leaf, argument, path, chunk_size, rules)
            parts.append(pushed if rules.forward else pushed.astype(value.dtype))
        if leaf.compression.mode == "both" and parts:
            parts = [jnp.concatenate([part.reshape(-1) for part in parts])[None]]
        if parts:
            values[path] = gather_compressed(parts[0], leaf)
        else:  # an integer leaf, or an empty mask
            zero = value.dtype if path in inexact and not rules.forward else dtype
            values[path] = jnp.zeros(leaf.pattern.nnz, zero)
    return values, output, aux


def _pull(
    projection: JacobianProjection,
    argument: Argument,
    paths: Sequence[str],
    chunk_size: int | None,
    rules: Rules,
) -> tuple[dict[str, jax.Array], Any, Any]:
    """One VJP per row color, in all leaves of a group at once: ``[colors, p]`` each."""
    output, pullback, aux = jax.vjp(
        lambda *values: argument.call(dict(zip(paths, values, strict=True))),
        *(argument.values[path] for path in paths),
        has_aux=True,
    )
    _check_output(projection, output, rules)
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


def _push(
    leaf: Projection, argument: Argument, path: str, chunk_size: int | None, rules: Rules
) -> jax.Array:
    """One JVP per column color: ``[colors, m]``."""
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
    compressed: jax.Array = _each_color(derivative, argument, columns, num_colors, chunk_size)
    return compressed


def _each_color(
    function: Callable[[jax.Array], Any],
    argument: Argument,
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


def _check_output(projection: JacobianProjection, output: Any, rules: Rules) -> None:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(output)]
    for leaf in leaves:
        rules.check_output(kind_of(leaf), leaf.dtype)
    projection.check_output(sum(leaf.size for leaf in leaves))


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
