"""Every JAX op lowered for a GPU that is not there: its kernels, and their PTX, in the program."""

import functools
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import CALLS, H200, kernels, lower, operations, payloads, size

import tritonsnap as ts
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
    sp_jacrev,
)
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern
from tritonsnap.tuning import TARGETS

BATCH = 2


@functools.cache
def network(units: int, order: int, regime: Regime | None = None) -> FactorStructure:
    """The factors of a ring of units with a weight from each one's left neighbour and itself."""
    unit = np.repeat(np.arange(units), 2)
    source = (unit - np.tile([0, 1], units)) % units
    dynamics = SparsityPattern.from_coo(unit, source, (units, units))
    immediate = SparsityPattern.from_coo(unit, np.arange(2 * units), (units, 2 * units))
    mask = snap_pattern(dynamics, immediate, order)
    plan = DsmmPlan(mask, mask, dynamics)
    if regime is not None:
        plan = plan.with_packing(plan.packing("triton", regime))
    return FactorStructure(plan, unit, np.zeros_like(unit), source, units, 1, units)


def product(plan: DsmmPlan, d: Any, j: Any) -> Any:
    return masked_dsmm(d, j, plan)


def outer(plan: DsmmPlan, r: Any, x: Any) -> Any:
    return masked_outer(r, x, plan)


def update(structure: FactorStructure, d: Any, j: Any, gains: Any, sources: Any) -> Any:
    return influence_update(d, j, Factors(gains, sources, structure), structure.plan)


def compressed_update(structure: CompressedStructure, d: Any, j: Any, values: Any) -> Any:
    return influence_update(d, j, Compressed(values, structure), structure.plan)


def step(structure: FactorStructure, d: Any, j: Any, gains: Any, sources: Any, delta: Any) -> Any:
    factors = Factors(gains, sources, structure)
    return influence_step(d, j, factors, delta, structure.plan)[1]


def gradient(plan: DsmmPlan, delta: Any, j: Any) -> Any:
    return influence_gradient(delta, j, plan, sum_batch=True)


def row_pointers(_: None, rows: Any) -> Any:
    return coo_to_csr(rows, 30)


def row_pointers_of_sorted(_: None, rows: Any) -> Any:
    return coo_to_csr(rows, 30, indices_are_sorted=True)


def gather(projection: Any, compressed: Any) -> Any:
    (leaf,) = projection.leaves.values()
    return gather_compressed(compressed, leaf)


