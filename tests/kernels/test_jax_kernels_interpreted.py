"""The JAX ops by the kernels that they are lowered to for a GPU, with those very arguments."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

from tritonsnap.jax import (
    coo_to_csr,
    gather_compressed,
    influence_gradient,
    influence_step,
    influence_update,
    lower_for,
    make_jacobian_projection,
    masked_dsmm,
    masked_outer,
)
from tritonsnap.kan import KAN, Rule, train_step
from tritonsnap.ops.jax_launch import kernel_call
from tritonsnap.ops.masked_dsmm.jax import bind_product
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import (
    Compression,
    Projection,
    SparsityPattern,
    snap_pattern,
)
from tritonsnap.tuning import TARGETS

BATCH = 3
UNITS = 9


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run the kernels in place of the primitives; the names of those that ran."""
    names: list[str] = []

    def launch(kernel: Any, *arguments: Any, over: bool = False) -> tuple[Any, ...]:
        call = kernel_call(TARGETS[1], kernel, *arguments, over=over)
        inputs = [
            torch.from_numpy(np.array(one)) if hasattr(one, "shape") else one for one in call.inputs
        ]
        outputs = []
        for one in call.outputs:
            kind = getattr(torch, str(one.dtype))
            poison = torch.nan if kind.is_floating_point else -1
            outputs.append(torch.full(one.shape, poison, dtype=kind))
        constexprs = dict(call.constexprs)
        if call.over is not None:  # as jax-triton 0.4; with 0.3 it is as in PyTorch
            source, output = call.over
            outputs[output] = inputs[source]
            inputs[source] = torch.full_like(inputs[source], torch.nan)
            constexprs["IN_PLACE"] = True
        kernel.function[call.grid](*inputs, *outputs, **constexprs, **call.options)
        names.append(kernel.name)
        return tuple(jnp.asarray(one.numpy()) for one in outputs)

    def bind(self: Any, structure: Any, operands: Any, axes: Any, **params: Any) -> Any:
        return self.kernels(launch, structure, *operands, **params)

    monkeypatch.setattr(PlanPrimitive, "__call__", bind)
    with jax.enable_x64(True), lower_for(TARGETS[1]):
        yield names


def network(order: int | None, regime: Regime | None) -> tuple[DsmmPlan, FactorStructure]:
    """A plan of a small network, with one parameter for each weight, and its factors."""
    weights = np.random.default_rng(2).random((UNITS, UNITS)) < 0.3
    weights[:, 0] = False  # unit 0 reaches no other: its group has one row in every regime
    weights[0, 3] = True
    dynamics = SparsityPattern.from_dense(weights | np.eye(UNITS, dtype=bool))
    unit = np.nonzero(weights)[0]
    immediate = SparsityPattern.from_coo(unit, np.arange(len(unit)), (UNITS, len(unit)))
    mask = snap_pattern(dynamics, immediate, order)
    plan = DsmmPlan(mask, mask, dynamics)
    if regime is not None:
        plan = plan.with_packing(plan.packing("triton", regime))
    target, source = np.arange(len(unit)) % 2, np.arange(len(unit)) % 5
    return plan, FactorStructure(plan, unit, target, source, UNITS, 2, 5)


def draw(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape))


def close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


every_plan = pytest.mark.parametrize(
    ("order", "regime"),
    [(1, None), (2, Regime.WALK), (2, Regime.DENSE)],
    ids=["elementwise", "walk", "walk and dense"],
)


@every_plan
@pytest.mark.parametrize("form", ["values", "dense"])
def test_product_and_its_transpose(order: int, regime: Regime | None, form: str) -> None:
    plan, _ = network(order, regime)
    pattern, mask = plan.dynamics, plan.mask
    values, j = draw(BATCH, pattern.nnz), draw(BATCH, mask.nnz)
    dense = pattern.to_dense(np.asarray(values))
    d = jnp.asarray(dense) if form == "dense" else values
    influence = mask.to_dense(np.asarray(j))
    scale = draw(BATCH, UNITS)
    scaled = np.asarray(scale)[..., None] * dense @ influence
    found = masked_dsmm(d, j, plan, row_scale=scale, form=form)
    close(found, mask.values_of(scaled))
    packed = plan.pack(j)
    assert packed[0].shape == (BATCH, plan.packing("triton").shapes("x")[0][0])
    (block,) = bind_product(plan, d, form, packed, flipped=True)
    adjoint = np.swapaxes(dense, -1, -2) @ influence
    close(block[..., : mask.nnz], mask.values_of(adjoint))
    close(block[..., mask.nnz :], np.zeros((BATCH, block.shape[-1] - mask.nnz)))


