"""`gather_compressed` in NumPy: the definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.gather_compressed.checks import check_arguments
from tritonsnap.sparsity.compression import Projection


def gather_compressed(compressed: NDArray[Any], projection: Projection) -> NDArray[Any]:
    """See `tritonsnap.ops.gather_compressed.gather_compressed`."""
    check_arguments(compressed, projection)
    index = np.asarray(projection.index)
    flat = compressed.reshape(*compressed.shape[:-2], math.prod(compressed.shape[-2:]))
    if not projection.compression.has_gaps:
        return flat[..., index]
    inside = index >= 0
    values = np.zeros((*flat.shape[:-1], len(index)), flat.dtype)
    values[..., inside] = flat[..., index[inside]]
    return values
