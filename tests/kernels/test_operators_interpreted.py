"""The torch operators with the kernels that they run on a GPU: values and derivatives.

Tensors lie on the CPU here, so the operators are made to take them for a GPU's.
"""

import importlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tritonsnap.ops.influence_gradient import influence_gradient
from tritonsnap.ops.influence_update import influence_update
from tritonsnap.ops.masked_dsmm import masked_dsmm
from tritonsnap.ops.masked_outer import masked_outer
from tritonsnap.plan import DsmmPlan, torch_layout
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.torch_operator import PlanOperator
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern

FACES = {
    name: importlib.import_module(f"tritonsnap.ops.{name}.torch")
    for name in ("masked_dsmm", "masked_outer", "influence_update", "influence_gradient")
}


def network(order: int) -> tuple[DsmmPlan, FactorStructure]:
    """A small network with one parameter for each weight."""
    weights = SparsityPattern.random((12, 12), 0.2, 3)
    unit = np.sort(weights.rows)
    immediate = SparsityPattern.from_coo(unit, np.arange(len(unit)), (12, len(unit)))
    dynamics = weights | SparsityPattern.identity(12)
    mask = snap_pattern(dynamics, immediate, order)
    plan = DsmmPlan(mask, mask, dynamics)
    source = np.arange(len(unit)) % 5
    return plan, FactorStructure(plan, unit, np.zeros_like(unit), source, 12, 1, 5)


def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all operators run their device kernels, on the plans' packings for Triton."""
    for face in FACES.values():
        monkeypatch.setattr(face, "torch_packing", lambda plan, like: plan.packing("triton"))
        for operator in vars(face).values():
            if isinstance(operator, PlanOperator):
                monkeypatch.setattr(operator, "operator", operator._device)
    for operator in vars(torch_layout).values():
        if isinstance(operator, PlanOperator):
            monkeypatch.setattr(operator, "operator", operator._device)
    monkeypatch.setattr(PlanOperator, "_cpu", PlanOperator._device)


def results(plan: DsmmPlan, structure: FactorStructure) -> dict[str, list[torch.Tensor]]:
    """Outputs of all ops on flat values, and the gradients of their sums times noise."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        tensor = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return tensor.requires_grad_()

    nnz, rows = plan.mask.nnz, plan.mask.shape[0]
    d, j, r, delta = random(3, plan.dynamics.nnz), random(3, nnz), random(3, nnz), random(3, rows)
    full, shared, scale = random(3, rows, rows), random(plan.dynamics.nnz), random(3, rows)
    gains, sources = random(3, 1, rows), random(3, 5)
    immediate = SparsityPattern.from_coo(
        structure.unit, np.arange(plan.mask.shape[1]), plan.mask.shape
    )
    compression = CompressedStructure(plan, Projection.of(Compression.of(immediate, mode="row")))
    compressed = random(3, compression.num_colors, plan.mask.shape[1])
    calls = {
        "product": (lambda: masked_dsmm(d, j, plan), (d, j)),
        "dense": (lambda: masked_dsmm(full, j, plan), (full, j)),
        "scaled": (lambda: masked_dsmm(shared, j, plan, row_scale=scale), (shared, j, scale)),
        "outer": (lambda: masked_outer(r, j, plan), (r, j)),
        "outer, dense": (lambda: masked_outer(r, j, plan, form="dense"), (r, j)),
        "update": (
            lambda: influence_update(d, j, Factors(gains, sources, structure), plan),
            (d, j, gains, sources),
        ),
        "update, compressed": (
            lambda: influence_update(d, j, Compressed(compressed, compression), plan),
            (d, j, compressed),
        ),
        "gradient": (lambda: influence_gradient(delta, j, plan), (delta, j)),
        "gradient, summed": (
            lambda: influence_gradient(delta, j, plan, sum_batch=True),
            (delta, j),
        ),
    }
    found = {}
    for name, (call, operands) in calls.items():
        output = call()
        noise = torch.randn(output.shape, dtype=torch.float64, generator=generator)
        gradients = torch.autograd.grad((output * noise).sum(), operands)
        with torch.no_grad():
            plain = call()
        found[name] = [output.detach(), plain, *gradients]
    return found


@pytest.mark.parametrize("order", [1, 2])
def test_device_kernels_equal_the_cpu_with_derivatives(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, structure = network(order)
    expected = results(plan, structure)
    on_device(monkeypatch)
    launched: list[str] = []
    launchers = {"masked_dsmm": "launch", "masked_outer": "run", "influence_gradient": "run"}
    for module, name in launchers.items():
        launcher = importlib.import_module(f"tritonsnap.ops.{module}.triton")
        plain = getattr(launcher, name)
        monkeypatch.setattr(
            launcher, name, lambda *args, m=module, f=plain: (launched.append(m), f(*args))[1]
        )
    for name, tensors in results(plan, structure).items():
        for one, other in zip(tensors, expected[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
    assert set(launched) == set(launchers)


def expect_equal_on_device(
    calls: Sequence[Callable[[], torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's kernels give what the CPU gives."""
    expected = [call() for call in calls]
    on_device(monkeypatch)
    for one, other in zip([call() for call in calls], expected, strict=True):
        torch.testing.assert_close(one, other)