@every_plan
def test_outer_product(order: int, regime: Regime | None) -> None:
    plan, _ = network(order, regime)
    r, x = draw(BATCH, plan.mask.nnz), draw(plan.x.nnz)
    left, right = plan.mask.to_dense(np.asarray(r)), plan.x.to_dense(np.asarray(x))
    close(masked_outer(r, x, plan), plan.dynamics.values_of(left @ right.T))


@pytest.mark.parametrize("form", ["values", "dense"])
@pytest.mark.parametrize("rows", [(40, 40), (33, 40)], ids=["full", "two sizes"])
def test_outer_product_in_tiles(launched: list[str], rows: tuple[int, int], form: str) -> None:
    heights = np.repeat(rows, 20)
    mask = SparsityPattern.from_dense(np.arange(40)[:, None] < heights)
    x = SparsityPattern.from_dense(np.arange(39, -1, -1)[:, None] < heights[::-1])
    plan = DsmmPlan(x, mask)
    assert (plan.dynamics.nnz < 1600) == (rows == (33, 40))
    left, right = draw(BATCH, mask.nnz), draw(BATCH, x.nnz)
    found = masked_outer(left, right, plan, form=form)
    dense = mask.to_dense(np.asarray(left)) @ x.to_dense(np.asarray(right)).swapaxes(1, 2)
    kept = dense * plan.dynamics.to_dense()
    close(found, kept if form == "dense" else plan.dynamics.values_of(kept))
    assert launched == ["outer_tiles"]


@every_plan
def test_update(order: int, regime: Regime | None, launched: list[str]) -> None:
    plan, structure = network(order, regime)
    pattern, mask = plan.dynamics, plan.mask
    d, j = draw(pattern.nnz), draw(BATCH, mask.nnz)
    gains, sources = draw(BATCH, 2, UNITS), draw(BATCH, 5)
    added = np.zeros((BATCH, *mask.shape))
    for column in range(mask.shape[1]):
        unit, target = structure.unit[column], structure.target[column]
        own = np.asarray(gains)[:, target, unit] * sources[:, structure.source[column]]
        added[:, unit, column] = own
    product = pattern.to_dense(np.asarray(d)) @ mask.to_dense(np.asarray(j))
    found = influence_update(d, j, Factors(gains, sources, structure), plan)
    close(found, mask.values_of(product + added))
    if regime == Regime.DENSE:
        assert set(launched) >= {"walk_product", "group_product_16"}


def compressed(structure: FactorStructure) -> tuple[Compressed, np.ndarray]:
    """A compressed immediate Jacobian with the pattern of factors, and it dense."""
    plan = structure.plan
    columns = np.arange(plan.mask.shape[1])
    pattern = SparsityPattern.from_coo(structure.unit, columns, plan.mask.shape)
    projection = Projection.of(Compression.of(pattern, mode="row"))
    values = draw(BATCH, projection.compression.num_passes, len(columns))
    dense = np.asarray(values)[:, projection.row_colors] * pattern.to_dense()
    return Compressed(values, CompressedStructure(plan, projection)), dense


@every_plan
def test_update_with_a_compressed_jacobian(
    order: int, regime: Regime | None, launched: list[str]
) -> None:
    plan, structure = network(order, regime)
    immediate, added = compressed(structure)
    d, j, scale = draw(plan.dynamics.nnz), draw(BATCH, plan.mask.nnz), draw(UNITS)
    product = np.asarray(scale)[:, None] * plan.dynamics.to_dense(np.asarray(d))
    product = product @ plan.mask.to_dense(np.asarray(j))
    found = influence_update(d, j, immediate, plan, row_scale=scale)
    close(found, plan.mask.values_of(product + added))
    assert len(launched) == (2 if regime == Regime.DENSE else 1)


