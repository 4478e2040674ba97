"""Conversions between flat values and the sparse matrices of JAX and torch."""
