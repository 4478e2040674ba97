"""Both ways in which a GPU gathers, on projections of real masks."""

import numpy as np
import pytest
import torch

from tritonsnap.ops.gather_compressed import gather_compressed
from tritonsnap.ops.gather_compressed.torch import launch_kernels
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern

WEIGHTS = SparsityPattern.random((12, 12), 0.3)
IMMEDIATE = SparsityPattern.from_coo(np.arange(12 * 20) // 20, np.arange(12 * 20), (12, 12 * 20))
SNAP2 = snap_pattern(WEIGHTS, IMMEDIATE, 2)
LONG = SparsityPattern.from_columns((5, 700), [0, 3, 5], [0, 2, 4, 1, 3], np.arange(700) // 600)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize(
    ("mask", "keep", "mode", "has_runs"),
    [
        (SNAP2, None, "row", True),
        (LONG, None, "row", True),
        (SNAP2, SparsityPattern.random((12, 240), 0.3), "row", False),
        (SNAP2, None, "column", False),
        (SNAP2, None, "both", False),
        (SparsityPattern.random((30, 40), 0.1), None, "row", False),
    ],
    ids=["snap2", "long", "keep", "column", "both", "random"],
)
def test_equals_numpy(
    mask: SparsityPattern,
    keep: SparsityPattern | None,
    mode: str,
    has_runs: bool,
    batch: tuple[int, ...],
) -> None:
    projection = Projection.of(Compression.of(mask, keep, mode))
    assert (projection.runs is not None) == has_runs
    shape = (*batch, *projection.compression.compressed_shape)
    compressed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    runs = [] if projection.runs is None else [torch.tensor(array) for array in projection.runs]
    found = launch_kernels(torch.tensor(compressed), torch.tensor(projection.index), runs)
    np.testing.assert_array_equal(found.numpy(), gather_compressed(compressed, projection))
