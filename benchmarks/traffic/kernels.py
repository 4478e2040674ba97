"""The kernels whose traffic is counted. To add one: a function from `Problem` to `Run`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.naive import NaiveDsmm
from benchmarks.traffic.model import Kernel, Run
from benchmarks.traffic.problem import Problem
from tritonsnap.ops.coo_to_csr.torch import row_pointers
from tritonsnap.ops.device import device_packing
from tritonsnap.ops.gather_compressed.torch import launch_kernels
from tritonsnap.ops.influence_gradient.triton import influence_gradient
from tritonsnap.ops.influence_update.triton import influence_update, snap1_step
from tritonsnap.ops.masked_dsmm.triton import masked_dsmm
from tritonsnap.ops.masked_outer.triton import outer
from tritonsnap.plan import DsmmPlan, Regime
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity import Compression, Projection

INFLUENCE = ("x", "out")
ALONE = (*INFLUENCE, "gradient")
"""The same without a gradient: the elementwise kernel is given `out` in its place."""


def _naive(problem: Problem) -> Run:
    naive = NaiveDsmm(problem.mask, problem.mask)
    d = torch.zeros(problem.batch, *problem.dynamics.shape)
    j = torch.zeros(problem.batch, problem.mask.nnz)
    return Run(lambda: naive(d, j), ("p_x", "p_out"), naive.flops * problem.batch)


def _ours(
    step: Callable[[Problem, DsmmPlan, torch.Tensor], object],
    influence: tuple[str, ...],
    in_dots: Callable[[Packing], NDArray[np.bool_]] = lambda packing: (
        packing.regimes == Regime.DENSE
    ),
) -> Callable[[Problem], Run]:
    """A step on a plan, with D given in the form that its kernels read.

    `in_dots` tells which groups are computed by ``tl.dot``, whose operations the recorder counts.
    """

    def prepare(problem: Problem) -> Run:
        plan = DsmmPlan(problem.mask, problem.mask, problem.dynamics)
        packing = plan.packing("triton")
        d = torch.zeros(problem.batch, plan.dynamics.nnz)
        flops = 2 * packing.costs.nonzeros * plan.groups.num_columns * ~in_dots(packing)
        return Run(lambda: step(problem, plan, d), influence, int(flops.sum()) * problem.batch)

    return prepare


def _packed(problem: Problem, plan: DsmmPlan) -> tuple[torch.Tensor, ...]:
    return (torch.zeros(problem.batch, *plan.packing("triton").shapes("x")[0]),)


def _factors(problem: Problem, plan: DsmmPlan) -> Factors:
    """The immediate Jacobian of the weights, each of which multiplies a unit of the state."""
    hidden = problem.dynamics.shape[0]
    rows, cols = problem.dynamics.rows, problem.dynamics.cols
    order = np.argsort(rows, kind="stable")
    source = cols[order][np.isin(rows[order], np.unique(problem.unit))]
    target = np.zeros_like(problem.unit)
    structure = FactorStructure(plan, problem.unit, target, source, hidden, 1, hidden)
    gains, sources = torch.zeros(problem.batch, 1, hidden), torch.zeros(problem.batch, hidden)
    return Factors(gains, sources, structure)


def _product(problem: Problem, plan: DsmmPlan, d: torch.Tensor) -> object:
    return masked_dsmm(d, _packed(problem, plan), plan)


def _update(problem: Problem, plan: DsmmPlan, d: torch.Tensor) -> object:
    return influence_update(d, _packed(problem, plan), _factors(problem, plan), plan)


def _gradient(problem: Problem, plan: DsmmPlan, _: torch.Tensor) -> object:
    delta = torch.zeros(problem.batch, problem.dynamics.shape[0])
    return influence_gradient(delta, _packed(problem, plan), plan, sum_batch=True)


def _outer(problem: Problem, plan: DsmmPlan, _: torch.Tensor) -> object:
    (j,) = _packed(problem, plan)
    packing = device_packing(plan.packing("triton"), j.device)
    return outer(packing, plan.packing("triton"), torch.zeros_like(j), j)


def _is_tiled(packing: Packing) -> NDArray[np.bool_]:
    return np.full(len(packing.groups), packing.pairs.tile > 1)


def _gather(problem: Problem) -> Run:
    """The values of a Jacobian with the influence's pattern, from its compressed form."""
    projection = Projection.of(Compression.of(problem.mask, mode="row"))
    compressed = torch.zeros(problem.batch, *projection.compression.compressed_shape)
    index = torch.from_numpy(projection.index)
    runs = [] if projection.runs is None else [torch.from_numpy(array) for array in projection.runs]
    return Run(lambda: launch_kernels(compressed, index, runs), ("values",))


def _row_pointers(problem: Problem) -> Run:
    """The row pointers of a Jacobian with the influence's pattern; its rows stand for J."""
    rows = torch.from_numpy(problem.mask.rows.astype(np.int32))
    return Run(lambda: row_pointers(rows, problem.mask.shape[0], False), ("rows",))


def _snap1(problem: Problem, plan: DsmmPlan, d: torch.Tensor) -> object:
    delta = torch.zeros(problem.batch, problem.dynamics.shape[0])
    return snap1_step(d, _packed(problem, plan), _factors(problem, plan), delta, plan)


NAIVE = Kernel("naive", _naive)
MASKED_DSMM = Kernel("masked_dsmm", _ours(_product, ALONE))
INFLUENCE_UPDATE = Kernel("influence_update", _ours(_update, ALONE))
SNAP1_STEP = Kernel("snap1_step", _ours(_snap1, INFLUENCE))
INFLUENCE_GRADIENT = Kernel("influence_gradient", _ours(_gradient, ("j",)))
MASKED_OUTER = Kernel("masked_outer", _ours(_outer, ("r", "x"), _is_tiled), most_programs=4)
GATHER_COMPRESSED = Kernel("gather_compressed", _gather)
COO_TO_CSR = Kernel("coo_to_csr", _row_pointers)

KERNELS = (
    *(NAIVE, MASKED_DSMM, INFLUENCE_UPDATE, INFLUENCE_GRADIENT),
    *(MASKED_OUTER, GATHER_COMPRESSED, COO_TO_CSR),
)
"""Those of the sweep; for SnAp-1 `SNAP1_STEP` as well."""
