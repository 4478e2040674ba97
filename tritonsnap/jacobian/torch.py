"""Sparse Jacobians in torch: compressed passes, then one gather per leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from tritonsnap.checks import check_instance, check_integer, generator_of
from tritonsnap.jacobian.evaluation import check_function
from tritonsnap.jacobian.probing import check_probe, split_columns
from tritonsnap.jacobian.projection import (
    JacobianProjection,
    build_projection,
    is_mask_leaf,
)
from tritonsnap.jacobian.rules import Rules
from tritonsnap.jacobian.torch_passes import (
    PASSES,
    TorchArgument,
    each,
    is_sparse,
    kind_of,
    ravel,
)

_ROWS_AT_ONCE = 64


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
        A tree of dicts, lists and tuples like the function's argument (a tuple of such for several
        `argnums`); for a module's parameters ``dict(module.named_parameters())``. Each leaf says
        where the Jacobian ``[m, p]`` in that leaf may be nonzero, with m the size of the output and
        p that of the leaf, flattened: a bool array or tensor, a SciPy or torch sparse matrix,
        ``(rows, cols, shape)`` or a `SparsityPattern`. For a COO leaf p is its number of stored
        entries. Duplicates are ignored. It must be a superset of the true pattern: see
        `verify_projection`.
    keep
        The same, or a part of that tree: which values to return. Values outside the mask are
        zeros, values of the mask outside `keep` are dropped after decompression.
    mode
        ``"row"`` (VJPs), ``"column"`` (JVPs), ``"both"``, or ``"auto"``: per leaf what takes the
        fewest passes.
    order
        See `tritonsnap.sparsity.color_rows`.
    dense_threshold
        A mask of at least this density is not colored: one pass per row, or per column.

    Raises
    ------
    ValueError, TypeError
        If a mask is no pattern or does not fit the others; the message names its path.
    """
    return _in_tensors(
        build_projection(_flatten_masks(mask), _flatten_masks(keep), mode, order, dense_threshold)
    )


def sp_jacrev(
    f: Callable[..., Any],
    projection: JacobianProjection,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
    format: str = "coo",
) -> Callable[..., Any]:
    """Differentiate `f` as `torch.func.jacrev` does, in as many passes as `projection` has colors.

    Parameters
    ----------
    f
        A function whose output is a tensor or a tree of tensors; its leaves, flattened one after
        the other in tree order, are the m rows of the Jacobian.
    projection
        What `make_jacobian_projection` returned, or loaded. Its index tensors are on the CPU;
        ``projection.convert(lambda array: array.cuda())`` saves moving them in every call.
    argnums, has_aux
        As in `torch.func.jacrev`.
    holomorphic
        Whether `f` maps complex tensors to complex ones by a holomorphic function; the result is
        then its complex derivative. Otherwise outputs must be real, and a complex leaf gets
        ``df/dRe + i df/dIm``, as autograd has it.
    allow_int
        Whether integer leaves may be among the arguments; their Jacobians are zero.
    chunk_size
        How many passes run at once; None for all.
    format
        ``"coo"``: a tree like the argument of COO tensors ``[m, p]`` (not coalesced: canonical
        order is by column); ``"data"``: of their values alone ``[nnz]`` (use it under `vmap`);
        ``"dense"``: exactly what `torch.func.jacrev` returns.

    Returns
    -------
    A function of the arguments of `f` that returns the Jacobian, or ``(jacobian, aux)``. Where the
    projection has column colors, `f` needs a JVP. With a sparse leaf passes run one by one, and the
    projection must be made with ``mode="row"``, for want of rules in torch.

    Raises
    ------
    ValueError, TypeError
        When called: if the argument's tree, a leaf's size or dtype, or the output does not fit.

    Notes
    -----
    A mask that misses a true nonzero silently spoils others: check once with `verify_projection`.
    """
    return PASSES.jacobian_function(
        f,
        _in_tensors(projection),
        argnums,
        has_aux,
        chunk_size,
        format,
        Rules(False, holomorphic, allow_int),
    )


