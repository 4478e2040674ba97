"""Sparse Jacobians in JAX: compressed passes, then one gather per leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tritonsnap.checks import check_instance, check_integer, generator_of
from tritonsnap.jacobian.evaluation import check_function
from tritonsnap.jacobian.jax_passes import PASSES, JaxArgument, kind_of, ravel
from tritonsnap.jacobian.probing import check_probe, split_columns
from tritonsnap.jacobian.projection import (
    JacobianProjection,
    build_projection,
    is_mask_leaf,
)
from tritonsnap.jacobian.rules import Rules
from tritonsnap.sparsity.compression import Projection


def _arrays_of(leaf: Projection) -> tuple[Any, ...]:
    return leaf.index, leaf.coordinates, leaf.row_colors, leaf.column_colors, leaf.runs


jax.tree_util.register_pytree_node(
    Projection,
    lambda leaf: (_arrays_of(leaf), leaf.compression),
    lambda compression, arrays: Projection(compression, *arrays),
)
# All arrays at one level: flattening costs time in every call.
jax.tree_util.register_pytree_node(
    JacobianProjection,
    lambda projection: (
        tuple(_arrays_of(leaf) for leaf in projection.leaves.values()),
        tuple((path, leaf.compression) for path, leaf in projection.leaves.items()),
    ),
    lambda static, leaves: JacobianProjection(
        {
            path: Projection(compression, *arrays)
            for (path, compression), arrays in zip(static, leaves, strict=True)
        }
    ),
)


def make_jacobian_projection(
    mask: Any,
    *,
    keep: Any = None,
    mode: str = "auto",
    order: str = "largest_first",
    dense_threshold: float = 0.8,
) -> JacobianProjection:
    """Color the pattern of a Jacobian, once, for many calls of `sp_jacrev`.

    Parameters
    ----------
    mask
        A pytree like the function's argument (a tuple of such for several `argnums`). Each leaf
        says where the Jacobian ``[m, p]`` in that leaf may be nonzero, with m the size of the
        output and p that of the leaf, flattened: a bool array, a SciPy sparse matrix, a BCOO,
        ``(rows, cols, shape)`` or a `SparsityPattern`. For a BCOO leaf p is its number of stored
        entries. Duplicates and padding are ignored. It must be a superset of the true pattern:
        see `verify_projection`.
    keep
        The same, or a part of that tree: which values to return. Values outside the mask are
        zeros, values of the mask outside `keep` are dropped after decompression.
    mode
        ``"row"`` (VJPs), ``"column"`` (JVPs), ``"both"``, or ``"auto"``: per leaf what takes the
        fewest passes. Of equally many the VJPs, but for a function of one leaf whose products are
        all ``matrix @ vector``: in a program for the CPU that holds the projection it takes JVPs.
    order
        See `tritonsnap.sparsity.color_rows`.
    dense_threshold
        A mask of at least this density is not colored: one pass per row, or per column.

    Raises
    ------
    ValueError, TypeError
        If a mask is no pattern, is traced, or does not fit the others; the message names its path.
    """
    return build_projection(
        _flatten_masks("mask", mask), _flatten_masks("keep", keep), mode, order, dense_threshold
    ).convert(_concrete)


def sp_jacrev(
    f: Callable[..., Any],
    projection: JacobianProjection,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
    format: str = "bcoo",
) -> Callable[..., Any]:
    """Differentiate `f` as `jax.jacrev` does, in as many passes as `projection` has colors.

    Parameters
    ----------
    f
        A function whose output is an array or a pytree; its leaves, flattened one after the other
        in tree order, are the m rows of the Jacobian.
    projection
        What `make_jacobian_projection` returned, or loaded. Its index arrays become constants of a
        jitted program that closes over it; passed as an argument they do not.
    argnums, has_aux, holomorphic, allow_int
        As in `jax.jacrev`. Integer leaves have zero Jacobians.
    chunk_size
        How many passes run at once; None for all.
    format
        ``"bcoo"``: a pytree like the argument of BCOO matrices ``[m, p]``; ``"data"``: of their
        values alone ``[nnz]``, in canonical order (use it under `vmap`); ``"dense"``: exactly what
        `jax.jacrev` returns.

    Returns
    -------
    A function of the arguments of `f` that returns the Jacobian, or ``(jacobian, aux)``. Where the
    projection has column colors, `f` needs a JVP.

    Raises
    ------
    ValueError, TypeError
        When called: if the argument's tree, a leaf's size or dtype, or the output does not fit.

    Notes
    -----
    A mask that misses a true nonzero silently spoils others: check once with `verify_projection`.
    """
    return PASSES.jacobian_function(
        f, projection, argnums, has_aux, chunk_size, format, Rules(False, holomorphic, allow_int)
    )


def sp_jacfwd(
    f: Callable[..., Any],
    projection: JacobianProjection,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
    format: str = "bcoo",
) -> Callable[..., Any]:
    """Differentiate `f` as `jax.jacfwd` does: by JVPs only, whatever the mode of the projection.

    For functions that have no VJP. Leaves in another mode are colored anew, by columns: make the
    projection with ``mode="column"`` to do that once. Arguments and result are those of
    `sp_jacrev`; the result has the output's dtype, as in `jax.jacfwd`.
    """
    check_instance("projection", projection, JacobianProjection)
    return PASSES.jacobian_function(
        f,
        projection.with_mode("column"),
        argnums,
        has_aux,
        chunk_size,
        format,
        Rules(True, holomorphic, False),
    )


def verify_projection(
    f: Callable[..., Any],
    projection: JacobianProjection,
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    probes: int = 1,
    seed: int = 0,
) -> None:
    """Check that the masks of a projection hold every nonzero of a Jacobian.

    Compares the JVP of `f` in a random direction with the sparse Jacobian times that direction. A
    nonzero that the mask lacks makes them differ with probability one.

    Parameters
    ----------
    f, projection, argnums, has_aux, holomorphic
        As for `sp_jacrev`.
    *args
        Arguments at which to check. The nonzeros there are checked, not those elsewhere.
    probes
        How many directions to try.
    seed
        Of the directions.

    Raises
    ------
    ValueError
        If they differ; the message names the leaf and the rows.
    TypeError
        If an argument is traced: the check reads numbers.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        raise TypeError("`verify_projection` reads numbers: call it outside of jit, grad and vmap")
    check_function(f, projection, has_aux)
    check_integer("probes", probes, 1)
    argument = JaxArgument.of(f, args, {}, argnums, has_aux)
    whole = projection.untruncated()
    values, output, _ = PASSES.evaluate(whole, argument, None, Rules(False, holomorphic, True))
    rng = generator_of("seed", seed)
    for path, value in argument.values.items():
        if kind_of(value) == "integer":
            continue
        epsilon = max(
            float(jnp.finfo(leaf.dtype).eps)  # type: ignore[no-untyped-call]
            for leaf in (value, *jax.tree.leaves(output))
        )
        for _ in range(probes):
            direction = jnp.asarray(rng.standard_normal(value.shape), value.dtype)
            change = jax.jvp(argument.output_of(path), (value,), (direction,))[1]
            check_probe(
                path,
                whole[path].pattern,
                np.asarray(values[path]),
                np.asarray(direction).reshape(-1),
                np.asarray(ravel(change)),
                epsilon,
            )