@pytest.mark.parametrize("kind", ["factors", "compressed"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_snap1(kind: str, packed: bool, launched: list[str]) -> None:
    plan, structure = network(1, None)
    d, j = draw(BATCH, plan.dynamics.nnz), draw(BATCH, plan.mask.nnz)
    delta, scale = draw(UNITS), draw(BATCH, UNITS)
    immediate: Any = Factors(draw(BATCH, 2, UNITS), draw(5), structure)
    if kind == "compressed":
        immediate, _ = compressed(structure)
    given = plan.pack(j) if packed else j
    found, gradient = influence_step(
        d, given, immediate, delta, plan, row_scale=scale, packed=packed
    )
    assert launched == ["snap1_step"]
    expected = influence_update(d, j, immediate, plan, row_scale=scale)
    close(found[0][..., : plan.mask.nnz] if packed else found, np.asarray(expected))
    dense = plan.mask.to_dense(np.asarray(expected))
    summed = np.einsum("s,bsp->p", np.asarray(delta), dense)
    close(gradient[0] if packed else gradient, summed)


@pytest.mark.parametrize("rows", [1, 17, 64])
def test_an_influence_is_laid_over_the_old_one(rows: int, launched: list[str]) -> None:
    units = 64
    support = np.arange(units)[:, None] // rows == np.arange(units) // rows
    mask = SparsityPattern.from_dense(support[: units // rows * rows, : units // rows * rows])
    plan = DsmmPlan(mask, mask)
    plan = plan.with_packing(plan.packing("triton", Regime.DENSE))
    states, columns = mask.shape
    unit = np.arange(columns)
    structure = FactorStructure(plan, unit, 0 * unit, unit % 5, states, 1, 5)
    d, j = draw(BATCH, plan.dynamics.nnz), plan.pack(draw(BATCH, mask.nnz))
    factors, delta = Factors(draw(BATCH, 1, states), draw(5), structure), draw(states)
    expected = influence_step(d, j, factors, delta, plan, form="values")
    found = influence_step(d, j, factors, delta, plan, form="values", out=j)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert launched[: len(launched) // 2] == launched[len(launched) // 2 :]


def test_only_j_may_be_written_over() -> None:
    plan, structure = network(2, Regime.WALK)
    d, j = draw(BATCH, plan.dynamics.nnz), plan.pack(draw(BATCH, plan.mask.nnz))
    factors = Factors(draw(BATCH, 2, UNITS), draw(5), structure)
    with pytest.raises(ValueError, match="`out` must not be `j` with this plan"):
        influence_update(d, j, factors, plan, out=j)
    with pytest.raises(ValueError, match="`out` must be `j` itself"):
        influence_update(d, j, factors, plan, out=(j[0] + 0,))


@every_plan
@pytest.mark.parametrize("sum_batch", [False, True])
def test_gradient(order: int, regime: Regime | None, sum_batch: bool) -> None:
    plan, _ = network(order, regime)
    delta, j = draw(BATCH, UNITS), draw(BATCH, plan.mask.nnz)
    dense = plan.mask.to_dense(np.asarray(j))
    expected = np.einsum("bs,bsp->bp", np.asarray(delta), dense)
    found = influence_gradient(delta, j, plan, sum_batch=sum_batch)
    close(found, expected.sum(0) if sum_batch else expected)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_row_pointers(is_sorted: bool) -> None:
    rows = np.random.default_rng(0).integers(0, 40, 3000).astype(np.int32)
    rows = np.sort(rows) if is_sorted else rows
    found = coo_to_csr(jnp.asarray(rows), 41, indices_are_sorted=is_sorted)
    np.testing.assert_array_equal(found, np.append(0, np.cumsum(np.bincount(rows, minlength=41))))


def test_gather_by_index_and_by_runs(launched: list[str]) -> None:
    scattered = SparsityPattern.random((12, 20), 0.2, 0)
    equal_columns = SparsityPattern.from_dense(np.repeat([[1, 0], [1, 1], [0, 1]], 9, axis=1) == 1)
    for pattern in (scattered, equal_columns):
        (projection,) = make_jacobian_projection(pattern, mode="row").leaves.values()
        jacobian = draw(BATCH, pattern.nnz)
        colors = np.asarray(projection.row_colors)
        seeds = np.arange(colors.max() + 1)[:, None] == colors
        compressed = seeds @ pattern.to_dense(np.asarray(jacobian))
        np.testing.assert_array_equal(
            gather_compressed(jnp.asarray(compressed), projection), jacobian
        )
    assert launched == ["gather_index", "gather_runs"]


def test_a_step_of_a_kan_in_blocks(launched: list[str]) -> None:
    random = np.random.default_rng(2)
    x, y = random.uniform(-1, 1, (40, 3)), random.normal(size=(40, 2))
    model = KAN(3, 5, 4, 7, targets=2, dtype="float64")
    model.initialize(x[:30], y[:30])
    rule = Rule("newton-kaczmarz", "mean", 0.5, 1.0, 1.0, 0.3, 1.0, 0.75, 2.0, adapt=True)
    expected, error = train_step(model.functions, x, y, rule)
    found, found_error = train_step(model.functions_in("jax"), jnp.asarray(x), jnp.asarray(y), rule)
    for one, other in zip((*found, found_error), (*expected, error), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11 * np.abs(other).max())
    assert sorted(launched) == [
        "kan_gram",
        "kan_inner_change",
        "kan_inner_sums",
        "kan_outer_change",
        "kan_outer_values",
    ]
