import numpy as np
import pytest
import torch

from benchmarks.traffic.recorder import record
from tritonsnap.ops.gather_compressed.torch import launch_kernels
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern

HIDDEN = 64


@pytest.mark.parametrize("density", [0.06, 0.25, 1.0])
def test_both_sides_are_coalesced_where_columns_are_grouped(density: float) -> None:
    weights = SparsityPattern.random((HIDDEN, HIDDEN), density)
    columns = np.arange(HIDDEN * HIDDEN)
    immediate = SparsityPattern.from_coo(columns // HIDDEN, columns, (HIDDEN, len(columns)))
    mask = snap_pattern(weights, immediate, 2)
    projection = Projection.of(Compression.of(mask, mode="row"))
    assert projection.runs is not None
    compressed = torch.zeros(projection.compression.compressed_shape)
    with record() as launches:
        launch_kernels(
            compressed,
            torch.tensor(projection.index),
            [torch.tensor(array) for array in projection.runs],
        )
    (launch,) = launches
    read, written = launch.counts["compressed", "read"], launch.counts["values", "write"]
    assert read.useful == written.useful == 4 * mask.nnz
    assert read.efficiency == read.coalescing == 1
    assert written.efficiency > 0.9
    assert written.coalescing > 0.7
    total = launch.total()
    assert 32 * total.sectors < 2.6 * read.useful  # 2 is one read and one write
