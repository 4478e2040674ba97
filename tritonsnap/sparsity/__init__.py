"""What is nonzero: patterns, SnAp masks, column groups. NumPy only."""

from tritonsnap.sparsity.pattern import SparsityPattern

__all__ = ["SparsityPattern"]
