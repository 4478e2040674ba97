"""Measure the constants of the cost model: products whose time one constant dominates."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tritonsnap.arrays import namespace
from tritonsnap.ops import masked_dsmm
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.calibration import CONSTANTS
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.sparsity.pattern import SparsityPattern

Measure = Callable[[Mapping[str, float]], float]

_SECONDS = 0.4
_LEAST = 1e-4


def measurements(target: str) -> dict[str, Measure]:
    """For each constant of a target, in order, what measures it from those before, in ns."""

    def seconds(plan: DsmmPlan, regime: Regime | None = None) -> float:
        return _seconds(target, plan, regime)

    def block(_: Mapping[str, float]) -> float:
        return seconds(_grouped(1, 1, 1)) * 1e9

    def element(known: Mapping[str, float]) -> float:
        plan = _grouped(512, 1, 512)
        return (seconds(plan) * 1e9 - known["block"]) / plan.mask.nnz

    def multiply_add(known: Mapping[str, float]) -> float:
        size, columns = 128, 4096
        taken = seconds(_grouped(1, size, columns), Regime.DENSE) * 1e9 - known["block"]
        return (taken - known["element"] * size * columns) / (size * size * columns)

    def product(known: Mapping[str, float]) -> float:
        groups = 1024
        taken = seconds(_grouped(groups, 2, 8), Regime.DENSE) * 1e9 - known["block"]
        return taken / groups - known["element"] * 16 - known["multiply_add"] * 32

    def gather(known: Mapping[str, float]) -> float:
        groups, size = 64, 32
        taken = seconds(_grouped(groups, size, 8), Regime.DENSE) * 1e9 - known["block"]
        rest = known["product"] + size * 8 * (known["element"] + known["multiply_add"] * size)
        return (taken / groups - rest) / size**2

    def walk(columns: int, known: Mapping[str, float]) -> float:
        """Nanoseconds per nonzero, without the elements."""
        groups, size = 256, 16
        plan = _grouped(groups, size, columns, thin=True)
        taken = seconds(plan, Regime.WALK) * 1e9 - known["block"]
        return (taken - known["element"] * plan.mask.nnz) / (groups * size * 2)

    def nonzero_element(known: Mapping[str, float]) -> float:
        return (walk(256, known) - walk(8, known)) / 248

    def nonzero(known: Mapping[str, float]) -> float:
        return walk(8, known) - 8 * known["nonzero_element"]

    own = locals()
    order = ("block", "element", "multiply_add", "product", "gather", "nonzero_element", "nonzero")
    assert set(order) == set(CONSTANTS)
    return {name: _positive(own[name]) for name in order}


def _positive(measure: Measure) -> Measure:
    """Differences of times can be lost in noise; a cost is never zero."""
    return lambda known: max(measure(known), _LEAST)


def _grouped(groups: int, size: int, columns: int, thin: bool = False) -> DsmmPlan:
    """Groups of `size` rows and so many columns; D full, or `thin`: two entries a row."""
    rows = groups * size
    pattern = SparsityPattern.from_columns(
        (rows, groups * columns),
        np.arange(0, rows + 1, size),
        np.arange(rows),
        np.repeat(np.arange(groups), columns),
    )
    if not thin:
        return DsmmPlan(pattern, pattern)
    row = np.arange(rows)
    following = row - row % size + (row + 1) % size
    dynamics = SparsityPattern.from_coo(
        np.concatenate([row, row]), np.concatenate([row, following]), (rows, rows)
    )
    return DsmmPlan(pattern, pattern, dynamics)


def _seconds(target: str, plan: DsmmPlan, regime: Regime | None) -> float:
    """The time of a product in float32, batch 1: the fastest tenth, which others disturb least."""
    packing = plan.packing(target, regime)
    plan = plan.with_packing(packing)
    xp = namespace("jax" if target == "xla" else "numpy")
    importlib.import_module(f"tritonsnap.{'jax' if target == 'xla' else 'numpy'}")
    values = xp.ones((plan.dynamics.nnz,), dtype=xp.float32)
    d: Any = values
    if packing.wants_dense:
        d = xp.ones(plan.dynamics.shape, dtype=xp.float32)
    form: Any = "dense" if packing.wants_dense else "values"
    x = packing.zeros((), xp, "x", dtype=xp.float32)
    call: Callable[..., Any] = lambda plan, d, x: masked_dsmm(d, x, plan, form=form)  # noqa: E731
    wait: Callable[[Any], Any] = lambda result: result  # noqa: E731
    if target == "xla":
        import jax

        call, wait = jax.jit(call), jax.block_until_ready
    wait(call(plan, d, x))
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 1000):
        start = time.perf_counter()
        wait(call(plan, d, x))
        samples.append(time.perf_counter() - start)
    return float(np.quantile(samples, 0.1))