def call(
    name: str, units: int = 12, order: int = 2, regime: Regime | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """An op as a function of its structure and operands, and such arguments."""
    structure = network(units, order, regime)
    plan = structure.plan
    batch = functools.partial(jnp.ones, dtype=jnp.float32)
    d, j = batch((BATCH, plan.dynamics.nnz)), batch((BATCH, plan.mask.nnz))
    projection = make_jacobian_projection(
        SparsityPattern.random((units, 3 * units), 0.2), mode="row"
    )
    (leaf,) = projection.leaves.values()
    gains, sources = batch((BATCH, 1, units)), batch((BATCH, units))
    columns = plan.mask.shape[1]
    own = SparsityPattern.from_coo(structure.unit, np.arange(columns), plan.mask.shape)
    compressed = CompressedStructure(plan, Projection.of(Compression.of(own, mode="row")))
    rows = jnp.zeros(4 * units, jnp.int32)
    return {
        "product": (product, (plan, d, j)),
        "outer": (outer, (plan, j, j)),
        "update": (update, (structure, d, j, gains, sources)),
        "compressed": (compressed_update, (compressed, d, j, batch((BATCH, 1, columns)))),
        "step": (step, (structure, d, j, gains, sources, batch((BATCH, units)))),
        "gradient": (gradient, (plan, batch((BATCH, units)), j)),
        "row pointers": (row_pointers, (None, rows)),
        "row pointers of sorted": (row_pointers_of_sorted, (None, rows)),
        "gather": (gather, (projection, batch(leaf.compression.compressed_shape))),
    }[name]


KERNELS = {
    "product": ["walk_product"],
    "outer": ["outer_sum", "outer_walk"],
    "update": ["walk_product"],
    "compressed": ["walk_product"],
    "step": ["column_gradient", "walk_product"],
    "gradient": ["column_gradient"],
    "row pointers": ["csr_count", "csr_finish", "csr_scan"],
    "row pointers of sorted": ["csr_search"],
    "gather": ["gather_index"],
}
FLOATS = ["product", "outer", "update", "compressed", "gradient", "gather"]


@pytest.mark.parametrize("name", KERNELS)
def test_the_program_calls_the_kernels(name: str) -> None:
    function, arguments = call(name)
    module = lower(function, *arguments)
    assert kernels(module) == KERNELS[name]
    assert "output_operand_alias" not in str(module)  # nothing is updated in place


@pytest.mark.parametrize(
    ("order", "regime", "names"),
    [(1, None, ["snap1_step"]), (2, Regime.DENSE, ["group_product"])],
)
def test_kernels_of_the_other_regimes(order: int, regime: Any, names: list[str]) -> None:
    for op in ("product", "update", "compressed"):
        function, arguments = call(op, order=order, regime=regime)
        assert kernels(lower(function, *arguments)) == names


def test_an_outer_product_of_a_full_d_is_one_of_tiles() -> None:
    full = SparsityPattern.full((48, 60))
    values = jnp.ones((BATCH, full.nnz), jnp.float32)
    assert kernels(lower(outer, DsmmPlan(full, full), values, values)) == ["outer_tiles"]


def test_a_step_of_snap1_is_one_kernel() -> None:
    function, arguments = call("step", order=1)
    assert kernels(lower(function, *arguments)) == ["snap1_step"]


@pytest.mark.parametrize("name", KERNELS)
def test_size_of_the_program_is_independent_of_nnz(name: str) -> None:
    function, arguments = call(name)
    larger = call(name, units=120)[1]
    small, large = lower(function, *arguments), lower(function, *larger)
    assert len(list(operations(small))) == len(list(operations(large)))
    assert size(large) < 1.1 * size(small)  # its shapes have more digits


@pytest.mark.parametrize("name", FLOATS)
def test_derivatives_are_kernels(name: str) -> None:
    function, (structure, *operands) = call(name)

    def scalar(structure: Any, *operands: Any) -> Any:
        return jnp.sin(function(structure, *operands)).sum()

    def forward(structure: Any, *operands: Any) -> Any:
        along = functools.partial(function, structure)
        return jax.jvp(along, tuple(operands), tuple(operands))[1]

    def reverse(structure: Any, *operands: Any) -> Any:
        return jax.grad(scalar, argnums=tuple(range(1, 1 + len(operands))))(structure, *operands)

    terms = {"gather": 1}.get(name, 2)
    own = KERNELS[name][-1]
    assert kernels(lower(forward, structure, *operands)).count(own) == terms
    found = kernels(lower(reverse, structure, *operands))
    both = ["outer_sum", "outer_walk", "walk_product", "walk_product"]
    expected = {
        "product": both,
        "update": both,
        "compressed": both,
        "outer": both,
    }
    assert found == expected.get(name, KERNELS[name])


@pytest.mark.parametrize("name", FLOATS)
def test_vmap_is_one_launch(name: str) -> None:
    function, (structure, *operands) = call(name)

    def mapped(structure: Any, wide: Any, *rest: Any) -> Any:
        return jax.vmap(lambda one: function(structure, one, *rest))(wide)

    wide = jnp.stack([operands[0]] * 3)
    assert kernels(lower(mapped, structure, wide, *operands[1:])) == KERNELS[name]


def test_a_program_for_two_platforms() -> None:
    plan = network(12, 2).plan
    d = jax.random.normal(jax.random.key(0), (BATCH, plan.dynamics.nnz))
    j = jax.random.normal(jax.random.key(1), (BATCH, plan.mask.nnz))
    with lower_for(H200):
        exported = jax.export.export(
            jax.jit(product),
            platforms=["cpu", "cuda"],
            disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name) for name in CALLS],
        )(*_shapes(plan, d, j))
        found = exported.call(plan, d, j)
    np.testing.assert_allclose(found, product(plan, d, j), rtol=1e-5, atol=1e-6)
    module = lower(product, plan, d, j, platforms=("cpu", "cuda"))
    assert kernels(module) == ["walk_product"]


def _shapes(*trees: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), trees)


def test_complex_values_and_plans_for_xla_need_no_kernel() -> None:
    plan = network(12, 2).plan
    d, j = jnp.ones(plan.dynamics.nnz, jnp.complex64), jnp.ones(plan.mask.nnz)
    assert kernels(lower(product, plan, d, j)) == []
    traced = jax.jit(product).trace(plan, d.real, j)  # not by `lower_for`: packed for XLA
    assert kernels(traced.lower(lowering_platforms=("cuda",)).compiler_ir()) == []


