from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from tritonsnap.ops.gather_compressed import gather_compressed
from tritonsnap.sparsity import Compression, Projection, SparsityPattern

torch = pytest.importorskip("torch")
from tritonsnap.ops.gather_compressed.torch import _Gather, _gather_compressed
from tritonsnap.ops.gather_compressed.torch import gather_compressed as face

LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "jax": jnp.asarray,
    "torch": torch.as_tensor,
}


def projection_of(
    mask: SparsityPattern, mode: str = "row", keep: SparsityPattern | None = None
) -> Projection:
    return Projection.of(Compression.of(mask, keep, mode, dense_threshold=1))


def compress(dense: np.ndarray, projection: Projection) -> np.ndarray:
    """The compressed form of a dense Jacobian [..., m, p], by the definition V J and (J U)^T."""
    compression = projection.compression
    forms = []
    if compression.rows is not None:
        seeds = compression.rows.colors == np.arange(compression.rows.num_colors)[:, None]
        forms.append(seeds @ dense)
    if compression.columns is not None:
        seeds = compression.columns.colors == np.arange(compression.columns.num_colors)[:, None]
        forms.append(seeds @ np.swapaxes(dense, -1, -2))
    if len(forms) == 1:
        return forms[0]
    flat = [form.reshape(*form.shape[:-2], -1) for form in forms]
    return np.concatenate(flat, axis=-1)[..., None, :]


@pytest.mark.parametrize("mode", ["row", "column", "both"])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 8),
    cols=st.integers(1, 8),
    density=st.floats(0.05, 1),
    keep_density=st.floats(0.05, 1),
    batch=st.sampled_from([(), (3,), (2, 1)]),
    seed=st.integers(0, 99),
)
def test_equals_dense(
    mode: str,
    rows: int,
    cols: int,
    density: float,
    keep_density: float,
    batch: tuple[int, ...],
    seed: int,
) -> None:
    mask = SparsityPattern.random((rows, cols), density, seed)
    keep = SparsityPattern.random((rows, cols), keep_density, seed + 1)
    dense = mask.to_dense(np.random.default_rng(seed).standard_normal((*batch, mask.nnz)))
    for kept in (None, keep):
        projection = projection_of(mask, mode, kept)
        values = gather_compressed(compress(dense, projection), projection)
        np.testing.assert_allclose(values, projection.pattern.values_of(dense), rtol=1e-14)


@pytest.mark.parametrize("library", LIBRARIES)
def test_empty_mask(library: str) -> None:
    empty = SparsityPattern.from_coo([], [], (3, 2))
    keep = SparsityPattern.identity(2).union(SparsityPattern.from_coo([1], [0], (2, 2)))
    keep = SparsityPattern.from_coo(keep.rows, keep.cols, (3, 2))
    for kept, size in ((None, 0), (keep, 3)):
        projection = projection_of(empty, "row", kept)
        values = gather_compressed(LIBRARIES[library](np.zeros((4, 0, 2))), projection)
        np.testing.assert_array_equal(np.asarray(values), np.zeros((4, size)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_keeps_dtypes(library: str) -> None:
    projection = projection_of(SparsityPattern.random((5, 6), 0.5))
    for dtype in ("float16", "float32", "complex64", "int32"):
        compressed = LIBRARIES[library](np.zeros(projection.compression.compressed_shape, dtype))
        assert gather_compressed(compressed, projection).dtype == compressed.dtype


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_shapes_are_named(library: str) -> None:
    projection = projection_of(SparsityPattern.identity(3))
    with pytest.raises(ValueError, match=r"`compressed` must have shape \[..., 1, 3\]"):
        gather_compressed(LIBRARIES[library](np.zeros((2, 3))), projection)
    with pytest.raises(TypeError, match="`projection`"):
        gather_compressed(LIBRARIES[library](np.zeros((1, 3))), {"": projection})


GRADIENT_CASES = [
    projection_of(SparsityPattern.random((5, 7), 0.3)),
    projection_of(SparsityPattern.random((5, 7), 0.3), "column"),
    projection_of(
        SparsityPattern.random((5, 7), 0.3), "both", SparsityPattern.random((5, 7), 0.4, 1)
    ),
    projection_of(SparsityPattern.from_coo([0, 1, 2, 0], [0, 1, 2, 3], (3, 4))),
]


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("projection", GRADIENT_CASES, ids=["row", "column", "gaps", "flat"])
def test_libraries_equal_numpy(library: str, projection: Projection) -> None:
    shape = (3, *projection.compression.compressed_shape)
    compressed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values = gather_compressed(LIBRARIES[library](compressed), projection)
    assert type(values) is type(LIBRARIES[library](compressed))
    np.testing.assert_array_equal(np.asarray(values), gather_compressed(compressed, projection))


@pytest.mark.parametrize("path", ["cpu", "gpu"])
@pytest.mark.parametrize("projection", GRADIENT_CASES, ids=["row", "column", "gaps", "flat"])
def test_torch_transformations(projection: Projection, path: str) -> None:
    shape = (2, *projection.compression.compressed_shape)
    generator = torch.Generator().manual_seed(0)
    compressed = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)

    index = torch.as_tensor(projection.index)

    def op(array: torch.Tensor) -> torch.Tensor:
        # What a GPU runs has a CPU kernel too, and the same derivatives.
        return face(array, projection) if path == "cpu" else _Gather.apply(array, index, [])

    torch.library.opcheck(_gather_compressed, (compressed.detach(), index, []))
    assert torch.autograd.gradcheck(op, compressed, check_forward_ad=True, fast_mode=False)
    assert torch.autograd.gradgradcheck(op, compressed)
    whole = op(compressed.detach())
    torch.testing.assert_close(torch.func.vmap(op)(compressed.detach()), whole)
    second = torch.func.vmap(op, in_dims=1)(compressed.detach().movedim(0, 1))
    torch.testing.assert_close(second, whole)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(compressed.detach()), whole)


@pytest.mark.parametrize("projection", GRADIENT_CASES, ids=["row", "column", "gaps", "flat"])
def test_jax_transformations(projection: Projection) -> None:
    shape = (2, *projection.compression.compressed_shape)
    compressed = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)

    def op(array: jax.Array) -> jax.Array:
        return gather_compressed(array, projection)

    check_grads(op, (compressed,), order=2, modes=("fwd", "rev"), rtol=1e-2, atol=1e-2)
    whole = op(compressed)
    np.testing.assert_array_equal(jax.vmap(op)(compressed), whole)
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(op, in_axes=2))(jnp.moveaxis(compressed, 0, 2)), whole
    )
    _, scanned = jax.lax.scan(lambda carry, row: (carry, op(row)), 0, compressed)
    np.testing.assert_array_equal(scanned, whole)


def test_indices_are_operands_in_jax() -> None:
    import tritonsnap.jax  # noqa: F401 - registers projections as pytrees

    sizes = []
    for size in (50, 500):
        projection = projection_of(SparsityPattern.random((size, size), 0.1))
        compressed = jnp.zeros(projection.compression.compressed_shape)
        sizes.append(len(jax.jit(gather_compressed).lower(compressed, projection).as_text()))
    assert sizes[1] < sizes[0] + 100
