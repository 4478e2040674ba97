"""What is nonzero: patterns, SnAp masks, colorings, column groups. NumPy only."""

from tritonsnap.sparsity.coloring import (
    BidirectionalColoring,
    Coloring,
    color_bidirectional,
    color_columns,
    color_rows,
)
from tritonsnap.sparsity.compression import Compression, Projection
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import snap_pattern

__all__ = [
    "BidirectionalColoring",
    "Coloring",
    "ColumnGroups",
    "Compression",
    "Projection",
    "SparsityPattern",
    "color_bidirectional",
    "color_columns",
    "color_rows",
    "snap_pattern",
]
