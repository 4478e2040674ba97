"""Layers without memory: their derivatives, their structure."""

from functools import partial

import numpy as np
import pytest
from test_cells import central_differences

from tritonsnap import LayerNorm, Linear, SparsityPattern
from tritonsnap.arrays import LIBRARIES, namespace, to_numpy

LAYERS = [
    Linear(5, 3),
    Linear(5, 4, density=0.4, seed=1),
    Linear(2, 3, pattern=SparsityPattern.from_coo([1, 0], [0, 2], (2, 3))),
    LayerNorm(5),
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=["dense", "sparse", "pattern", "norm"])


def values(layer) -> tuple[dict, np.ndarray, np.ndarray]:
    """Parameters, inputs and gradients in the outputs, all drawn."""
    rng = np.random.default_rng(0)
    params = {n: v + rng.normal(size=v.shape) for n, v in layer.draw(rng).items()}
    return params, rng.normal(size=(2, layer.inputs)), rng.normal(size=(2, layer.outputs))


def from_flat(layer, theta: np.ndarray) -> dict:
    ends = np.cumsum([linear.num_parameters for linear in layer.maps])
    pieces = np.split(theta, ends[:-1])
    return {m.name: m.shaped(piece) for m, piece in zip(layer.maps, pieces, strict=True)}


def output_of(layer, x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return layer.apply(from_flat(layer, theta), x)


@layers
@pytest.mark.parametrize("like", LIBRARIES)
def test_derivatives_are_those_of_finite_differences(layer, like: str) -> None:
    jax = pytest.importorskip("jax")
    params, x, delta = values(layer)
    flat = np.concatenate([linear.flat(params[linear.name]) for linear in layer.maps])
    of_x = np.stack([central_differences(lambda x: layer.apply(params, x), row) for row in x])
    of_params = np.stack([central_differences(partial(output_of, layer, row), flat) for row in x])
    with jax.enable_x64(True):
        xp = namespace(like)
        given = {name: xp.asarray(value) for name, value in params.items()}
        arrays = given, xp.asarray(x)
        jacobian = np.broadcast_to(to_numpy(layer.jacobian(*arrays)), of_x.shape)
        immediate = to_numpy(layer.immediate(*arrays))
        below = to_numpy(layer.pull_back(*arrays, xp.asarray(delta)))
        found = {n: to_numpy(g) for n, g in layer.gradients(*arrays, xp.asarray(delta)).items()}
    np.testing.assert_allclose(jacobian, of_x, atol=1e-8)
    np.testing.assert_allclose(below, np.einsum("bo,boi->bi", delta, of_x), atol=1e-8)
    dense = np.zeros_like(of_params)
    pattern = layer.immediate_pattern
    dense[:, pattern.rows, pattern.cols] = immediate
    np.testing.assert_allclose(dense, of_params, atol=1e-8)
    expected = from_flat(layer, np.einsum("bo,bop->p", delta, of_params))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-8)
    assert layer.jacobian_pattern.contains(SparsityPattern.from_dense(np.abs(of_x[0]) > 1e-8))


def test_a_normalised_row_has_mean_zero_and_variance_one() -> None:
    layer = LayerNorm(64)
    found = layer.apply(layer.draw(np.random.default_rng(0)), 3 + values(layer)[1])
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(found.var(-1), 1, rtol=1e-4)


def test_digests_are_by_content() -> None:
    same = [Linear(4, 4, pattern=SparsityPattern.identity(4)) for _ in range(2)]
    assert same[0].digest == same[1].digest
    others = [Linear(4, 4), Linear(4, 4, density=0.5), LayerNorm(4), LayerNorm(4, epsilon=1e-3)]
    assert len({layer.digest for layer in (same[0], *others)}) == 5


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Linear(0, 2), ValueError, "`inputs` must be at least 1 .*, got 0"),
        (lambda: Linear(2, 1.5), TypeError, "`outputs` must be an integer, got 1.5"),
        (lambda: Linear(2, 2, density=0), ValueError, r"`density` must lie in \(0, 1\], got 0"),
        (lambda: Linear(2, 2, pattern=np.eye(2)), TypeError, "`pattern` must be a SparsityPattern"),
        (
            lambda: Linear(2, 3, pattern=SparsityPattern.identity(2)),
            ValueError,
            r"`pattern` must have shape \(2, 3\)",
        ),
        (lambda: LayerNorm(0), ValueError, "`units` must be at least 1 .*, got 0"),
        (lambda: LayerNorm(2, epsilon=0), ValueError, r"`epsilon` must lie in \(0, inf\), got 0"),
    ],
)
def test_wrong_arguments(make, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
