"""`coo_to_csr` under torch's transformations."""

import pytest

torch = pytest.importorskip("torch")

from tritonsnap.ops.coo_to_csr import coo_to_csr
from tritonsnap.ops.coo_to_csr.torch import _coo_to_csr


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [[], [2, 0, 2]])
def test_opcheck(rows: list[int], dtype: torch.dtype) -> None:
    torch.library.opcheck(_coo_to_csr, (torch.tensor(rows, dtype=dtype), 4, False))


def test_compiles_to_one_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compress(rows):
        return coo_to_csr(rows, 4) + 1

    for rows in ([2, 0, 2], [1, 1, 1, 1, 3]):
        rows = torch.tensor(rows)
        assert compress(rows).tolist() == (coo_to_csr(rows, 4) + 1).tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_vmap(axis: int) -> None:
    rows = torch.randint(0, 6, (3, 20), generator=torch.Generator().manual_seed(0))
    expected = torch.stack([coo_to_csr(row, 6) for row in rows])
    found = torch.vmap(lambda row: coo_to_csr(row, 6), in_dims=axis)(rows.movedim(0, axis))
    assert torch.equal(found, expected)


def test_fake_tensors_know_the_shape() -> None:
    rows = torch.empty(5, dtype=torch.int32, device="meta")
    assert coo_to_csr(rows, 7).shape == (8,)
    assert coo_to_csr(rows, 7).dtype == torch.int32


def test_strided_rows() -> None:
    rows = torch.tensor([0, 9, 2, 9, 2, 9])[::2]
    assert coo_to_csr(rows, 3).tolist() == [0, 1, 1, 3]
