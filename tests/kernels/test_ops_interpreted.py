"""The ops on torch tensors as a GPU runs them, against dense float64 products."""

import copy

import numpy as np
import pytest
import torch

from tritonsnap.ops.canonical import Addend, block_of
from tritonsnap.ops.device import DeviceDynamics, device_packing
from tritonsnap.ops.influence_gradient.triton import influence_gradient
from tritonsnap.ops.influence_step import torch as step_face
from tritonsnap.ops.influence_step.torch import fused_step, is_fused
from tritonsnap.ops.influence_update.torch_out import OutOperator
from tritonsnap.ops.influence_update.triton import influence_update, snap1_step
from tritonsnap.ops.masked_dsmm.triton import masked_dsmm, product
from tritonsnap.ops.masked_outer.triton import outer
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3}


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so an unwritten output fails."""

    plain = torch.Tensor.new_empty

    def new_empty(tensor, *size, **options):
        fresh = plain(tensor, *size, **options)
        return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


def network(hidden: int, density: float, order: int | None, parts: int = 1):
    """The plan of a network with two maps into each unit, and the factors of its weights."""
    random = np.random.default_rng(hidden)
    states = parts * hidden
    weights = SparsityPattern.random((hidden, hidden), density, 1)
    dynamics = SparsityPattern.identity(states)
    for i in range(parts):
        for j in range(parts):
            shifted = SparsityPattern.from_coo(
                weights.rows + i * hidden, weights.cols + j * hidden, (states, states)
            )
            dynamics = dynamics | shifted
    unit = np.concatenate([np.sort(weights.rows), np.arange(hidden)])  # the second are biases
    target = np.repeat([0, 1], [weights.nnz, hidden])
    source = random.integers(0, hidden + 1, len(unit))
    rows = np.concatenate([unit + part * hidden for part in range(parts)])
    immediate = SparsityPattern.from_coo(
        rows, np.tile(np.arange(len(unit)), parts), (states, len(unit))
    )
    mask = snap_pattern(dynamics, immediate, order)
    plan = DsmmPlan(mask, mask, dynamics)
    structure = FactorStructure(plan, unit, target, source, hidden, 2, hidden + 1)
    return plan, structure


CASES = {
    "snap1": network(20, 0.2, 1),
    "snap1 of two parts": network(9, 0.3, 1, parts=2),
    "snap2": network(30, 0.1, 2),
    "snap3": network(24, 0.06, 3),
    "snap2 of two parts": network(12, 0.15, 2, parts=2),
    "rtrl": network(20, 0.2, None),
    "dense rtrl": network(16, 1.0, None),
}


def immediate_pattern(structure: FactorStructure) -> SparsityPattern:
    """Where the immediate Jacobian of factors may be nonzero."""
    rows, columns = structure.plan.mask.shape
    parts = rows // structure.num_units
    row = np.concatenate([structure.unit + part * structure.num_units for part in range(parts)])
    return SparsityPattern.from_coo(row, np.tile(np.arange(columns), parts), (rows, columns))


def random(*shape: int, dtype=torch.float64) -> torch.Tensor:
    seed = sum(shape)
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def dense(pattern: SparsityPattern, values: torch.Tensor) -> np.ndarray:
    return np.stack([pattern.to_dense(row) for row in values.double().numpy()])


def expect_close(found: torch.Tensor, expected: np.ndarray, dtype=torch.float64) -> None:
    assert found.dtype == dtype
    scale = np.abs(expected).max(initial=1e-300)
    np.testing.assert_allclose(
        found.double().numpy(), expected, rtol=0, atol=TOLERANCE[dtype] * scale
    )


def factored(structure: FactorStructure, gains: torch.Tensor, sources: torch.Tensor) -> np.ndarray:
    """[batch, m, p]: the immediate Jacobian multiplied out."""
    rows, columns = structure.plan.mask.shape
    result = np.zeros((len(gains), rows, columns))
    for part in range(rows // structure.num_units):
        row = structure.unit + part * structure.num_units
        gain = gains.double().numpy()[:, structure.target, row]
        result[:, row, np.arange(columns)] = gain * sources.double().numpy()[:, structure.source]
    return result


@pytest.fixture(params=[None, Regime.WALK, Regime.DENSE], ids=["chosen", "walk", "dense"])
def regime(request: pytest.FixtureRequest) -> Regime | None:
    return request.param


def forced(plan: DsmmPlan, regime: Regime | None) -> DsmmPlan:
    return plan.with_packing(plan.packing("triton", regime))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_update_with_factors(case: str, regime: Regime | None, dtype: torch.dtype) -> None:
    host, structure = CASES[case]
    plan = forced(host, regime)
    rows, batch = plan.mask.shape[0], 3
    d = random(batch, plan.dynamics.nnz, dtype=dtype)
    j = random(batch, plan.mask.nnz, dtype=dtype)
    gains, sources = random(batch, 2, rows, dtype=dtype), random(batch, rows + 1, dtype=dtype)
    sources = sources[:, : structure.num_sources].contiguous()
    scale = random(rows, dtype=dtype)
    found = influence_update(d, j, Factors(gains, sources, structure), plan, row_scale=scale)
    full = scale.double().numpy()[:, None] * dense(plan.dynamics, d) @ dense(plan.mask, j)
    full += factored(structure, gains, sources)
    expect_close(found, plan.mask.values_of(full), dtype)


@pytest.mark.parametrize("case", ["snap1", "snap2", "dense rtrl"])
def test_float16_is_summed_in_float32(case: str, regime: Regime | None) -> None:
    host, structure = CASES[case]
    plan = forced(host, regime)
    rows, dtype = plan.mask.shape[0], torch.float16
    d, j = random(3, plan.dynamics.nnz, dtype=dtype), random(3, plan.mask.nnz, dtype=dtype)
    gains = random(3, 2, rows, dtype=dtype)
    sources = random(3, structure.num_sources, dtype=dtype)
    delta = random(3, rows, dtype=dtype)
    found = influence_update(d, j, Factors(gains, sources, structure), plan)
    full = dense(plan.dynamics, d) @ dense(plan.mask, j) + factored(structure, gains, sources)
    expect_close(found, plan.mask.values_of(full), dtype)
    gradient = influence_gradient(delta, found, plan, sum_batch=True)
    summed = np.einsum("bs,bsp->p", delta.double().numpy(), dense(plan.mask, found))
    expect_close(gradient, summed, dtype)


@pytest.mark.parametrize("case", ["snap1", "snap2", "rtrl", "snap2 of two parts"])
def test_update_with_values_and_a_dense_d(case: str, regime: Regime | None) -> None:
    plan = forced(CASES[case][0], regime)
    rows = plan.mask.shape[0]
    d = random(2, rows, rows)
    j, immediate = random(2, plan.mask.nnz), random(2, plan.mask.nnz) + 1
    found = influence_update(d, j, immediate, plan)
    kept = d.numpy() * plan.dynamics.to_dense()
    full = kept @ dense(plan.mask, j) + dense(plan.mask, immediate)
    expect_close(found, plan.mask.values_of(full))


@pytest.mark.parametrize("case", ["snap1", "snap2", "snap2 of two parts", "dense rtrl"])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_update_with_a_compressed_jacobian(
    case: str, lead: tuple[int, ...], regime: Regime | None
) -> None:
    host, factors = CASES[case]
    plan = forced(host, regime)
    mask = immediate_pattern(factors)
    structure = CompressedStructure(plan, Projection.of(Compression.of(mask, mode="row")))
    assert structure.num_colors < mask.shape[0]
    d, j = random(2, plan.dynamics.nnz), random(2, plan.mask.nnz)
    values = random(*lead, structure.num_colors, mask.shape[1])
    found = influence_update(d, j, Compressed(values, structure), plan)
    colors = structure.projection.row_colors
    full = dense(plan.dynamics, d) @ dense(plan.mask, j)
    full += values.numpy()[..., colors, :] * mask.to_dense()
    expect_close(found, plan.mask.values_of(full))


@pytest.mark.parametrize("lead", [(), (1,), (2, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_product_of_random_patterns(
    seed: int, lead: tuple[int, ...], regime: Regime | None
) -> None:
    x = SparsityPattern.random((17, 90), 0.2 + 0.3 * seed, seed)
    mask = SparsityPattern.random((13, 90), 0.5 - 0.2 * seed, seed + 9)
    plan = forced(DsmmPlan(x, mask), regime)
    d, values = random(13, 17), random(*lead, x.nnz)
    found = masked_dsmm(d, values, plan)
    full = d.numpy() @ dense(x, values.reshape(-1, x.nnz))
    expect_close(found, mask.values_of(full).reshape(*lead, mask.nnz))


def test_adjoint_is_the_product_on_the_transposed_plan(regime: Regime | None) -> None:
    x, mask = SparsityPattern.random((17, 50), 0.3, 1), SparsityPattern.random((13, 50), 0.4, 2)
    plan = forced(DsmmPlan(x, mask), regime)
    d, r = random(2, 13, 17), random(2, mask.nnz)
    found = masked_dsmm(d.mT.contiguous(), r, plan.transpose())
    full = d.mT.numpy() @ dense(mask, r)
    expect_close(found, x.values_of(full))


@pytest.mark.parametrize("sum_batch", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradient(case: str, sum_batch: bool) -> None:
    plan, _ = CASES[case]
    j, delta = random(3, plan.mask.nnz), random(3, plan.mask.shape[0])
    found = influence_gradient(delta, j, plan, sum_batch=sum_batch)
    expected = np.einsum("bs,bsp->bp", delta.numpy(), dense(plan.mask, j))
    expect_close(found, expected.sum(axis=0) if sum_batch else expected)


TALL = SparsityPattern.random((70, 3), 0.3, 1), SparsityPattern.random((67, 3), 0.2, 2)
OUTER_PLANS = {name: CASES[name][0] for name in ("snap1", "snap2 of two parts", "rtrl")} | {
    "columns in many runs": DsmmPlan(*(part.take_columns(np.arange(9) % 3) for part in TALL)),
    "sparse dynamics": DsmmPlan(*TALL, SparsityPattern.random((67, 70), 0.05)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("build", ["of_pairs", "of_groups", "of_dynamics"])
@pytest.mark.parametrize("case", OUTER_PLANS)
def test_outer_is_the_adjoint_in_d(case: str, build: str, dtype: torch.dtype) -> None:
    plan = OUTER_PLANS[case]
    host = copy.copy(plan.packing("triton"))
    host.__dict__["pairs"] = getattr(OuterPairs, build)(host.groups, host.dynamics)
    r, x = random(3, plan.mask.nnz, dtype=dtype), random(3, plan.x.nnz, dtype=dtype) + 1
    packing = device_packing(host, r.device)
    (left,), (right,) = packing.pack(r, "mask"), packing.pack(x, "x")
    full = dense(plan.mask, r) @ dense(plan.x, x).swapaxes(1, 2)
    expect_close(outer(packing, host, left, right), plan.dynamics.values_of(full), dtype)


def test_snap1_step() -> None:
    plan, structure = CASES["snap1"]
    batch, rows = 5, plan.mask.shape[0]
    d, j = random(batch, plan.dynamics.nnz), random(batch, plan.mask.nnz)
    factors = Factors(random(batch, 2, rows), random(batch, rows + 1), structure)
    delta = random(batch, rows) + 1
    expected = influence_update(d, j, factors, plan)
    gradient = influence_gradient(delta, expected, plan, sum_batch=True)
    blocks = device_packing(plan.packing("triton"), d.device).pack(j)
    (found,), found_gradient = snap1_step(d, blocks, factors, delta, plan)
    expect_close(found[:, : plan.mask.nnz], expected.numpy())
    expect_close(found_gradient, gradient.numpy())


def step_operands(case: str):
    """The operands of `influence_step`, of three batch rows."""
    plan, structure = CASES[case]
    rows = plan.mask.shape[0]
    d, j = random(3, plan.dynamics.nnz), random(3, plan.mask.nnz)
    factors = Factors(random(3, 2, rows), random(3, structure.num_sources), structure)
    return d, j, factors, random(3, rows) + 1, plan, random(rows)


@pytest.mark.parametrize("packed", [False, True])
def test_fused_step(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_face, "torch_packing", lambda plan, like: plan.packing("triton"))
    monkeypatch.setattr(OutOperator, "_cpu", OutOperator._device)
    d, j, factors, delta, plan, scale = step_operands("snap1")
    expected = influence_update(d, j, factors, plan, row_scale=scale)
    gradient = influence_gradient(delta, expected, plan, sum_batch=True)
    given = device_packing(plan.packing("triton"), d.device).pack(j) if packed else j
    found, own = fused_step(d, given, factors, delta, plan, scale, "values", packed)
    expect_close(found[0][:, : plan.mask.nnz] if packed else found, expected.numpy())
    expect_close(own[0] if packed else own, gradient.numpy())


@pytest.mark.parametrize("case", ["snap1", "snap2"])
def test_only_snap1_steps_without_derivatives_are_fused(case: str) -> None:
    *operands, scale = step_operands(case)
    d, j, factors, delta, plan = operands
    assert not is_fused(d, j, factors, delta, plan, scale)  # on the CPU
    d, j, delta, scale = (one.to("meta") for one in (d, j, delta, scale))
    factors = Factors(*(one.to("meta") for one in factors[:2]), factors.structure)
    assert is_fused(d, j, factors, delta, plan, scale) == (case == "snap1")
    assert is_fused(d, (j,), j, delta, plan, None) == (case == "snap1")
    assert not is_fused(d, j, factors, delta.float(), plan, scale)
    assert not is_fused(d, j, factors, delta.requires_grad_(), plan, scale)


def test_snap1_step_refuses_longer_columns() -> None:
    plan, structure = CASES["snap2"]
    factors = Factors(random(2, 30), random(31), structure)
    with pytest.raises(ValueError, match="`plan` must have one row in every column"):
        snap1_step(random(plan.dynamics.nnz), random(plan.mask.nnz), factors, random(30), plan)


@pytest.mark.parametrize("case", ["snap1", "snap2", "dense rtrl"])
def test_nan_stays_in_its_batch_row(case: str, regime: Regime | None) -> None:
    host, structure = CASES[case]
    plan = forced(host, regime)
    rows = plan.mask.shape[0]
    j = random(3, plan.mask.nnz)
    factors = Factors(random(3, 2, rows), random(3, structure.num_sources), structure)
    d = random(3, plan.dynamics.nnz)
    clean = influence_update(d, j, factors, plan)
    j[1] = torch.nan
    found = influence_update(d, j, factors, plan)
    assert torch.equal(found[[0, 2]], clean[[0, 2]])
    assert found[1].isnan().any()


def test_same_input_same_bits() -> None:
    plan, _ = CASES["snap2"]
    d, j = random(4, plan.dynamics.nnz), random(4, plan.mask.nnz)
    assert torch.equal(masked_dsmm(d, j, plan), masked_dsmm(d, j, plan))


@pytest.mark.parametrize("rows", [16, 100, 250])
def test_dense_products_of_whole_columns_may_be_in_place(rows: int) -> None:
    mask = SparsityPattern.full((rows, 33))
    plan = forced(DsmmPlan(mask, mask), Regime.DENSE)
    packing = device_packing(plan.packing("triton"), torch.device("cpu"))
    assert block_of(packing).in_place
    d, j = random(2, rows, rows), random(2, mask.nnz)
    (x,) = packing.pack(j.clone())
    out = product(packing, DeviceDynamics(d, "dense", packing, (2,)), x, Addend(), "ieee", x)
    assert out.data_ptr() == x.data_ptr()
    expect_close(out[:, : mask.nnz], mask.values_of(d.numpy() @ dense(mask, j)))


def test_walks_and_longer_columns_need_two_buffers() -> None:
    mask = SparsityPattern.full((257, 8))
    assert not DsmmPlan(mask, mask).packing("triton", Regime.DENSE).blocks[0].in_place
    plan = CASES["dense rtrl"][0]
    assert not plan.packing("triton", Regime.WALK).blocks[0].in_place


def test_aligned_dense_products() -> None:
    mask = SparsityPattern.full((64, 80))
    plan = DsmmPlan(mask, mask)
    assert plan.packing("triton", Regime.DENSE).blocks[0].aligned
    d, j = random(2, 64, 64), random(2, mask.nnz)
    found = masked_dsmm(d, j, forced(plan, Regime.DENSE))
    expect_close(found, mask.values_of(d.numpy() @ dense(mask, j)))
