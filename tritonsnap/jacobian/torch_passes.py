"""The passes of a sparse Jacobian in torch: VJPs by row color, JVPs by column color."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tritonsnap.jacobian.projection import JacobianProjection, argument_numbers, check_aux
from tritonsnap.jacobian.rules import Kind, Rules
from tritonsnap.ops.gather_compressed.torch import gather_compressed
from tritonsnap.sparsity.compression import Projection


@dataclass(frozen=True)
class Argument:
    """A call of `f`, with the arguments to differentiate in flattened to named tensors."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    treespec: Any
    leaves: Mapping[str, Any]
    values: Mapping[str, torch.Tensor]  # of a sparse leaf, its stored values

    @classmethod
    def of(
        cls,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        argnums: int | Sequence[int],
        has_aux: bool,
    ) -> Argument:
        """Flatten the arguments that `argnums` names; what is no tensor in them stays as it is."""
        numbers = argument_numbers(argnums, len(args))
        single = isinstance(argnums, int)
        selected = args[numbers[0]] if single else tuple(args[number] for number in numbers)
        found, treespec = pytree.tree_flatten_with_path(selected)
        leaves = {pytree.keystr(path): leaf for path, leaf in found}
        values = {}
        for path, leaf in leaves.items():
            if isinstance(leaf, torch.Tensor):
                if leaf.layout not in (torch.strided, torch.sparse_coo):
                    raise TypeError(
                        f"leaf {path!r} has layout {leaf.layout}, which torch.func cannot "
                        "differentiate: give a dense or a COO tensor"
                    )
                values[path] = leaf._values() if is_sparse(leaf) else leaf
        position = numbers[0] if single else numbers
        return cls(f, args, kwargs, position, has_aux, treespec, leaves, values)

    @property
    def has_sparse_leaf(self) -> bool:
        """Whether some leaf is sparse: vmap and forward mode have no rules for those."""
        return any(is_sparse(self.leaves[path]) for path in self.values)

    def unflatten(self, leaves: Mapping[str, Any]) -> Any:
        """A tree like the argument, with other tensors."""
        merged = [leaves.get(path, leaf) for path, leaf in self.leaves.items()]
        return pytree.tree_unflatten(merged, self.treespec)

    def call(self, changed: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        """Output and aux of `f` with some of the values changed."""
        selected = self.unflatten(
            {
                path: torch.sparse_coo_tensor(
                    self.leaves[path]._indices(),
                    value,
                    self.leaves[path].shape,
                    is_coalesced=self.leaves[path].is_coalesced(),
                )
                if is_sparse(self.leaves[path])
                else value
                for path, value in changed.items()
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

    def output_of(self, path: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """The output, flattened, as a function of one value."""
        return lambda value: ravel(self.call({path: value})[0])


def evaluate(
    projection: JacobianProjection, argument: Argument, chunk_size: int | None, rules: Rules
) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """The Jacobian's values per leaf, the output of `f`, and its aux."""
    projection.check_leaves({path: value.numel() for path, value in argument.values.items()})
    for path, value in argument.values.items():
        rules.check_input(path, kind_of(value), value.dtype)
    inexact = [path for path, value in argument.values.items() if kind_of(value) != "integer"]
    by_rows: dict[str, torch.Tensor] = {}
    output, aux = None, None
    for paths in projection.row_groups(inexact):
        pulled, output, aux = _pull(projection, argument, paths, chunk_size, rules)
        by_rows |= pulled
    if output is None:
        output, aux = argument.call({})
        _check_output(projection, output, rules)
    first = pytree.tree_leaves(output)[0]
    values = {}
    for path, value in argument.values.items():
        leaf = projection[path]
        parts = [by_rows[path]] if path in by_rows else []
        if path in inexact and leaf.compression.columns is not None:
            pushed = _push(leaf, argument, path, chunk_size, rules)
            parts.append(pushed if rules.forward else pushed.to(value.dtype))
        if leaf.compression.mode == "both" and parts:
            parts = [torch.cat([part.flatten() for part in parts])[None]]
        if parts:
            values[path] = gather_compressed(parts[0], leaf)
        else:  # an integer leaf, or an empty mask
            zero = value if path in inexact and not rules.forward else first
            values[path] = zero.new_zeros(leaf.pattern.nnz)
    return values, output, aux


def _pull(
    projection: JacobianProjection,
    argument: Argument,
    paths: Sequence[str],
    chunk_size: int | None,
    rules: Rules,
) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """One VJP per row color, in all leaves of a group at once: ``[colors, p]`` each."""
    aux = None

    def function(*values: torch.Tensor) -> Any:
        output, own_aux = argument.call(dict(zip(paths, values, strict=True)))
        return (output, own_aux) if argument.has_aux else output

    primals = [argument.values[path] for path in paths]
    output, pullback, *rest = torch.func.vjp(function, *primals, has_aux=argument.has_aux)
    if rest:
        aux = rest[0]
    _check_output(projection, output, rules)
    leaf = projection[paths[0]]
    assert leaf.compression.rows is not None
    unravel = _unraveler(output)
    num_colors = leaf.compression.rows.num_colors

    def pull(color: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pulled = pullback(unravel(leaf.row_colors == color))
        # torch pulls back by the conjugate transpose of a holomorphic function's Jacobian.
        return tuple(part.conj() if rules.holomorphic else part for part in pulled)

    colors = torch.arange(num_colors, dtype=torch.int32, device=leaf.row_colors.device)
    compressed = each(pull, colors, chunk_size, one_by_one=argument.has_sparse_leaf)
    return (
        {
            path: block.reshape(num_colors, primal.numel())
            for path, primal, block in zip(paths, primals, compressed, strict=True)
        },
        output,
        aux,
    )


def _push(
    leaf: Projection, argument: Argument, path: str, chunk_size: int | None, rules: Rules
) -> torch.Tensor:
    """One JVP per column color: ``[colors, m]``."""
    assert leaf.compression.columns is not None
    if argument.has_sparse_leaf:
        raise ValueError(
            f"leaf {path!r} is served by JVPs, which torch does not have for functions of sparse "
            "tensors: make the projection with `mode='row'`"
        )
    value = argument.values[path]

    def push(color: torch.Tensor, unit: complex) -> torch.Tensor:
        seed = (leaf.column_colors == color).to(value.dtype).reshape(value.shape) * unit
        change: torch.Tensor = torch.func.jvp(argument.output_of(path), (value,), (seed,))[1]
        return change

    def derivative(color: torch.Tensor) -> tuple[torch.Tensor]:
        if kind_of(value) == "complex" and not rules.holomorphic:
            return (push(color, 1) + 1j * push(color, 1j),)  # what autograd returns for C -> R
        return (push(color, 1),)

    num_colors = leaf.compression.columns.num_colors
    if num_colors == 0:
        return value.new_zeros(0, leaf.pattern.shape[0])
    colors = torch.arange(num_colors, dtype=torch.int32, device=leaf.column_colors.device)
    return each(derivative, colors, chunk_size)[0]


def each(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
    ids: torch.Tensor,
    chunk_size: int | None,
    one_by_one: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Stack a function over ids [n], at most `chunk_size` at once, or without vmap at all."""
    if len(ids) == 1 or one_by_one:
        found = [function(number) for number in ids]
        return tuple(torch.stack(blocks) for blocks in zip(*found, strict=True))
    return torch.func.vmap(function, chunk_size=chunk_size)(ids)


def _check_output(projection: JacobianProjection, output: Any, rules: Rules) -> None:
    leaves = pytree.tree_leaves(output)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"outputs of `f` must be tensors, got {type(leaf).__name__}")
        rules.check_output(kind_of(leaf), leaf.dtype)
    projection.check_output(sum(leaf.numel() for leaf in leaves))


def _unraveler(tree: Any) -> Callable[[torch.Tensor], Any]:
    """Cut a vector into tensors of the shapes and dtypes of `tree`."""
    leaves, treespec = pytree.tree_flatten(tree)
    sizes = [leaf.numel() for leaf in leaves]

    def unravel(flat: torch.Tensor) -> Any:
        parts = [
            part.reshape(leaf.shape).to(leaf.dtype)
            for leaf, part in zip(leaves, torch.split(flat, sizes), strict=True)
        ]
        return pytree.tree_unflatten(parts, treespec)

    return unravel


def ravel(tree: Any) -> torch.Tensor:
    """All leaves, flattened, one after the other."""
    return torch.cat([leaf.reshape(-1) for leaf in pytree.tree_leaves(tree)])


def is_sparse(leaf: Any) -> bool:
    """Whether a leaf is a COO tensor, of which the values are differentiated in."""
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.sparse_coo


def kind_of(value: torch.Tensor) -> Kind:
    """Whether a tensor is integer (or bool), real or complex."""
    if value.is_complex():
        return "complex"
    return "real" if value.is_floating_point() else "integer"
