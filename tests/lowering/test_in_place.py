"""Updates that XLA lays over the old influence, lowered for a GPU that is not there."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import CALLS, H200, lower, operations, payloads

import tritonsnap as ts
from tritonsnap.jax import influence_step, influence_update, lower_for
from tritonsnap.online.unroll import Unroll
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import Compression, Projection, SparsityPattern

BATCH, UNITS = 2, 20


@functools.cache
def structures(rows: int) -> tuple[FactorStructure, CompressedStructure]:
    """For groups of so many rows, with a column for each unit."""
    own = np.arange(UNITS)
    mask = SparsityPattern.from_dense(own[:, None] // rows == own // rows)
    plan = DsmmPlan(mask, mask)
    plan = plan.with_packing(plan.packing("triton", Regime.DENSE))
    assert plan.packing("triton").in_place
    colors = Projection.of(Compression.of(SparsityPattern.identity(UNITS), mode="row"))
    factors = FactorStructure(plan, own, 0 * own, own % 5, UNITS, 1, 5)
    return factors, CompressedStructure(plan, colors)


def update(structure: Any, d: Any, j: Any, values: Any, delta: Any, over: bool) -> Any:
    immediate = Compressed(values, structure)
    out = (j,) if over else None
    return influence_update(d, (j,), immediate, structure.plan, form="values", out=out)


def step(structure: Any, d: Any, j: Any, sources: Any, delta: Any, over: bool) -> Any:
    immediate = Factors(delta[:, None], sources, structure)
    out = (j,) if over else None
    return influence_step(d, (j,), immediate, delta, structure.plan, form="values", out=out)


def operands(rows: int, op: Any) -> tuple[Any, ...]:
    """A structure and arrays for `op`."""
    factors, colors = structures(rows)
    plan, draw = factors.plan, functools.partial(jnp.ones, dtype=jnp.float32)
    d = draw((BATCH, plan.dynamics.nnz))
    j = draw((BATCH, *plan.packing("triton").shapes("x")[0]))
    added = draw((BATCH, 1, UNITS)) if op is update else draw((BATCH, 5))
    return colors if op is update else factors, d, j, added, draw((BATCH, UNITS))


def aliased(module: Any) -> list[tuple[int, int]]:
    """The operand that each call's output is laid over, and how often the call has that operand."""
    found = []
    for operation in operations(module):
        attributes = operation.attributes
        if operation.name != "stablehlo.custom_call":
            continue
        if attributes["call_target_name"].value not in CALLS:
            continue
        for number in re.findall(
            r"operand_index = (\d+)", str(attributes["output_operand_aliases"])
        ):
            values = list(operation.operands)
            found.append((int(number), values.count(values[int(number)])))
    return found


@pytest.mark.parametrize("op", [update, step], ids=lambda op: op.__name__)
@pytest.mark.parametrize("rows", [1, 20])
def test_out_lays_the_result_over_j(rows: int, op: Any) -> None:
    arguments = operands(rows, op)
    plain = lower(functools.partial(op, over=False), *arguments)
    over = lower(functools.partial(op, over=True), *arguments)
    assert aliased(plain) == []
    ((_, times),) = aliased(over)
    assert times == 1  # XLA would copy an operand that the call reads besides
    assert len(payloads(over)) == len(payloads(plain))


def test_nothing_goes_over_the_result_again() -> None:
    """What is behind the last value stays zero by itself: J moves once each way."""
    arguments = operands(20, update)
    influence = rf"tensor<{BATCH}x{arguments[2].shape[1]}xf32>"
    for over in (True, False):
        text = str(lower(functools.partial(update, over=over), *arguments))
        assert bool(re.search(rf"stablehlo.select .*{influence}", text)) != over


@pytest.mark.parametrize("order", [1, None])
def test_a_sequence_updates_its_influence_in_place(order: int | None) -> None:
    cell = ts.RNN(inputs=3, hidden=8, density=0.3 if order else 1.0)
    learner = ts.SnAp(cell, order=order)
    params = cell.init(0, like="jax")
    xs, ys = jnp.ones((4, BATCH, 3)), jnp.ones((4, BATCH, 8))

    def loss(state: Any, y: Any) -> Any:
        return ((state - y) ** 2).sum(-1)

    def run(learner: Any, params: Any, carry: Any, xs: Any, ys: Any) -> Any:
        return learner.run_sequence(Unroll(params, carry, xs, ys, loss, None, None, None))

    with lower_for(H200):
        assert learner.plan.packing("triton").in_place
        carry = learner.init(BATCH, like="jax")
    found = aliased(lower(run, learner, params, carry, xs, ys))
    assert [times for _, times in found] == [1]


def test_derivatives_and_vmap_are_those_without_out() -> None:
    structure, *arrays = operands(20, step)

    def total(over: bool, *arrays: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(step(structure, *arrays, over=over)))

    found = []
    with lower_for(H200):  # the CPU runs it by XLA's own operations
        for over in (False, True):
            gradient = jax.grad(functools.partial(total, over), argnums=(0, 1))(*arrays)
            mapped = jax.vmap(functools.partial(total, over))(*(one[None] for one in arrays))
            found.append(jax.tree.leaves((gradient, mapped)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
