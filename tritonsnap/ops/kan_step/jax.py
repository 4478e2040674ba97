"""`kan_step` in JAX: dense hat vectors, which XLA fuses into the products on every platform."""

from tritonsnap.ops.kan_step.hats import (
    gram,
    inner_change,
    inner_sums,
    outer_change,
    outer_values,
)

__all__ = ["gram", "inner_change", "inner_sums", "outer_change", "outer_values"]