def sp_jacfwd(
    f: Callable[..., Any],
    projection: JacobianProjection,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
    format: str = "coo",
) -> Callable[..., Any]:
    """Differentiate `f` as `torch.func.jacfwd` does: by JVPs only.

    Leaves in another mode are colored anew, by columns: make the projection with ``mode="column"``
    to do that once. Arguments and result are those of `sp_jacrev`; the result has the output's
    dtype, and real inputs may have complex outputs.
    """
    check_instance("projection", projection, JacobianProjection)
    return PASSES.jacobian_function(
        f,
        _in_tensors(projection.with_mode("column")),
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
    """
    check_function(f, projection, has_aux)
    check_integer("probes", probes, 1)
    argument = TorchArgument.of(f, args, {}, argnums, has_aux)
    whole = projection.untruncated()
    rules = Rules(False, holomorphic, True)
    local = PASSES.local(_in_tensors(whole), argument)
    values, output, _ = PASSES.evaluate(local, argument, None, rules)
    rng = generator_of("seed", seed)
    for path, value in argument.values.items():
        if kind_of(value) == "integer":
            continue
        epsilon = max(torch.finfo(leaf.dtype).eps for leaf in (value, *pytree.tree_leaves(output)))
        by_vjp = is_sparse(argument.leaves[path])  # torch has no JVP for these
        shape = (projection.num_rows,) if by_vjp else value.shape
        for _ in range(probes):
            drawn = torch.from_numpy(rng.standard_normal(shape)).to(value.device)
            if by_vjp:
                given: Any = torch.func.vjp(argument.output_of(path), value)
                expected = given[1](drawn.to(given[0].dtype))[0]
                if holomorphic:
                    expected = expected.conj()
            else:
                direction = drawn.to(value.dtype)
                expected = ravel(
                    torch.func.jvp(argument.output_of(path), (value,), (direction,))[1]
                )
            check_probe(
                path,
                whole[path].pattern,
                _to_numpy(values[path]),
                _to_numpy(drawn).reshape(-1),
                _to_numpy(expected),
                epsilon,
                transposed=by_vjp,
            )


def detect_pattern(
    f: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    probes: int = 3,
    seed: int = 0,
) -> Any:
    """Find the pattern of a Jacobian by looking at it in random points.

    Every floating-point tensor among the arguments is redrawn near its value (zeros within 0.1 of
    it, others within 10 %), and the entries that are nonzero, or not finite, in one of the dense
    Jacobians are the pattern.

    For a function that is analytic in its arguments an entry that is not zero everywhere is found
    with probability one. A branch (`where`, `relu`, an `if`) that no probe takes stays unseen: give
    more probes, or add to the result, and check it with `verify_projection`. Costs as much as
    `probes` dense Jacobians, 64 rows at a time.

    Parameters
    ----------
    f, argnums, has_aux
        As for `sp_jacrev`.
    *args
        Arguments near which to look.
    probes
        How many points to look at.
    seed
        Of the points.

    Returns
    -------
    A tree like the argument of `SparsityPattern` ``[m, p]``, to give to
    `make_jacobian_projection`.

    Raises
    ------
    ValueError, TypeError
        If `probes` is no integer of at least 1.
    """
    check_integer("probes", probes, 1)
    generator = torch.Generator().manual_seed(seed)
    rows, cols, num_rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for _ in range(probes):
        near = pytree.tree_map_only(torch.Tensor, lambda tensor: _redrawn(tensor, generator), args)
        argument = TorchArgument.of(f, near, {}, argnums, has_aux)
        for first, block in _row_blocks(argument):
            found = np.nonzero(block)
            rows.append(found[0] + first)
            cols.append(found[1])
            num_rows = first + len(block)
    sizes = [value.numel() for value in argument.values.values()]
    patterns = split_columns(np.concatenate(rows), np.concatenate(cols), num_rows, sizes)
    return argument.unflatten(dict(zip(argument.values, patterns, strict=True)))


def _row_blocks(argument: TorchArgument) -> Iterator[tuple[int, NDArray[Any]]]:
    """The dense Jacobian in all values, some rows at a time, each block after its first row."""
    values = argument.values
    inexact = [path for path, value in values.items() if kind_of(value) != "integer"]
    given: Any = torch.func.vjp(
        lambda *given: ravel(argument.call(dict(zip(inexact, given, strict=True)))[0]),
        *(values[path] for path in inexact),
    )
    output, pullback = given
    ids = torch.arange(output.numel(), device=output.device)
    for first in range(0, len(ids), _ROWS_AT_ONCE):
        chunk = ids[first : first + _ROWS_AT_ONCE]
        pulled = each(
            lambda row: pullback((ids == row).to(output.dtype)),
            chunk,
            None,
            one_by_one=argument.has_sparse_leaf,
        )
        of_leaf = dict(zip(inexact, pulled, strict=True))
        parts = [
            _to_numpy(of_leaf[path]).reshape(len(chunk), value.numel())
            if path in of_leaf
            else np.zeros((len(chunk), value.numel()))
            for path, value in values.items()
        ]
        yield first, np.concatenate(parts, axis=1)


def _redrawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor near another, at random; the same for integers."""
    if kind_of(tensor) == "integer":
        return tensor
    if is_sparse(tensor):
        values = _redrawn(tensor._values(), generator)
        return torch.sparse_coo_tensor(
            tensor._indices(), values, tensor.shape, is_coalesced=tensor.is_coalesced()
        )
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    factor = (0.1 * noise).to(tensor.device)
    values = tensor.detach()
    return torch.where(values == 0, factor, values * (1 + factor)).to(tensor.dtype)


def _in_tensors(projection: JacobianProjection) -> JacobianProjection:
    check_instance("projection", projection, JacobianProjection)

    def tensor(array: Any) -> torch.Tensor:
        return array if isinstance(array, torch.Tensor) else torch.tensor(np.asarray(array))

    leaves = projection.convert(tensor).leaves
    # int64 coordinates are what sparse tensors and index_put take without a copy.
    return JacobianProjection(
        {path: replace(leaf, coordinates=leaf.coordinates.long()) for path, leaf in leaves.items()}
    )


def _flatten_masks(masks: Any) -> list[tuple[str, Any]]:
    found, _ = pytree.tree_flatten_with_path(masks, is_leaf=is_mask_leaf)
    return [(pytree.keystr(path), leaf) for path, leaf in found if leaf is not None]


def _to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    precise = torch.complex128 if tensor.is_complex() else torch.float64
    array: NDArray[Any] = tensor.detach().cpu().to(precise).resolve_conj().numpy()
    return array
