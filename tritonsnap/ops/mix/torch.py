"""`mix` in torch: one index_add; positions are unique, so its order does not matter."""

from __future__ import annotations

from typing import Any

import torch

from tritonsnap.ops.mix.checks import check_arguments, check_range


def mix(a: torch.Tensor, b: torch.Tensor, positions: Any) -> torch.Tensor:
    """See `tritonsnap.ops.mix.mix`."""
    check_arguments(a, b, positions)
    on_host = not isinstance(positions, torch.Tensor) or positions.device.type == "cpu"
    if on_host and not torch.compiler.is_compiling():
        check_range(positions, a.shape[-1])
    dtype = torch.result_type(a, b)
    index = torch.as_tensor(positions, device=a.device)
    return a.to(dtype).index_add(-1, index, b.to(dtype))
