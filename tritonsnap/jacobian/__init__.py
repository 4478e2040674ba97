"""Sparse Jacobians in few passes, in JAX and torch."""