def detect_pattern(
    f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Any:
    """Find the pattern of a Jacobian from the operations that `f` consists of.

    The asdex library reads them from the jaxpr. So the pattern holds for all values of the
    arguments, and is a superset of the true one where an operation is not known in detail.

    Parameters
    ----------
    f, argnums, has_aux
        As for `sp_jacrev`.
    *args
        Arguments of the right shapes and dtypes; their values do not matter.

    Returns
    -------
    A pytree like the argument of `SparsityPattern` ``[m, p]``, to give to
    `make_jacobian_projection`.

    Raises
    ------
    ImportError
        If asdex is not installed, or not for this JAX; the message names the pip command.
    NotImplementedError, ValueError
        If asdex cannot follow an operation of `f`, such as `fft`, or an index that depends on x.
    """
    try:
        import asdex
    except ImportError as error:
        raise ImportError(
            f"asdex cannot be imported ({error}); run: pip install 'tritonsnap[detect]'"
        ) from error
    argument = JaxArgument.of(f, args, {}, argnums, has_aux)
    paths = list(argument.values)
    found = asdex.jacobian_sparsity(
        lambda *values: ravel(argument.call(dict(zip(paths, values, strict=True)))[0]),
        *argument.values.values(),
        argnums=tuple(range(len(paths))),
    )
    sizes = [value.size for value in argument.values.values()]
    patterns = split_columns(np.asarray(found.rows), np.asarray(found.cols), found.m, sizes)
    return argument.unflatten(dict(zip(paths, patterns, strict=True)))


def _flatten_masks(name: str, masks: Any) -> list[tuple[str, Any]]:
    found, _ = jax.tree_util.tree_flatten_with_path(masks, is_leaf=is_mask_leaf)
    for path, leaf in found:
        if any(isinstance(part, jax.core.Tracer) for part in jax.tree.leaves(leaf)):
            raise TypeError(
                f"`{name}` at leaf {jax.tree_util.keystr(path)!r} is traced: make the projection "
                "outside of jit and pass it in"
            )
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]


def _concrete(array: Any) -> jax.Array:
    if np.max(array, initial=0) > np.iinfo(np.int32).max and (
        jax.dtypes.canonicalize_dtype(np.int64) != np.int64
    ):
        raise ValueError(
            "the compressed Jacobian has over 2^31 entries: its indices need `jax_enable_x64`"
        )
    with jax.ensure_compile_time_eval():
        return jnp.asarray(array)
