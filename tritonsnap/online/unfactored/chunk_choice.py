"""By how many steps to chunk the influence of an `UnfactoredCell`, by predicted cost."""

from __future__ import annotations

import numpy as np

from tritonsnap.online.chunk_choice import BlockCost, Ways
from tritonsnap.online.unfactored.cell import UnfactoredCell
from tritonsnap.online.unfactored.chunk_structure import Part, UnfactoredChunking, parts_of
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.calibration import calibrated_target
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing


class UnfactoredChunkings(Ways[UnfactoredChunking]):
    """The ways of the learner of a cell: all of its influence is chunked, or none."""

    def __init__(self, cell: UnfactoredCell, plan: DsmmPlan, digest: str) -> None:
        super().__init__()
        self.cell = cell
        self.plan = plan
        self.digest = digest
        self._parts: dict[str, tuple[Part, ...]] = {}
        self._costs: dict[str, BlockCost] = {}

    def by_layer(self, target: str) -> list[list[BlockCost]]:
        """The predicted costs of all blocks together, of the only layer."""
        if target not in self._costs:
            self._costs[target] = self._cost(self.plan.packing(target))
        return [[self._costs[target]]]

    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> UnfactoredChunking:
        """Chunks of so many steps; see `Ways.make`."""
        packing = self.plan.packing(target)
        digest = f"{self.digest} {packing.digest} {steps}"
        return UnfactoredChunking(steps, self._parts_of(packing), digest)

    def _parts_of(self, packing: Packing) -> tuple[Part, ...]:
        if packing.digest not in self._parts:
            self._parts[packing.digest] = parts_of(packing, self.cell.immediate_pattern)
        return self._parts[packing.digest]

    def _cost(self, packing: Packing) -> BlockCost:
        price, work = calibrated_target(packing.target.name), self.cell.work
        num_parameters = self.cell.immediate_pattern.shape[1]
        values = sum(int(np.prod(block.mask_shape)) for block in packing.blocks)
        stepping = sum(
            float(packing.costs.by_regime[block.regime][block.groups].sum())
            for block in packing.blocks
        )
        # the immediate values are put into their blocks
        stepping += (2 * price.element + price.gather) * values
        # a step's Jacobians are counted beside this: a chunk takes only those of the dynamics
        chunk_step = price.multiply_add * float(work.dynamics - work.jacobians)
        chunk, kept = 4.0 * price.element * values, packing.dynamics.nnz
        for part in self._parts_of(packing):
            num_groups, size = part.shape
            adjoint = num_groups * size * (1 + size)
            passes = part.num_colors * (1 + size)
            chunk_step += price.multiply_add * (adjoint * size + passes * num_parameters)
            chunk_step += price.element * (4 * adjoint + 6 * passes * self.cell.rows)
            chunk_step += 0 if part.entry is None else price.gather * num_groups * size**2
            chunk_step += 0 if size == 1 else num_groups * price.product
            chunk += price.multiply_add * values * size
            chunk += part.num_colors * (price.block + price.gather * values)
            kept += adjoint + passes * self.cell.rows
        return BlockCost(Regime.DENSE, stepping, chunk_step, chunk, values, kept)