def test_without_a_gpu_the_error_says_what_to_do() -> None:
    rows = jnp.zeros(4, jnp.int32)
    traced = jax.jit(functools.partial(row_pointers, None)).trace(rows)
    with pytest.raises(RuntimeError, match=r"lower_for\(device\)"):
        traced.lower(lowering_platforms=("cuda",))


def test_a_program_is_compiled_anew_for_another_gpu() -> None:
    function, arguments = call("gather")
    for device in TARGETS[:2]:
        with lower_for(device):
            traced = jax.jit(function).trace(*arguments)
            module = traced.lower(lowering_platforms=("cuda",)).compiler_ir()
        (payload,) = payloads(module)
        assert f".target {device.arch}".encode() in payload


@pytest.mark.parametrize("name", KERNELS)
def test_without_kernels_xla_does_it_on_every_gpu(name: str) -> None:
    with lower_for(None):
        function, arguments = call(name)
        traced = jax.jit(function).trace(*arguments)
        for platform in ("cuda", "rocm"):
            module = traced.lower(lowering_platforms=(platform,)).compiler_ir()
            assert kernels(module) == []


def test_where_amd_kernels_fail_the_error_says_what_to_do() -> None:
    function, arguments = call("gather")
    with lower_for(next(device for device in TARGETS if device.is_hip)):
        traced = jax.jit(function).trace(*arguments)
        with pytest.raises(RuntimeError, match=r"jax-triton .*AMD.*lower_for\(None\)"):
            traced.lower(lowering_platforms=("rocm",))


@pytest.mark.parametrize(
    ("order", "names"),
    [(1, {"snap1_step"}), (2, {"column_gradient", "group_product", "walk_product"})],
)
def test_a_learner_runs_on_kernels(order: int, names: set[str]) -> None:
    learner = ts.SnAp(ts.GRU(inputs=3, hidden=8, density=0.3, seed=0), order=order)
    params = learner.cell.init(0, like="jax")
    xs, ys = jnp.ones((4, BATCH, 3)), jnp.ones((4, BATCH, 8))

    def loss(state: Any, y: Any) -> Any:
        return ((state - y) ** 2).sum(-1)

    def run(learner: Any, params: Any, carry: Any, xs: Any, ys: Any) -> Any:
        mask, resets = jnp.ones((4, BATCH)), jnp.zeros((4, BATCH), bool)
        return learner.run_sequence(Unroll(params, carry, xs, ys, loss, mask, resets, None))

    with lower_for(H200):
        carry = learner.init(BATCH, like="jax")
        assert len(carry.influence) == 1
    found = kernels(lower(run, learner, params, carry, xs, ys))
    assert set(found) == names


def test_a_step_of_a_kan_runs_on_kernels() -> None:
    model = ts.kan.KAN(3, 5, 4, 7)
    x, y = np.random.default_rng(0).random((40, 3)), np.zeros((40, 1))
    model.initialize(x, y)
    rule = ts.kan.Rule("newton-kaczmarz", "mean", 1.0, 1.0, 1.0, 0.3, 1.0, 0.5, None, adapt=True)
    step = functools.partial(ts.kan.train_step, rule=rule)
    arguments = model.functions_in("jax"), jnp.asarray(x, "float32"), jnp.asarray(y, "float32")
    changes = ["kan_inner_change", "kan_inner_sums", "kan_outer_change", "kan_outer_values"]
    assert kernels(lower(step, *arguments)) == ["kan_gram", *changes]


def test_sp_jacrev_gathers_by_a_kernel() -> None:
    projection = make_jacobian_projection(SparsityPattern.random((20, 60), 0.1), mode="row")
    weights = jnp.ones((20, 60))

    def jacobian(projection: Any, x: Any) -> Any:
        return sp_jacrev(lambda x: weights @ jnp.sin(x), projection, format="data")(x)

    assert kernels(lower(jacobian, projection, jnp.ones(60))) == ["gather_index"]


def test_the_cache_directory_of_the_user_survives() -> None:
    """jax-triton 0.3 empties the variable when it is imported, 0.4 deletes it."""
    code = (
        "import os; from tritonsnap.ops.jax_launch import _jax_triton; _jax_triton();"
        "print(os.environ.get('TRITON_CACHE_DIR'))"
    )
    for given in ("/somewhere", None):
        environment = {name: v for name, v in os.environ.items() if name != "TRITON_CACHE_DIR"}
        environment |= {} if given is None else {"TRITON_CACHE_DIR": given}
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.split()[-1] == str(given)
