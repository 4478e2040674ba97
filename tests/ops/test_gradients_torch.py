"""The torch ops under every transformation of torch, on small plans of every regime."""

import copy
import functools
import gc
import pickle
import weakref

import numpy as np
import pytest
from influences import REGIMES, compressed_structure, snap_problem

from tritonsnap import (
    Compressed,
    Factors,
    influence_gradient,
    influence_step,
    influence_update,
    masked_dsmm,
    masked_outer,
)

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

from tritonsnap.ops.influence_gradient.torch import _gradient
from tritonsnap.ops.influence_update.torch import _compressed_update, _update
from tritonsnap.ops.masked_dsmm.torch import _product
from tritonsnap.ops.masked_outer.torch import _outer
from tritonsnap.plan import torch_layout
from tritonsnap.plan.torch_operator import call_key, find_call

PLANS = [(1, None), (2, REGIMES[1]), (2, REGIMES[2])]
BATCH = 2


class Case:
    """A function of tensors, and operands for it."""

    def __init__(self, name: str, order: int, regime) -> None:
        self.plan, self.structure, self.random = plan, structure, _ = snap_problem(order, regime)
        values, nnz = (plan.dynamics.nnz,), (BATCH, plan.x.nnz)
        gains, sources, rows = (BATCH, 2, 4), (4,), (BATCH, 4)
        factors = lambda g, u: Factors(g, u, structure)  # noqa: E731
        compression = compressed_structure(plan, self.random, 0.3)
        compressed = (BATCH, compression.num_colors, plan.x.shape[1])
        self.function, shapes = {
            "dsmm, dense": (lambda d, x: masked_dsmm(d, x, plan), [(BATCH, 4, 4), nnz]),
            "dsmm, values, scaled": (
                lambda d, x, s: masked_dsmm(d, x, plan, row_scale=s),
                [values, nnz, rows],
            ),
            "dsmm, dense, scaled": (
                lambda d, x, s: masked_dsmm(d, x, plan, row_scale=s),
                [(4, 4), nnz[1:], rows],
            ),
            "outer, values": (lambda r, x: masked_outer(r, x, plan), [nnz, nnz[1:]]),
            "outer, dense": (lambda r, x: masked_outer(r, x, plan, form="dense"), [nnz, nnz]),
            "update, factors": (
                lambda d, x, g, u: influence_update(d, x, factors(g, u), plan),
                [values, nnz, gains, sources],
            ),
            "update, factors, scaled": (
                lambda d, x, g, u, s: influence_update(d, x, factors(g, u), plan, row_scale=s),
                [(4, 4), nnz, gains[1:], sources, rows],
            ),
            "update, compressed": (
                lambda d, x, c, s: influence_update(
                    d, x, Compressed(c, compression), plan, row_scale=s
                ),
                [values, nnz[1:], compressed, rows],
            ),
            "update, values": (
                lambda d, x, i: influence_update(d, x, i, plan),
                [values, nnz, nnz],
            ),
            "gradient": (lambda e, x: influence_gradient(e, x, plan), [rows[1:], nnz]),
            "gradient, summed": (
                lambda e, x: influence_gradient(e, x, plan, sum_batch=True),
                [rows, nnz],
            ),
        }[name]
        self.operands = [self.tensor(*shape) for shape in shapes]

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.random.standard_normal(shape))

    def leaves(self) -> list[torch.Tensor]:
        return [one.clone().requires_grad_() for one in self.operands]

    def scalar(self, *operands: torch.Tensor) -> torch.Tensor:
        """A nonlinear scalar of the function."""
        return self.function(*operands).sin().sum()


NAMES = [
    "dsmm, dense",
    "dsmm, values, scaled",
    "dsmm, dense, scaled",
    "outer, values",
    "outer, dense",
    "update, factors",
    "update, factors, scaled",
    "update, compressed",
    "update, values",
    "gradient",
    "gradient, summed",
]
every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(functools.partial(Case, name, *plan), id=f"{name}-{plan[1] or 'elementwise'}")
        for plan in PLANS
        for name in NAMES
    ],
)


@every_case
def test_first_derivatives(case) -> None:
    case = case()
    gradcheck(case.function, case.leaves(), check_forward_ad=True, fast_mode=True)


@every_case
def test_second_derivatives(case) -> None:
    case = case()
    gradgradcheck(case.function, case.leaves(), check_fwd_over_rev=True, fast_mode=True)


