"""The ops: one folder each, with its Triton kernels and its NumPy, torch and JAX faces."""
