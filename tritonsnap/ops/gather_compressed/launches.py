"""Which kernel `gather_compressed` launches, and with what: for torch and JAX."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.kernel import KernelLaunch
from tritonsnap.sparsity.compression import Runs


def gather_launch(flat: Any, index: Any, runs: Runs | None, num_columns: int) -> KernelLaunch:
    """The kernel for runs of equal columns where there are any, else that for an index.

    Parameters
    ----------
    flat : [batch, colors * columns]
    index : [nnz]
    runs
        On the device of the others.
    num_columns
        Of the compressed Jacobian.
    """
    from tritonsnap.ops.gather_compressed.kernels import GATHER_INDEX, GATHER_RUNS

    batch, length = (int(size) for size in flat.shape)
    nnz = len(index)
    outputs = {"values": (batch, nnz)}
    counts = {"nnz": nnz, "length": length}
    if runs is None:
        arguments = {"compressed": flat, "index": index, **counts, "batch": batch}
        return KernelLaunch(GATHER_INDEX, arguments, outputs, {"nnz": nnz, "batch": batch})
    arguments = {"compressed": flat, **runs._asdict(), "num_columns": num_columns, **counts}
    sizes = {
        "runs": len(runs.columns),
        "columns": num_columns // len(runs.columns),
        "support": nnz // num_columns,
        "batch": batch,
    }
    return KernelLaunch(GATHER_RUNS, arguments, outputs, sizes)
