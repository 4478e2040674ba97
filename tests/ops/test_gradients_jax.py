"""The JAX ops under every transformation of JAX, on small plans of every regime."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from influences import REGIMES, compressed_structure, snap_problem

from tritonsnap import (
    Compressed,
    DsmmPlan,
    Factors,
    SparsityPattern,
    influence_gradient,
    influence_step,
    influence_update,
    masked_dsmm,
    masked_outer,
)

jax = pytest.importorskip("jax")
jnp = jax.numpy

from tritonsnap.jax import lower_for
from tritonsnap.tuning import TARGETS

PLANS = [(1, None), (2, REGIMES[1]), (2, REGIMES[2])]
BATCH = 2


@pytest.fixture(autouse=True)
def _double_precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


class Structures(NamedTuple):
    """What the functions of a case read beside arrays."""

    plan: Any
    factors: Any
    compressed: Any


def cases(order: int, regime) -> tuple[Structures, dict]:
    """Functions of structures and arrays, with arrays for them."""
    plan, structure, random = snap_problem(order, regime, "xla")
    draw = lambda *shape: jnp.asarray(random.standard_normal(shape))  # noqa: E731
    nnz, rows = (BATCH, plan.x.nnz), (BATCH, 4)

    def update(structure, d, x, g, u, s):
        factors = Factors(g, u, structure.factors)
        return influence_update(d, x, factors, structure.plan, row_scale=s)

    compression = compressed_structure(plan, random, 0.3)

    def compressed(structure, d, x, c):
        return influence_update(d, x, Compressed(c, structure.compressed), structure.plan)

    def product(structure, d, x):
        return masked_dsmm(d, x, structure.plan)

    def scaled(structure, d, x, s):
        return masked_dsmm(d, x, structure.plan, row_scale=s)

    def outer(structure, r, x):
        return masked_outer(r, x, structure.plan, form="dense")

    def gradient(structure, delta, x):
        return influence_gradient(delta, x, structure.plan, sum_batch=True)

    def step(structure, d, x, g, u, delta):
        factors = Factors(g, u, structure.factors)
        influence, summed = influence_step(d, x, factors, delta, structure.plan)
        return jnp.concatenate([influence.reshape(-1), summed])

    values = plan.dynamics.nnz
    colors = compression.num_colors
    return Structures(plan, structure, compression), {
        "product": (product, (draw(values), draw(*nnz))),
        "scaled": (scaled, (draw(BATCH, 4, 4), draw(*nnz), draw(*rows))),
        "outer": (outer, (draw(*nnz), draw(*nnz))),
        "update": (update, (draw(4, 4), draw(*nnz), draw(2, 4), draw(BATCH, 4), draw(*rows))),
        "compressed": (compressed, (draw(4, 4), draw(*nnz), draw(BATCH, colors, 12))),
        "step": (step, (draw(4, 4), draw(*nnz), draw(2, 4), draw(BATCH, 4), draw(*rows))),
        "gradient": (gradient, (draw(*rows), draw(*nnz))),
    }


OPS = ["product", "scaled", "outer", "update", "compressed", "gradient"]
every_case = pytest.mark.parametrize("name", [*OPS, "step"])  # a step is made of others here
every_plan = pytest.mark.parametrize("plan", PLANS)


@every_plan
def test_a_program_may_close_over_a_plan(plan) -> None:
    structure, found = cases(*plan)

    def all_of(structure, arrays):
        return {name: function(structure, *arrays[name]) for name, (function, _) in found.items()}

    arrays = {name: operands for name, (_, operands) in found.items()}
    expected = jax.jit(all_of)(structure, arrays)
    closed = jax.jit(lambda arrays: all_of(structure, arrays))(arrays)
    for name, value in closed.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", OPS)
@every_plan
def test_forward_and_reverse_mode(plan, name: str) -> None:
    structure, found = cases(*plan)
    function, operands = found[name]

    @jax.jit
    def both(structure, operands, tangents):
        """The directional derivative of a scalar in forward and in reverse mode, twice each."""

        def scalar(operands):
            return jnp.sin(function(structure, *operands)).sum()

        def along(operands):
            return jax.jvp(scalar, (operands,), (tangents,))[1]

        def dot(gradients):
            return sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))

        first = scalar(operands), along(operands), dot(jax.grad(scalar)(operands))
        if name in ("scaled", "update"):  # made of the others
            return first, None
        second = dot(jax.grad(lambda o: dot(jax.grad(scalar)(o)))(operands))
        return first, (second, jax.jvp(along, (operands,), (tangents,))[1])

    random = np.random.default_rng(1)
    tangents = tuple(jnp.asarray(random.standard_normal(one.shape)) for one in operands)
    step = 1e-5
    points = [
        both(structure, tuple(o + s * t for o, t in zip(operands, tangents, strict=True)), tangents)
        for s in (-step, 0.0, step)
    ]
    (behind, *_), (ahead, *_) = points[0][0], points[2][0]
    (_, forward, reverse), second = points[1]
    np.testing.assert_allclose(forward, (ahead - behind) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(reverse, forward, rtol=1e-10)
    if second is not None:
        slope = (points[2][0][1] - points[0][0][1]) / (2 * step)
        np.testing.assert_allclose(second, slope, rtol=1e-6)


@every_case
def test_vmap_and_scan_against_a_loop(name: str) -> None:
    structure, found = cases(*PLANS[1])  # elementwise and walk
    function, operands = found[name]
    random = np.random.default_rng(2)
    wide = jnp.asarray(random.standard_normal((*operands[0].shape, 3)))

    @jax.jit
    def mapped(structure, wide, rest):
        return jax.vmap(lambda one: function(structure, one, *rest), in_axes=-1)(wide)

    @jax.jit
    def scanned(structure, wide, rest):
        def body(carry, one):
            return carry, function(structure, one, *rest)

        return jax.lax.scan(body, 0, jnp.moveaxis(wide, -1, 0))[1]

    rest = [np.asarray(one) for one in operands[1:]]
    expected = [function(structure, np.asarray(wide[..., row]), *rest) for row in range(3)]
    for run in (mapped, scanned):
        result = run(structure, wide, operands[1:])
        np.testing.assert_allclose(result, np.stack(expected), rtol=1e-12, atol=1e-12)


@every_case
@pytest.mark.parametrize("plan", PLANS[:2])
def test_programs_traced_for_a_gpu_run_here(plan, name: str) -> None:
    structure, found = cases(*plan)
    function, operands = found[name]
    expected = jax.jit(function)(structure, *operands)
    with lower_for(TARGETS[1]):
        result = jax.jit(function)(structure, *operands)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("read", "written"), [(0, 0), (0, 1), (1, 0)])
def test_programs_without_values_traced_for_a_gpu_run_here(read: int, written: int) -> None:
    x, mask = (SparsityPattern.from_dense(np.full((4, 3), full)) for full in (read, written))
    plan = DsmmPlan(x, mask)
    with lower_for(TARGETS[1]):
        product = jax.jit(masked_dsmm)(jnp.ones((4, 4)), jnp.ones((2, x.nnz)), plan)
    np.testing.assert_array_equal(product, np.zeros((2, mask.nnz)))


def test_derivatives_of_a_step_traced_for_a_gpu() -> None:
    structure, found = cases(*PLANS[0])
    function, operands = found["step"]

    def derivatives(structure, operands):
        def scalar(operands):
            return jnp.sin(function(structure, *operands)).sum()

        def row(weight):
            return function(structure, operands[0], weight * operands[1], *operands[2:])

        tangent = jax.jvp(scalar, (operands,), (operands,))[1]
        return jax.grad(scalar)(operands), tangent, jax.vmap(row)(jnp.arange(3.0))

    expected = jax.jit(derivatives)(structure, operands)
    with lower_for(TARGETS[1]):
        result = jax.jit(derivatives)(structure, operands)
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_derivatives_bind_the_primitives_themselves() -> None:
    structure, found = cases(2, REGIMES[1])
    _, (d, x) = found["product"]
    plan = structure.plan
    tangent = jax.make_jaxpr(
        lambda plan, d, x: jax.jvp(lambda d, x: masked_dsmm(d, x, plan), (d, x), (d, x))
    )
    assert str(tangent(plan, d, x)).count("tritonsnap_masked_dsmm") == 3
    reverse = jax.make_jaxpr(
        lambda plan, d, x: jax.grad(lambda d: masked_dsmm(d, x, plan).sum())(d)
    )
    assert str(reverse(plan, d, x)).count("tritonsnap_masked_outer") == 1


@every_case
def test_jacobians_of_jacobians(name: str) -> None:
    structure, found = cases(1, None)
    function, (first, *rest) = found[name]

    def scalar(first, structure):
        return jnp.sin(function(structure, first, *rest)).sum()

    hessians = [
        jax.jit(outer(inner(scalar)))(first, structure)
        for outer, inner in ((jax.jacrev, jax.jacrev), (jax.jacfwd, jax.jacrev))
    ]
    np.testing.assert_allclose(hessians[0], hessians[1], rtol=1e-10, atol=1e-12)


def test_linearize_and_transpose() -> None:
    structure, found = cases(2, REGIMES[2])
    function, (r, x) = found["outer"]

    @jax.jit
    def linear(structure, r, x):
        out, push = jax.linearize(lambda r: function(structure, r, x), r)
        (back,) = jax.linear_transpose(lambda r: function(structure, r, x), r)(out)
        return out, push(r), back

    out, again, back = linear(structure, r, x)
    np.testing.assert_allclose(again, out, rtol=1e-12)
    np.testing.assert_allclose((back * r).sum(), (out * out).sum(), rtol=1e-12)


def test_a_mapped_plan_raises() -> None:
    structure, found = cases(1, None)
    _, (d, x) = found["product"]
    leaves, tree = jax.tree_util.tree_flatten(structure.plan)
    stacked = jax.tree_util.tree_unflatten(tree, [jnp.stack([leaf, leaf]) for leaf in leaves])
    with pytest.raises(ValueError, match="`plan` must not be mapped over by vmap"):
        jax.vmap(lambda plan: masked_dsmm(d, x, plan))(stacked)
