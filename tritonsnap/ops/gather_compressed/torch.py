"""`gather_compressed` in torch: one index_select, which autograd, torch.func and compile know."""

from __future__ import annotations

import torch

from tritonsnap.ops.gather_compressed.checks import check_arguments
from tritonsnap.sparsity.compression import Projection


def gather_compressed(compressed: torch.Tensor, projection: Projection) -> torch.Tensor:
    """See `tritonsnap.ops.gather_compressed.gather_compressed`."""
    check_arguments(compressed, projection)
    compression = projection.compression
    flat = compressed.flatten(-2)
    if compression.is_flat:
        return flat
    index = torch.as_tensor(projection.index, device=compressed.device)
    if compression.has_gaps:  # -1 means zero: put one in front
        return torch.nn.functional.pad(flat, (1, 0)).index_select(-1, index + 1)
    return flat.index_select(-1, index)
