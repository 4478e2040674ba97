"""`JacobianProjection`: the compressions of all leaves of an argument. No framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonsnap.checks import check_share
from tritonsnap.files import read_arrays, write_arrays
from tritonsnap.sparsity.compression import Compression, Projection
from tritonsnap.sparsity.pattern import SparsityPattern

FORMAT = "tritonsnap.JacobianProjection/1"


@dataclass(frozen=True, eq=False, repr=False)
class JacobianProjection:
    """How to compute the Jacobian of a function in each leaf of its argument.

    Made by `make_jacobian_projection`. In JAX it is a pytree whose leaves are index arrays: pass it
    to a jitted function as an argument, and the indices do not become constants of the program.

    Parameters
    ----------
    leaves
        A `Projection` for each leaf, by its tree path: ``"['weight']"``, ``"[0].bias"``, and
        ``""`` for an argument that is a single array.
    """

    leaves: Mapping[str, Projection]

    def __getitem__(self, path: str) -> Projection:
        try:
            return self.leaves[path]
        except KeyError:
            raise KeyError(f"no leaf {path!r}, only {list(self.leaves)}") from None

    @property
    def num_rows(self) -> int:
        """The size of the function's output."""
        return next(iter(self.leaves.values())).compression.mask.shape[0]

    @property
    def num_passes(self) -> int:
        """VJPs and JVPs that one Jacobian takes: leaves with equal row colors share VJPs."""
        groups = self.row_groups(self.leaves)
        columns = [leaf.compression.columns for leaf in self.leaves.values()]
        return sum(
            side.num_colors
            for side in (*(self._rows(group[0]) for group in groups), *columns)
            if side is not None
        )

    def row_groups(self, paths: Iterable[str]) -> list[list[str]]:
        """The leaves that take VJPs, those with equal row colors together."""
        groups: dict[tuple[int, bytes], list[str]] = {}
        for path in paths:
            rows = self._rows(path)
            if rows is not None and rows.num_colors:
                groups.setdefault((rows.num_colors, rows.colors.tobytes()), []).append(path)
        return list(groups.values())

    def _rows(self, path: str) -> Any:
        return self.leaves[path].compression.rows

    def convert(self, array: Callable[[Any], Any]) -> JacobianProjection:
        """Put every index array through `array`, for instance to another device."""
        return JacobianProjection({path: leaf.convert(array) for path, leaf in self.leaves.items()})

    def with_mode(self, mode: str) -> JacobianProjection:
        """The same masks, every leaf in `mode`; leaves that are so already stay."""
        return JacobianProjection(
            {
                path: leaf
                if leaf.compression.mode == mode
                else Projection.of(Compression.of(leaf.compression.mask, leaf.pattern, mode))
                for path, leaf in self.leaves.items()
            }
        )

    def untruncated(self) -> JacobianProjection:
        """The same projection without `keep`."""
        return JacobianProjection(
            {
                path: Projection.of(leaf.compression.untruncated())
                for path, leaf in self.leaves.items()
            }
        )

    def check_leaves(self, sizes: Mapping[str, int]) -> None:
        """Raise a `ValueError` unless an argument's leaves, with their sizes, are those here."""
        if sizes.keys() != self.leaves.keys():
            lacks = sorted(self.leaves.keys() - sizes.keys())
            extra = sorted(sizes.keys() - self.leaves.keys())
            raise ValueError(
                "the argument's tree differs from that of `projection`: "
                f"it lacks the leaves {lacks} and has {extra} instead"
            )
        for path, size in sizes.items():
            columns = self.leaves[path].compression.mask.shape[1]
            if size != columns:
                raise ValueError(
                    f"leaf {path!r} of the argument has {size} entries, "
                    f"its mask in `projection` has {columns} columns"
                )

    def check_output(self, size: int) -> None:
        """Raise a `ValueError` unless the function's output has as many entries as masks rows."""
        if size != self.num_rows:
            raise ValueError(
                f"`f` returns {size} entries, the masks in `projection` have {self.num_rows} rows"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the projection to an ``.npz`` file, atomically."""
        arrays: dict[str, Any] = {"paths": np.asarray(list(self.leaves), np.str_)}
        for number, leaf in enumerate(self.leaves.values()):
            arrays |= leaf.compression._arrays(f"{number}/")
        write_arrays(path, FORMAT, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> JacobianProjection:
        """Read a projection that `save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a projection, or is damaged.
        """
        arrays, path = read_arrays(path, FORMAT), Path(path)
        paths = arrays.get("paths")
        if paths is None or paths.ndim != 1 or paths.dtype.kind != "U":
            raise ValueError(f"{path} holds no valid projection: no paths")
        return cls(
            {
                name: Projection.of(Compression._from_arrays(arrays, path, f"{number}/"))
                for number, name in enumerate(paths.tolist())
            }
        )

    def __repr__(self) -> str:
        lines = [f"JacobianProjection({self.num_passes} passes)"]
        for path, leaf in self.leaves.items():
            compression = leaf.compression
            lines.append(
                f"  {path or 'argument'}: {compression.mask!r}, "
                f"{compression.num_passes} {compression.mode} passes"
            )
        return "\n".join(lines)


def build_projection(
    masks: Sequence[tuple[str, Any]],
    keeps: Sequence[tuple[str, Any]],
    mode: str,
    order: str,
    dense_threshold: float,
) -> JacobianProjection:
    """Build a projection from the flattened trees of masks and of what to keep."""
    if not masks:
        raise ValueError("`mask` has no leaves")
    check_share("dense_threshold", dense_threshold)
    patterns = {path: _pattern("mask", path, mask) for path, mask in masks}
    kept = {path: _pattern("keep", path, keep) for path, keep in keeps}
    if kept.keys() - patterns.keys():
        raise ValueError(
            f"`keep` has leaves that `mask` lacks: {sorted(kept.keys() - patterns.keys())}"
        )
    first = next(iter(patterns))
    leaves = {}
    for path, pattern in patterns.items():
        if pattern.shape[0] != patterns[first].shape[0]:
            raise ValueError(
                f"all leaves of `mask` must have the same number of rows, got "
                f"{patterns[first].shape[0]} at {first!r} and {pattern.shape[0]} at {path!r}"
            )
        try:
            compression = Compression.of(pattern, kept.get(path), mode, order, dense_threshold)
        except ValueError as error:
            raise ValueError(f"at leaf {path!r}: {error}") from error
        leaves[path] = Projection.of(compression)
    return JacobianProjection(leaves)


def _pattern(argument: str, path: str, source: Any) -> SparsityPattern:
    try:
        return SparsityPattern.of(source)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{argument}` at leaf {path!r}: {error}") from error


def is_mask_leaf(node: Any) -> bool:
    """Whether a node of a tree of masks is one mask: for a tuple, ``(rows, cols, shape)``."""
    if isinstance(node, tuple) and len(node) == 3:
        shape = node[2]
        return (
            isinstance(shape, tuple)
            and len(shape) == 2
            and all(isinstance(size, (int, np.integer)) for size in shape)
        )
    return isinstance(node, SparsityPattern) or hasattr(node, "tocoo") or hasattr(node, "n_sparse")
