"""`mix` in NumPy: the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.mix.checks import check_arguments, check_range


def mix(a: NDArray[Any], b: NDArray[Any], positions: NDArray[np.integer]) -> NDArray[Any]:
    """See `tritonsnap.ops.mix.mix`."""
    check_arguments(a, b, positions)
    check_range(positions, a.shape[-1])
    mixed = a.astype(np.result_type(a, b))
    mixed[..., positions] += b
    return mixed