NONE, FULL = SparsityPattern.from_coo([], [], (5, 7)), SparsityPattern.full((5, 7))
EMPTY_PLANS = {
    "no values": DsmmPlan(NONE, NONE),
    "nothing read": DsmmPlan(NONE, FULL),
    "nothing written": DsmmPlan(FULL, NONE),
    "no columns": DsmmPlan(*[SparsityPattern.from_coo([], [], (5, 0))] * 2),
    "no batch row": DsmmPlan(FULL, FULL),
}


@pytest.mark.parametrize("name", EMPTY_PLANS)
def test_empty_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, batch = EMPTY_PLANS[name], 0 if name == "no batch row" else 2
    x, r = (torch.ones(batch, pattern.nnz) for pattern in (plan.x, plan.mask))
    d, entries, delta = torch.ones(5, 5), torch.ones(batch, plan.dynamics.nnz), torch.ones(batch, 5)
    nothing = SparsityPattern.from_coo([], [], plan.mask.shape)
    colors = CompressedStructure(plan, Projection.of(Compression.of(nothing, mode="row")))
    assert colors.num_colors == 0
    compressed = Compressed(torch.ones(batch, 0, plan.mask.shape[1]), colors)
    calls = (
        lambda: masked_dsmm(d, x, plan),
        lambda: masked_dsmm(entries, x, plan),
        lambda: influence_update(d, x, r, plan),
        lambda: influence_update(d, x, compressed, plan),
        lambda: masked_outer(r, x, plan),
        lambda: masked_outer(r, x, plan, form="dense"),
        lambda: influence_gradient(delta, r, plan),
        lambda: influence_gradient(delta, r, plan, sum_batch=True),
    )
    expect_equal_on_device(calls, monkeypatch)


def test_strided_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, structure = network(2)
    generator = torch.Generator().manual_seed(1)

    def strided(*shape: int) -> torch.Tensor:
        return torch.randn(*shape[:-1], 2 * shape[-1], generator=generator)[..., ::2]

    nnz = plan.mask.nnz
    d, entries, j = strided(12, 12).mT, strided(3, plan.dynamics.nnz), strided(nnz, 3).mT
    shared, delta = strided(nnz).expand(3, nnz), strided(12).expand(3, 12)
    factors = Factors(strided(3, 1, 12), strided(3, 5), structure)
    calls = (
        lambda: masked_dsmm(d, j, plan, row_scale=delta),
        lambda: masked_dsmm(entries[None], shared[:, None], plan),
        lambda: influence_update(entries, j, factors, plan),
        lambda: influence_update(entries, shared, j, plan),
        lambda: masked_outer(j, shared, plan),
        lambda: influence_gradient(delta, j, plan, sum_batch=True),
    )
    expect_equal_on_device(calls, monkeypatch)
