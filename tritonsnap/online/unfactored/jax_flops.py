"""The floating-point operations of a function of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def count_flops(f: Callable[..., Any], *arguments: Any) -> int:
    """What XLA counts in the program of `f`, which is not compiled."""
    found: Any = jax.jit(f).lower(*arguments).cost_analysis()
    return int(found.get("flops", 0))  # XLA names no count where it has none
