"""Random plans and operands for the tests of the ops, with dense float64 answers."""

import contextlib
from dataclasses import dataclass
from typing import Any
from unittest import mock

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st

from tritonsnap.arrays import import_library, to_numpy
from tritonsnap.plan import DsmmPlan, Regime, dsmm_plan
from tritonsnap.plan.compressed import CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity import Compression, Projection, SparsityPattern, snap_pattern

REGIMES = [None, Regime.WALK, Regime.DENSE]
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def matrices(rows: int, cols: int) -> st.SearchStrategy[SparsityPattern]:
    """Patterns of a shape, from empty to full."""
    return hnp.arrays(bool, (rows, cols)).map(SparsityPattern.from_dense)


@dataclass
class Problem:
    """A plan, and what fits it."""

    plan: DsmmPlan
    target: str
    library: str
    dtype: str
    packed: bool
    form: str
    strided: bool
    random: np.random.Generator
    batch: tuple[int, ...]

    def draw(self, *shape: int, batch: tuple[int, ...] | None = None) -> np.ndarray:
        """Float64 values that the problem's dtype holds exactly."""
        batch = self.batch if batch is None else batch
        return self.random.standard_normal((*batch, *shape)).astype(self.dtype).astype(np.float64)

    def dynamics(self, batch: tuple[int, ...]) -> tuple[np.ndarray, Any]:
        """D dense in float64 with what the plan leaves out zeroed, and as the op gets it."""
        pattern = self.plan.dynamics
        dense = self.draw(*pattern.shape, batch=batch)
        values = pattern.values_of(dense)
        given = dense if self.form == "dense" else values
        return pattern.to_dense(values), self.to_library(given)

    def influence(self, side: str = "x", batch: tuple[int, ...] | None = None):
        """A sparse operand dense in float64, and as the op gets it."""
        pattern = getattr(self.plan, side)
        values = self.draw(pattern.nnz, batch=batch)
        given = self.to_library(values)
        if self.packed:
            given = self.plan.packing_for(given).pack(given, side)
        return pattern.to_dense(values), given

    def to_library(self, values: np.ndarray) -> Any:
        """The values in the problem's library and dtype, with strides if it says so."""
        values = values.astype(self.dtype)
        if self.strided:
            values = np.repeat(values, 2, axis=-1)[..., ::2]
        if self.library == "numpy":
            return values
        if self.library == "torch":
            return import_library("torch").from_numpy(values)
        return import_library("jax").numpy.asarray(values)

    def check(self, found: Any, dense: np.ndarray, side: str = "mask") -> None:
        """Compare a result of the op, in its own form, with a dense matrix."""
        pattern = getattr(self.plan, side)
        if self.packed:
            assert isinstance(found, tuple)
            if not found:
                assert not self.plan.packing().blocks
                return
            found = self.plan.packing_for(*found).unpack(found, side)
        self.compare(found, pattern.values_of(dense))

    def compare(self, found: Any, expected: np.ndarray) -> None:
        """Compare values, shape and dtype."""
        array = to_numpy(found)
        assert array.shape == expected.shape
        assert str(array.dtype) == self.dtype
        tolerance = TOLERANCE[self.dtype]
        np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)


@contextlib.contextmanager
def default_target(name: str):
    """Plans use this target for NumPy arrays and CPU tensors."""
    with mock.patch.object(dsmm_plan, "_DEFAULT_TARGET", name):
        yield


@st.composite
def problems(draw: st.DrawFn, square: bool = False) -> Problem:
    """Problems for NumPy and torch of every kind, with one or two units up to five."""
    rows, inner, cols = (draw(st.integers(1, 5)) for _ in range(3))
    x = draw(matrices(rows if square else inner, cols))
    mask = draw(matrices(rows, cols))
    dynamics = draw(st.none() | matrices(rows, x.shape[0]))
    target = draw(st.sampled_from(["numpy", "scipy"]))
    plan = DsmmPlan(x, mask, dynamics)
    plan = plan.with_packing(plan.packing(target, draw(st.sampled_from(REGIMES))))
    return Problem(
        plan=plan,
        target=target,
        library=draw(st.sampled_from(["numpy", "torch"])),
        dtype=draw(st.sampled_from(["float32", "float64"])),
        packed=draw(st.booleans()),
        form=draw(st.sampled_from(["values", "dense"])),
        strided=draw(st.booleans()),
        random=np.random.default_rng(draw(st.integers(0, 1000))),
        batch=draw(st.sampled_from([(), (1,), (3,), (2, 3)])),
    )


def broadcasts(batch: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Batch axes that broadcast to `batch`."""
    return st.sampled_from([batch, batch[1:], (1,) * len(batch), ()])


def snap_problem(
    order: int | None, regime: Regime | None, target: str | None = None, dtype: str = "float64"
) -> tuple[DsmmPlan, FactorStructure, np.random.Generator]:
    """A small network of four units, three parameters each, two preactivations, four sources."""
    units, each = 4, 3
    random = np.random.default_rng(0)
    dense = random.random((units, units)) < 0.5
    dynamics = SparsityPattern.from_dense(dense | np.eye(units, dtype=bool))
    unit = np.repeat(np.arange(units), each)
    immediate = SparsityPattern.from_coo(unit, np.arange(units * each), (units, units * each))
    mask = snap_pattern(dynamics, immediate, order)
    plan = DsmmPlan(mask, mask, dynamics)
    if regime is not None:
        plan = plan.with_packing(plan.packing(target, regime))
    target_of = random.integers(0, 2, units * each)
    source = np.tile(np.arange(each), units)
    return plan, FactorStructure(plan, unit, target_of, source, units, 2, 4), random


def multiplied_out(factors: Factors) -> np.ndarray:
    """The dense immediate Jacobian of factors, one parameter after the other."""
    structure = factors.structure
    gains, sources = to_numpy(factors.gains), to_numpy(factors.sources)
    rows, cols = structure.plan.mask.shape
    lead = np.broadcast_shapes(gains.shape[:-2], sources.shape[:-1])
    dense = np.zeros((*lead, rows, cols))
    for col in range(cols):
        for row in range(structure.unit[col], rows, structure.num_units):
            gain = gains[..., structure.target[col], row]
            dense[..., row, col] = gain * sources[..., structure.source[col]]
    return dense


def compressed_structure(
    plan: DsmmPlan, random: np.random.Generator, share: float = 0.5
) -> CompressedStructure:
    """For an immediate Jacobian on about that share of the mask, and beyond it."""
    inside = plan.mask.to_dense().astype(bool) & (random.random(plan.mask.shape) < share)
    kept = SparsityPattern.from_dense(inside)
    outside = SparsityPattern.from_dense(random.random(plan.mask.shape) < 0.1)
    return CompressedStructure(
        plan, Projection.of(Compression.of(kept | outside, kept, mode="row"))
    )


def compress(structure: CompressedStructure, dense: np.ndarray) -> np.ndarray:
    """The sums of the rows of each color of dense Jacobians ``[..., m, p]``."""
    seeds = np.arange(structure.num_colors)[:, None] == structure.projection.row_colors
    return seeds.astype(float) @ dense


def compressed_dense(
    structure: CompressedStructure, random: np.random.Generator, batch: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """A compressed immediate Jacobian, and the part of it that is kept, dense."""
    compression = structure.projection.compression
    dense = random.standard_normal((*batch, *compression.mask.shape))
    dense *= compression.mask.to_dense()
    return compress(structure, dense), dense * compression.pattern.to_dense()