@every_case
def test_forward_mode_against_finite_differences(case) -> None:
    case, step = case(), 1e-6
    tangents = [torch.randn_like(one) for one in case.operands]
    _, found = jvp(case.function, tuple(case.operands), tuple(tangents))
    ahead, behind = (
        case.function(*(one + sign * t for one, t in zip(case.operands, tangents, strict=True)))
        for sign in (step, -step)
    )
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)


@every_case
def test_vmap_against_a_loop(case) -> None:
    case = case()
    wide = [case.tensor(*one.shape, 3) for one in case.operands]
    axes = [-1 if number % 2 == 0 else None for number in range(len(wide))]
    given = [one if axis else one[..., 0] for one, axis in zip(wide, axes, strict=True)]
    rows = [
        [one[..., row] if axis else one for one, axis in zip(given, axes, strict=True)]
        for row in range(3)
    ]
    found = vmap(case.function, in_dims=tuple(axes))(*given)
    torch.testing.assert_close(found, torch.stack([case.function(*row) for row in rows]))
    each = grad(case.scalar, argnums=tuple(range(len(given))))
    found = vmap(each, in_dims=tuple(axes))(*given)
    expected = [torch.stack(parts) for parts in zip(*[each(*row) for row in rows], strict=True)]
    torch.testing.assert_close(found, tuple(expected))


@every_case
def test_torch_func(case) -> None:
    case = case()
    leaves = case.leaves()
    expected = torch.autograd.grad(case.scalar(*leaves), leaves)
    argnums = tuple(range(len(leaves)))
    torch.testing.assert_close(grad(case.scalar, argnums=argnums)(*case.operands), expected)
    _, pull = vjp(case.scalar, *case.operands)
    torch.testing.assert_close(pull(torch.ones((), dtype=torch.float64)), expected)
    torch.testing.assert_close(jacfwd(case.scalar, argnums=argnums)(*case.operands), expected)


@pytest.mark.parametrize("plan", PLANS)
def test_hessians(plan) -> None:
    case = Case("dsmm, values, scaled", *plan)
    expected = jacrev(jacrev(case.scalar))(*case.operands)
    for hessian in (jacfwd(jacrev(case.scalar)), jacrev(jacfwd(case.scalar))):
        torch.testing.assert_close(hessian(*case.operands), expected)


def test_forward_over_forward_raises_where_torch_would_give_zero() -> None:
    case = Case("dsmm, dense", 1, None)
    with pytest.raises(NotImplementedError, match="no forward over forward mode"):
        jacfwd(jacfwd(case.scalar))(*case.operands)


def test_complex_derivatives() -> None:
    plan, _, _ = snap_problem(2, REGIMES[1])
    complex_ = functools.partial(torch.randn, dtype=torch.complex128)
    leaves = [complex_(*shape).requires_grad_() for shape in ((4, 4), (plan.x.nnz,), (4,))]
    gradcheck(lambda d, x, s: masked_dsmm(d, x, plan, row_scale=s), leaves, fast_mode=True)
    gradcheck(lambda r, x: masked_outer(r, x, plan), [leaves[1], leaves[1]], fast_mode=True)


def test_packing_is_differentiable() -> None:
    plan, _, _ = snap_problem(2, None)
    x = torch.randn(2, plan.x.nnz, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda x: plan.unpack(plan.pack(x)), [x], check_forward_ad=True)
    blocks = influence_gradient(torch.ones(4, dtype=torch.float64), x, plan, packed=True)
    torch.testing.assert_close(
        torch.autograd.grad(plan.packing().unpack_columns(blocks).sum(), x)[0], torch.ones_like(x)
    )


def operators(plan, structure):
    packing = plan.packing()
    tensor = functools.partial(torch.randn, dtype=torch.float64)
    blocks = plan.pack(tensor(BATCH, plan.x.nnz))
    values, rows = tensor(plan.dynamics.nnz), tensor(BATCH, 4)
    update = call_key(packing, "influence_update", "values", True, "ieee", structure)
    compression = compressed_structure(plan, np.random.default_rng(0))
    compressed = tensor(compression.num_colors, plan.x.shape[1])
    index = torch_layout.StaticIndex(np.array([3, 0, 4, 0]), 4)
    return [
        (_product, call_key(packing, "masked_dsmm", "values", False, "ieee"), [values, *blocks]),
        (_outer, call_key(packing, "masked_outer", "dense"), [*blocks, *blocks]),
        (_update, update, [tensor(2, 4), rows, values, rows, *blocks]),
        (
            _compressed_update,
            call_key(packing, "compressed_update", "values", False, "ieee", compression),
            [compressed, values, *blocks],
        ),
        (_gradient, call_key(packing, "influence_gradient", True), [rows, *blocks]),
        (torch_layout._pack, call_key(packing, "pack", "x"), [tensor(plan.x.nnz)]),
        (torch_layout._unpack, call_key(packing, "unpack", "mask"), blocks),
        (torch_layout._take, call_key(packing, "take", index), [rows]),
        (torch_layout._put, call_key(packing, "put", index), [rows]),
    ]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("plan", PLANS[1:])
