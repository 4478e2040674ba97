"""What the kernels on values in canonical order are given: operands by argument name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonsnap.plan.canonical import UNIT, CanonicalBlock
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.plan.packing import Packing


@dataclass(frozen=True)
class Addend:
    """What a kernel adds to the product, and by what it scales D's rows first.

    Attributes
    ----------
    mode : int
        0 for nothing, 1 for ``gains * sources``, 2 for `added`, 3 for what `color` reads of it.
    added : [batch, padded nnz], or [batch or 1, colors * columns] in mode 3, optional
    gains : [batch or 1, targets * rows], optional
    sources : [batch or 1, sources], optional
    column_gain, column_source : [columns], optional
        As in `tritonsnap.plan.factors.CanonicalFactors`.
    color : [nnz], optional
        The row of the compressed Jacobian that each value reads; `num_colors` for none.
    num_colors, num_columns : int
        Shape of the compressed Jacobian.
    num_units : int
        Units of the state; its rows are parts of so many.
    row_scale : [batch or 1, rows], optional
        Factors of D's rows.
    """

    mode: int = 0
    added: Any = None
    gains: Any = None
    sources: Any = None
    column_gain: Any = None
    column_source: Any = None
    color: Any = None
    num_colors: int = 0
    num_columns: int = 0
    num_units: int = 1
    row_scale: Any = None

    def arguments(self, unused: Any) -> dict[str, Any]:
        """By name; `unused`, which must not be written to, stands for what the mode does not read.

        XLA would copy an operand that is both read and written over.
        """
        arrays = {
            name: unused if getattr(self, name) is None else getattr(self, name)
            for name in ("added", "gains", "sources", "row_scale")
        }
        names = ("column_gain", "column_source", "color", "num_colors", "num_columns")
        return {
            **arrays,
            **{name: getattr(self, name) for name in names},
            "added_stride": batch_stride(arrays["added"]),
            "scale_stride": batch_stride(arrays["row_scale"]),
            "gain_stride": batch_stride(arrays["gains"]),
            "source_stride": batch_stride(arrays["sources"]),
            "num_units": self.num_units,
            "scaled": int(self.row_scale is not None),
            "mode": self.mode,
        }

    def num_targets(self, num_rows: int) -> int:
        """Preactivations that have gains."""
        return 0 if self.gains is None else int(self.gains.shape[-1]) // num_rows


def block_of(packing: Packing) -> CanonicalBlock:
    """The one block of a packing for Triton."""
    (block,) = packing.blocks
    assert isinstance(block, CanonicalBlock)
    return block


def batch_stride(array: Any) -> int:
    """Elements from one batch row to the next of a contiguous ``[batch or 1, ...]``."""
    size = 1
    for axis in array.shape[1:]:
        size *= int(axis)
    return 0 if array.shape[0] == 1 else size


def walk_arguments(
    block: CanonicalBlock, d: Any, x: Any, addend: Addend, shape: tuple[int, int], num_values: int
) -> dict[str, Any]:
    """Arguments of `walk_product` but for its output.

    Parameters
    ----------
    block
        The structure, on the device of the operands.
    d : [batch or 1, nnz(dynamics)]
    x : [batch, padded nnz(x)]
    addend
        What is added.
    shape
        Of D.
    num_values
        Of M, without padding.
    """
    return _in_order(
        "tiles run_value run_x run_column run_group row_begin x_begin mask_row nonzero_begin "
        "x_offset position is_dense d x row_scale added gains sources column_gain column_source "
        "color num_whole num_values batch d_stride x_units out_units scale_stride added_stride "
        "gain_stride source_stride num_rows num_columns num_units num_colors square scaled mode",
        _structure(block)
        | addend.arguments(d)
        | {
            "d": d,
            "x": x,
            "num_whole": block.num_whole,
            "num_values": num_values,
            "batch": int(x.shape[0]),
            "d_stride": batch_stride(d),
            "num_rows": shape[0],
            "square": int(block.square),
        },
        unused=block.run_group,
    )


def group_arguments(
    block: CanonicalBlock, d: Any, x: Any, addend: Addend, shape: tuple[int, int]
) -> dict[str, Any]:
    """Arguments of `group_product` but for its output; `d` is ``[batch or 1, rows, inner]``."""
    return _in_order(
        "tiles run_value run_x run_column run_group row_begin x_begin mask_row x_row d x row_scale "
        "added gains sources column_gain column_source color d_stride x_units out_units "
        "scale_stride added_stride gain_stride source_stride num_rows num_inner num_columns "
        "num_units num_targets num_colors scaled mode",
        _structure(block)
        | addend.arguments(d)
        | {
            "tiles": block.dense_tiles,
            "d": d,
            "x": x,
            "d_stride": batch_stride(d),
            "num_rows": shape[0],
            "num_inner": shape[1],
            "num_targets": addend.num_targets(shape[0]),
        },
        unused=block.run_group,
    )


def snap1_arguments(
    block: CanonicalBlock,
    d: Any,
    x: Any,
    addend: Addend,
    delta: Any,
    sizes: tuple[int, int, int],
) -> dict[str, Any]:
    """Arguments of `snap1_step` but for its outputs.

    Parameters
    ----------
    block, d, x, addend
        As of `walk_arguments`; the block is elementwise.
    delta : [batch, rows] or None
        None for the kernel without the gradient.
    sizes
        Rows and entries of D, and values.
    """
    num_rows, num_entries, num_values = sizes
    return _in_order(
        "tiles run_value run_group mask_row position d x row_scale added gains sources "
        "column_gain column_source color delta num_tiles num_values num_entries batch d_stride "
        "units scale_stride added_stride gain_stride source_stride num_rows num_targets num_colors "
        "scaled mode",
        _structure(block)
        | addend.arguments(d)
        | {
            "d": d,
            "x": x,
            "delta": d if delta is None else delta,
            "num_tiles": len(block.tiles),
            "num_values": num_values,
            "num_entries": num_entries,
            "batch": int(x.shape[0]),
            "d_stride": batch_stride(d),
            "units": block.mask_values // UNIT,
            "num_rows": num_rows,
            "num_targets": addend.num_targets(num_rows),
        },
        unused=block.run_group,
    )


def gradient_arguments(
    block: CanonicalBlock, delta: Any, j: Any, num_columns: int
) -> dict[str, Any]:
    """Arguments of `column_gradient` but for its output.

    Parameters
    ----------
    block
        The structure, on the device of the operands.
    delta : [batch or 1, rows]
    j : [batch, padded nnz(mask)]
    num_columns
        Of the mask.
    """
    return _in_order(
        "column_tiles run_column run_value run_group row_begin mask_row delta j num_columns batch "
        "delta_stride units",
        _structure(block)
        | {
            "delta": delta,
            "j": j,
            "num_columns": num_columns,
            "batch": int(j.shape[0]),
            "delta_stride": batch_stride(delta),
            "units": block.mask_values // UNIT,
        },
        unused=block.run_group,
    )


def outer_walk_arguments(
    block: CanonicalBlock, pairs: OuterPairs, r: Any, x: Any
) -> dict[str, Any]:
    """Arguments of `outer_walk` but for its output.

    Parameters
    ----------
    block, pairs
        The structure, on the device of the operands.
    r : [batch, padded nnz(mask)]
    x : [batch, padded nnz(x)]
    """
    return _in_order(
        "pair_group pair_row pair_inner run_begin group_run run_column run_value run_x row_begin "
        "x_begin r x num_partial batch r_units x_units square",
        _outer_structure(block, pairs, r, x),
        unused=block.run_group,
    )


def outer_tile_arguments(
    block: CanonicalBlock, pairs: OuterPairs, r: Any, x: Any
) -> dict[str, Any]:
    """Arguments of `outer_tiles` but for its output; see `outer_walk_arguments`."""
    return _in_order(
        "tiles pieces kept run_column run_value run_x run_group row_begin x_begin mask_row x_row r "
        "x num_partial batch r_units x_units local",
        _outer_structure(block, pairs, r, x),
        unused=block.run_group,
    )


def outer_sum_arguments(pairs: OuterPairs, partial: Any) -> dict[str, Any]:
    """Arguments of `outer_sum` but for its output; `partial` is ``[batch, num_partial]``."""
    return {
        "entry_begin": pairs.entry_begin,
        "entry_partial": pairs.entry_partial,
        "partial": partial,
        "num_entries": len(pairs.entry_begin) - 1,
        "num_partial": pairs.num_partial,
        "batch": int(partial.shape[0]),
    }


def _outer_structure(block: CanonicalBlock, pairs: OuterPairs, r: Any, x: Any) -> dict[str, Any]:
    arrays = {name: getattr(pairs, name) for name in pairs.ARRAYS}
    sizes = {
        "num_partial": pairs.num_partial,
        "batch": int(r.shape[0]),
        "r_units": block.mask_values // UNIT,
        "local": int(pairs.local),
        "square": int(block.square),
    }
    return _structure(block) | arrays | sizes | {"r": r, "x": x}


def _structure(block: CanonicalBlock) -> dict[str, Any]:
    arrays = {name: getattr(block, name) for name in block.ARRAYS}
    return arrays | {"x_units": block.x_values // UNIT, "out_units": block.mask_values // UNIT}


def _in_order(names: str, values: dict[str, Any], unused: Any) -> dict[str, Any]:
    """The named values in that order; `unused` for index arrays that are not needed."""
    return {name: unused if values[name] is None else values[name] for name in names.split()}
