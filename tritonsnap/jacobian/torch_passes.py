"""The passes of a sparse Jacobian in torch: VJPs by row color, JVPs by column color."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tritonsnap.jacobian.argument import Argument
from tritonsnap.jacobian.evaluation import Passes
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.rules import Kind, Rules
from tritonsnap.ops.gather_compressed.torch import gather_compressed
from tritonsnap.sparsity.compression import Projection


@dataclass(frozen=True)
class TorchArgument(Argument):
    """An argument of dense and COO tensors; what is no tensor in it stays as it is."""

    @classmethod
    def _flatten(cls, selected: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
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
        return treespec, leaves, values

    def _join(self, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(leaves, self.tree)

    def _with_values(self, path: str, values: Any) -> Any:
        leaf = self.leaves[path]
        if not is_sparse(leaf):
            return values
        return torch.sparse_coo_tensor(
            leaf._indices(), values, leaf.shape, is_coalesced=leaf.is_coalesced()
        )

    @property
    def has_sparse_leaf(self) -> bool:
        """Whether some leaf is sparse: vmap and forward mode have no rules for those."""
        return any(is_sparse(self.leaves[path]) for path in self.values)

    def output_of(self, path: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """The output, flattened, as a function of one value."""
        return lambda value: ravel(self.call({path: value})[0])


class _TorchPasses(Passes[TorchArgument]):
    """VJPs and JVPs of `torch.func`."""

    argument = TorchArgument
    sparse = "coo"

    def kind_of(self, value: torch.Tensor) -> Kind:
        return kind_of(value)

    def size_of(self, value: torch.Tensor) -> int:
        return value.numel()

    def cast(self, array: torch.Tensor, dtype: Any) -> torch.Tensor:
        return array.to(dtype)

    def zeros(self, size: int, like: Any) -> torch.Tensor:
        first: torch.Tensor = pytree.tree_leaves(like)[0]
        return first.new_zeros(size)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([part.flatten() for part in parts])[None]

    def gather(self, compressed: torch.Tensor, leaf: Projection) -> torch.Tensor:
        return gather_compressed(compressed, leaf)

    def local(self, projection: JacobianProjection, argument: TorchArgument) -> JacobianProjection:
        device = next((value.device for value in argument.values.values()), torch.device("cpu"))
        return projection.convert(lambda array: array.to(device))  # no copy if it is there

    def check_output(self, projection: JacobianProjection, output: Any, rules: Rules) -> None:
        leaves = pytree.tree_leaves(output)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise TypeError(f"outputs of `f` must be tensors, got {type(leaf).__name__}")
            rules.check_output(kind_of(leaf), leaf.dtype)
        projection.check_output(sum(leaf.numel() for leaf in leaves))

    def pull(
        self,
        projection: JacobianProjection,
        argument: TorchArgument,
        paths: Sequence[str],
        chunk_size: int | None,
        rules: Rules,
    ) -> tuple[dict[str, torch.Tensor], Any, Any]:
        aux = None

        def function(*values: torch.Tensor) -> Any:
            output, own_aux = argument.call(dict(zip(paths, values, strict=True)))
            return (output, own_aux) if argument.has_aux else output

        primals = [argument.values[path] for path in paths]
        output, pullback, *rest = torch.func.vjp(function, *primals, has_aux=argument.has_aux)
        if rest:
            aux = rest[0]
        self.check_output(projection, output, rules)
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

    def push(
        self,
        leaf: Projection,
        argument: TorchArgument,
        path: str,
        chunk_size: int | None,
        rules: Rules,
    ) -> torch.Tensor:
        assert leaf.compression.columns is not None
        if argument.has_sparse_leaf:
            raise ValueError(
                f"leaf {path!r} is served by JVPs, which torch does not have for functions of "
                "sparse tensors: make the projection with `mode='row'`"
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

    def to_sparse(self, values: torch.Tensor, leaf: Projection) -> torch.Tensor:
        # Canonical order is by column, which torch does not call coalesced.
        return torch.sparse_coo_tensor(
            leaf.coordinates.T,
            values,
            leaf.pattern.shape,
            is_coalesced=False,
            check_invariants=False,
        )

    def to_dense(
        self,
        values: Mapping[str, torch.Tensor],
        projection: JacobianProjection,
        argument: TorchArgument,
        output: Any,
        rules: Rules,
    ) -> Any:
        leaves, treespec = pytree.tree_flatten(output)
        sizes = [leaf.numel() for leaf in leaves]
        blocks: list[dict[str, torch.Tensor]] = [{} for _ in leaves]
        for path, value in values.items():
            zeros = torch.zeros(
                projection[path].pattern.shape, dtype=value.dtype, device=value.device
            )
            matrix = zeros.index_put(tuple(projection[path].coordinates.T), value)
            for leaf, rows, block in zip(leaves, torch.split(matrix, sizes), blocks, strict=True):
                rows = rows.reshape((*leaf.shape, *argument.values[path].shape))
                block[path] = rows.to(leaf.dtype) if rules.forward else rows
        return pytree.tree_unflatten([argument.unflatten(block) for block in blocks], treespec)


PASSES = _TorchPasses()


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
