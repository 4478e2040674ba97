"""Kernels that write an influence over the old one: which may, and that they change no bit."""

from typing import Any

import numpy as np
import pytest
import torch

from tritonsnap import RNN, SnAp, influence_step
from tritonsnap.online import snap
from tritonsnap.online.carry import Carry, memory_of_steps
from tritonsnap.ops.canonical import Addend
from tritonsnap.ops.device import DeviceDynamics, device_packing
from tritonsnap.ops.influence_gradient import torch as gradient_face
from tritonsnap.ops.influence_step import torch as step_face
from tritonsnap.ops.influence_update import torch as update_face
from tritonsnap.ops.influence_update.kernels import SNAP1_STEP, SNAP1_UPDATE
from tritonsnap.ops.influence_update.torch_out import OutOperator
from tritonsnap.ops.influence_update.triton import influence_update
from tritonsnap.ops.kernel import Kernel
from tritonsnap.ops.masked_dsmm.triton import product
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.torch_operator import PlanOperator
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern
from tritonsnap.tuning import TARGETS

BATCH = 3
KINDS = ["factors", "compressed", "values"]


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the CPU's tensors for a GPU's, and poison fresh memory."""
    for face in (update_face, step_face):
        monkeypatch.setattr(face, "torch_packing", lambda plan, like: plan.packing("triton"))
    monkeypatch.setattr(OutOperator, "_cpu", OutOperator._device)
    plain = torch.Tensor.new_empty

    def new_empty(tensor: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        fresh = plain(tensor, *size, **options)
        return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


def network(units: int, order: int | None, density: float, regime: Regime | None = None):
    """A plan, and factors of one gain for each weight."""
    weights = SparsityPattern.random((units, units), density, 1)
    dynamics = weights | SparsityPattern.identity(units)
    unit, columns = np.sort(weights.rows), np.arange(weights.nnz)
    immediate = SparsityPattern.from_coo(unit, columns, (units, weights.nnz))
    return problem(snap_pattern(dynamics, immediate, order), dynamics, unit, regime)


def group(rows: int, columns: int):
    """The same where all columns are full."""
    unit = np.arange(columns) % rows
    return problem(SparsityPattern.full((rows, columns)), None, unit, Regime.DENSE)


def problem(
    mask: SparsityPattern,
    dynamics: SparsityPattern | None,
    unit: np.ndarray,
    regime: Regime | None,
):
    plan = DsmmPlan(mask, mask, dynamics)
    if regime is not None:
        plan = plan.with_packing(plan.packing("triton", regime))
    units, columns = mask.shape[0], np.arange(mask.shape[1])
    immediate = SparsityPattern.from_coo(unit, columns, mask.shape)
    structure = FactorStructure(plan, unit, 0 * unit, columns % units, units, 1, units)
    colors = CompressedStructure(plan, Projection.of(Compression.of(immediate, mode="row")))
    return plan, structure, colors


SAFE = {
    "snap1": network(23, 1, 0.6),
    "snap1 of two programs": network(30, 1, 0.9),
    "dense, of a network": network(17, None, 0.5, Regime.DENSE),
    "dense, 100 rows": group(100, 71),
    "dense, 250 rows": group(250, 35),
}
UNSAFE = {
    "walk": network(17, None, 0.5, Regime.WALK),
    "walk and dense": network(20, 2, 0.1, Regime.DENSE),
    "columns of several programs": group(257, 9),
}


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape)).to(dtype)


def operands(name: str, kind: str, dtype: torch.dtype = torch.float64):
    plan, structure, colors = (SAFE | UNSAFE)[name]
    rows, columns = plan.mask.shape
    d = draw(BATCH, plan.dynamics.nnz, dtype=dtype)
    j = plan.packing("triton").pack(draw(BATCH, plan.mask.nnz, dtype=dtype))
    immediate: Any = {
        "factors": Factors(draw(1, rows, dtype=dtype), draw(BATCH, rows, dtype=dtype), structure),
        "compressed": Compressed(draw(BATCH, colors.num_colors, columns, dtype=dtype), colors),
        "values": plan.packing("triton").pack(draw(BATCH, plan.mask.nnz, dtype=dtype) + 1),
    }[kind]
    return plan, d, j, immediate, draw(rows, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ("snap1", "dense, of a network") for kind in KINDS]
    + [(name, "factors") for name in SAFE if name not in ("snap1", "dense, of a network")],
)
def test_update_in_place_has_the_same_bits(name: str, kind: str) -> None:
    plan, d, j, immediate, scale = operands(name, kind)
    assert plan.packing("triton").in_place
    expected = influence_update(d, j, immediate, plan, row_scale=scale)
    fresh = (torch.full_like(j[0], torch.nan),)
    for out in (fresh, j):
        found = update_face.influence_update(d, j, immediate, plan, row_scale=scale, out=out)
        assert found[0] is out[0]
        assert torch.equal(found[0], expected[0])
        assert not found[0][:, plan.mask.nnz :].any()
    assert j[0].shape[1] % 16 == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_step_in_place_has_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    plan, d, j, immediate, scale = operands("snap1 of two programs", kind, dtype)
    delta = draw(BATCH, plan.mask.shape[0], dtype=dtype) + 1
    arguments = d, j, immediate, delta, plan, scale, "values", False
    before = j[0].clone()
    (expected,), gradient = step_face.fused_step(*arguments)
    assert torch.equal(j[0], before)
    (found,), own = step_face.fused_step(*arguments, out=j)
    assert found is j[0]
    assert torch.equal(found, expected)
    assert torch.equal(own, gradient)


def test_a_view_of_the_same_memory_is_the_influence_too() -> None:
    plan, d, j, immediate, _ = operands("snap1", "factors")
    expected = influence_update(d, j, immediate, plan)
    found = update_face.influence_update(d, j, immediate, plan, out=(j[0].view_as(j[0]),))
    assert torch.equal(found[0], expected[0])
    assert found[0].data_ptr() == j[0].data_ptr()


@pytest.mark.parametrize("name", UNSAFE)
def test_where_programs_read_what_others_write_two_buffers_are_needed(name: str) -> None:
    plan, d, j, immediate, _ = operands(name, "factors")
    packing = plan.packing("triton")
    assert not packing.in_place
    with pytest.raises(ValueError, match="`out` must not be `j` with this plan"):
        update_face.influence_update(d, j, immediate, plan, out=j)
    fresh = (torch.full_like(j[0], torch.nan),)
    found = update_face.influence_update(d, j, immediate, plan, out=fresh)
    assert torch.equal(found[0], influence_update(d, j, immediate, plan)[0])


@pytest.mark.parametrize("name", ["walk", "columns of several programs"])
def test_the_refusal_has_a_reason(name: str) -> None:
    plan, d, j, _, _ = operands(name, "values")
    packing = device_packing(plan.packing("triton"), d.device)
    arguments = packing, DeviceDynamics(d, "values", packing, (BATCH,))
    expected = product(*arguments, j[0], Addend(), "ieee")
    found = product(*arguments, j[0], Addend(), "ieee", j[0])
    assert not torch.allclose(found, expected)


def test_memory_shared_otherwise_is_refused() -> None:
    plan, d, (j,), immediate, _ = operands("snap1", "values")
    wide = torch.cat([j, j])
    refused = {
        "shares memory": [(j, immediate[0]), (wide[:BATCH], wide[1 : 1 + BATCH])],
        "must be contiguous": [(j, torch.empty_like(j).T.contiguous().T)],
    }
    for message, pairs in refused.items():
        for given, out in pairs:
            with pytest.raises(ValueError, match=rf"`out\[0\]` {message}"):
                update_face.influence_update(d, (given,), immediate, plan, out=(out,))


@pytest.mark.parametrize("kernel", [SNAP1_STEP, SNAP1_UPDATE], ids=lambda kernel: kernel.name)
def test_no_value_of_an_elementwise_step_is_held_by_two_threads(kernel: Kernel) -> None:
    """The other one could read it when it is written already: no interpreter shows that."""
    tile = kernel.constants["TILE"]
    defaults = [
        kernel.default(sizes, dtype, "ieee", device)
        for device in TARGETS
        for dtype in kernel.dtypes
        for sizes in (*kernel.small, *kernel.large)
    ]
    for config in (*kernel.configs, *defaults):
        assert config["B"] * config["TILES"] * tile >= 64 * config["num_warps"]


@pytest.mark.parametrize("stored", [None, "float16"])
@pytest.mark.parametrize("order", [1, None])
def test_a_sequence_keeps_one_influence(
    order: int | None, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DsmmPlan, "packing_for", lambda plan, *_: plan.packing("triton"))
    monkeypatch.setattr(PlanOperator, "_cpu", PlanOperator._device)
    monkeypatch.setattr(gradient_face, "torch_packing", lambda plan, like: plan.packing("triton"))
    monkeypatch.setattr(step_face, "is_fused", lambda *_: order == 1)
    written: list[Any] = []

    def remember(*arguments: Any, out: Any, **options: Any) -> Any:
        written.append(out)
        return influence_step(*arguments, out=out if len(written) > len(xs) else None, **options)

    monkeypatch.setattr(snap, "influence_step", remember)
    learner = SnAp(RNN(inputs=2, hidden=6, seed=1), order=order, influence_dtype=stored)
    assert learner.plan.packing("triton").in_place
    params = learner.cell.init(0, like="torch")
    xs, ys = draw(5, 2, 2, dtype=torch.float32), draw(5, 2, 6, dtype=torch.float32)
    carry = learner.init(2, like="torch")
    carry = carry._replace(influence=tuple(torch.ones_like(one) for one in carry.influence))
    results = []
    for _ in ("in new memory", "in place"):
        loss = lambda state, y: ((state - y) ** 2).sum(-1)  # noqa: E731
        _, gradients, end = learner.sequence(params, carry, xs, ys, loss)
        results.append([*gradients.values(), *end.influence])
        assert all(bool((one == 1).all()) for one in carry.influence)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    if stored is None:  # else each step widens what is stored, and writes over that
        assert {out[0].data_ptr() for out in written[5:]} == {end.influence[0].data_ptr()}


@pytest.mark.parametrize("way", ["graph", "vmap"])
def test_a_sequence_that_is_transformed_has_new_memory_each_step(way: str) -> None:
    packing = SAFE["snap1"][0].packing("triton")
    carry = Carry(torch.ones(1), packing.zeros((1,), torch), 0)
    found: list[Any] = []

    def ask(state: torch.Tensor) -> torch.Tensor:
        found.append(memory_of_steps(packing, carry._replace(state=state))(carry.influence))
        return state

    if way == "graph":
        ask(torch.ones(1, requires_grad=True))
    else:
        torch.func.vmap(ask)(carry.state)
    assert found == [None]
    ask(carry.state)
    assert found[1] is not None
