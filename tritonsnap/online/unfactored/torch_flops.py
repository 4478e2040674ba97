"""The floating-point operations of a function of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def _of_vector(matrix: Sequence[int], *others: Any, **options: Any) -> int:
    return 2 * math.prod(matrix)


def _of_sum(added: Sequence[int], matrix: Sequence[int], *others: Any, **options: Any) -> int:
    return 2 * math.prod(matrix)


_PRODUCTS_WITH_VECTORS = {
    torch.ops.aten.mv: _of_vector,
    torch.ops.aten.dot: _of_vector,
    torch.ops.aten.addmv: _of_sum,
}
"""What torch itself leaves out."""


def count_flops(f: Callable[..., Any], *arguments: Any) -> int:
    """What torch counts while `f` runs, products, convolutions and attention, on vectors too."""
    counter = FlopCounterMode(display=False, custom_mapping=_PRODUCTS_WITH_VECTORS)
    with torch.no_grad(), counter:
        f(*arguments)
    return int(counter.get_total_flops())