def test_opcheck(plan, number: int) -> None:
    plan, structure, _ = snap_problem(*plan)
    operator, key, operands = operators(plan, structure)[number]
    for requires_grad in (False, True):
        given = [one.clone().requires_grad_(requires_grad) for one in operands]
        torch.library.opcheck(operator.operator, (given, key))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph(backend: str) -> None:
    plan, structure, _ = snap_problem(2, None)
    torch._dynamo.reset()

    compression = compressed_structure(plan, np.random.default_rng(0))

    def loss(d, x, g, u, c):
        j = influence_update(d, plan.pack(x), Factors(g, u, structure), plan)
        j = influence_update(d, j, Compressed(c, compression), plan)
        gradients = influence_gradient(u, masked_dsmm(d, j, plan), plan, packed=True)
        return sum(one.sum() for one in gradients)

    shapes = ((plan.dynamics.nnz,), (plan.x.nnz,), (2, 4), (4,), (compression.num_colors, 12))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(torch.autograd.grad(compiled(*leaves), leaves), expected)


@pytest.mark.parametrize("order", [1, 2])
def test_a_plan_that_nobody_used_yet_compiles(order: int) -> None:
    plan, structure, _ = snap_problem(order, None)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(d, x, g, u, delta):
        factors = Factors(g, u, structure)
        j, gradient = influence_step(d, plan.pack(x), factors, delta, plan)
        return plan.unpack(j), gradient

    shapes = ((plan.dynamics.nnz,), (2, plan.x.nnz), (2, 4), (4,), (2, 4))
    d, x, g, u, delta = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    found = step(d, x, g, u, delta)
    torch.testing.assert_close(found, influence_step(d, x, Factors(g, u, structure), delta, plan))


def test_compiles_for_packed_values_of_any_batch() -> None:
    plan, _, _ = snap_problem(2, None)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def product(d, *x):
        return masked_dsmm(d, x, plan)

    for batch in (2, 5):
        d, x = torch.randn(4, 4), plan.pack(torch.randn(batch, plan.x.nnz))
        torch.testing.assert_close(product(d, *x), masked_dsmm(d, x, plan))


def test_a_graph_keeps_its_plan_until_the_backward_pass() -> None:
    plan, _, _ = snap_problem(2, None)
    x = torch.randn(plan.x.nnz, requires_grad=True)
    packing = weakref.ref(plan.packing())
    total = masked_dsmm(torch.ones(4, 4), x, plan).sum()
    del plan
    gc.collect()
    total.backward()
    assert x.grad.abs().sum() > 0
    del total
    gc.collect()
    assert packing() is None


def test_a_plan_that_is_gone_says_so() -> None:
    plan, _, _ = snap_problem(2, REGIMES[1])
    key = call_key(plan.packing(), "pack", "mask")
    assert find_call(key).packing is plan.packing()
    equal, _, _ = snap_problem(2, REGIMES[1])
    assert call_key(equal.packing(), "pack", "mask") == key
    del plan
    gc.collect()
    find_call(key)
    del equal
    gc.collect()
    with pytest.raises(RuntimeError, match="no longer exists"):
        find_call(key)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))], ids=["deep", "pickle"]
)
def test_a_copy_of_a_used_plan_outlives_it(copied) -> None:
    plan, _, _ = snap_problem(2, REGIMES[1])
    d, x = torch.rand(4, 4), torch.rand(plan.x.nnz)
    expected = masked_dsmm(d, x, plan)
    other = copied(plan)
    del plan
    gc.collect()
    assert torch.equal(masked_dsmm(d, x, other), expected)


def test_gradients_have_the_dtype_of_their_operands() -> None:
    plan, _, _ = snap_problem(2, None)
    d = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(plan.x.nnz, dtype=torch.float32, requires_grad=True)
    result = masked_dsmm(d, x, plan)
    assert result.dtype == torch.float64
    result.sum().backward()
    assert d.grad.dtype == torch.float64
    assert x.grad.dtype == torch.float32
