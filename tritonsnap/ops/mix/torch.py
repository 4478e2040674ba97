"""`mix` in torch: one index_add; positions are unique, so its order does not matter."""

from __future__ import annotations

from typing import Any

import torch

from tritonsnap.ops.mix.checks import check_arguments


def mix(a: torch.Tensor, b: torch.Tensor, positions: Any) -> torch.Tensor:
    """See `tritonsnap.ops.mix.mix`."""
    check_arguments(a, b, positions)
    dtype = torch.result_type(a, b)
    index = torch.as_tensor(positions, device=a.device)
    return a.to(dtype).index_add(-1, index, b.to(dtype))
