"""What all faces of `mix` check."""

from __future__ import annotations

from typing import Any


def check_arguments(a: Any, b: Any, positions: Any) -> None:
    """Raise unless `b` fits `positions` and has the leading axes of `a`."""
    if tuple(b.shape[-1:]) != tuple(positions.shape) or a.ndim == 0:
        raise ValueError(
            "`a`, `b` and `positions` must have shapes [..., nnz(a)], [..., nnz(b)] and [nnz(b)], "
            f"got {list(a.shape)}, {list(b.shape)} and {list(positions.shape)}"
        )
    if tuple(a.shape[:-1]) != tuple(b.shape[:-1]):
        raise ValueError(
            f"`a` and `b` must have the same leading axes, got {list(a.shape)} and {list(b.shape)}"
        )
