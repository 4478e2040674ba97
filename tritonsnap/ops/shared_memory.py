"""CPU tensors of PyTorch as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tritonsnap.plan.factors import Factors


def to_numpy_tree(value: Any) -> Any:
    """NumPy arrays over the memory of the CPU tensors in `value`."""
    if isinstance(value, Factors):
        return Factors(to_numpy_tree(value.gains), to_numpy_tree(value.sources), value.structure)
    if isinstance(value, (tuple, list)):
        return tuple(to_numpy_tree(item) for item in value)
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


def to_torch_tree(value: Any) -> Any:
    """Tensors over the memory of the NumPy arrays in `value`."""
    if isinstance(value, tuple):
        return tuple(torch.from_numpy(np.ascontiguousarray(item)) for item in value)
    return torch.from_numpy(np.ascontiguousarray(value))
