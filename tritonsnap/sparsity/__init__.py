"""What is nonzero: patterns, SnAp masks, column groups. NumPy only."""

from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import snap_pattern

__all__ = ["ColumnGroups", "SparsityPattern", "snap_pattern"]
