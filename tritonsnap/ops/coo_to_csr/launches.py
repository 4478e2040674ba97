"""What `coo_to_csr` launches one after the other: for torch and JAX."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.kernel import KernelLaunch


def search_launch(rows: Any, num_rows: int) -> KernelLaunch:
    """Sorted rows: the pointers by binary search."""
    from tritonsnap.ops.coo_to_csr.kernels import CSR_SEARCH

    sizes = {"nnz": int(rows.shape[0]), "num_rows": num_rows}
    arguments = {"rows": rows, **sizes, "steps": sizes["nnz"].bit_length()}
    return KernelLaunch(CSR_SEARCH, arguments, {"pointers": (num_rows + 1,)}, sizes)


def count_launch(rows: Any, num_rows: int) -> KernelLaunch:
    """Unsorted rows: how often each occurs in every chunk of them."""
    from tritonsnap.ops.coo_to_csr.kernels import CSR_COUNT, chunks_of

    sizes = {"nnz": int(rows.shape[0]), "num_rows": num_rows}
    units, num_chunks = chunks_of(sizes["nnz"], num_rows)
    arguments = {"rows": rows, **sizes, "units_per_chunk": units}
    return KernelLaunch(CSR_COUNT, arguments, {"counts": (num_chunks, num_rows)}, sizes)


def scan_launch(counts: Any) -> KernelLaunch:
    """The sums of the counts of each tile of rows, and its total."""
    from tritonsnap.ops.coo_to_csr.kernels import CSR_SCAN, TILE

    num_chunks, num_rows = (int(size) for size in counts.shape)
    sizes = {"num_chunks": num_chunks, "num_rows": num_rows}
    outputs = {"sums": (num_rows,), "totals": (-(-num_rows // TILE),)}
    return KernelLaunch(CSR_SCAN, {"counts": counts, **sizes}, outputs, sizes)


def finish_launch(sums: Any, totals: Any) -> KernelLaunch:
    """The pointers, from what `scan_launch` gives."""
    from tritonsnap.ops.coo_to_csr.kernels import CSR_FINISH

    num_rows = int(sums.shape[0])
    sizes = {"num_rows": num_rows}
    arguments = {"sums": sums, "totals": totals, **sizes}
    return KernelLaunch(CSR_FINISH, arguments, {"pointers": (num_rows + 1,)}, sizes)
