"""The floating-point operations of a function of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def count_flops(f: Callable[..., Any], *arguments: Any) -> int:
    """What torch counts while `f` runs: products, convolutions and attention."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        f(*arguments)
    return int(counter.get_total_flops())
