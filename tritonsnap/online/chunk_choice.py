"""Which blocks of an influence to chunk, and by how many steps, by predicted cost."""

from __future__ import annotations

from typing import Literal

from tritonsnap.online.chunk_structure import Chunking, adjoint_plan, can_chunk
from tritonsnap.online.dynamics import DynamicsStructure
from tritonsnap.plan.blocks import ElementwiseBlock, Regime
from tritonsnap.plan.factors import FactorStructure


class Chunkings:
    """The ways of one learner through sequences, each made once."""

    def __init__(self, structure: FactorStructure, dynamics: DynamicsStructure) -> None:
        self.structure = structure
        self.dynamics = dynamics
        self._made: dict[tuple[object, ...], Chunking | None] = {}

    def find(
        self, chunk: int | Literal["auto"], target: str, length: int, batch: int
    ) -> Chunking | None:
        """How to go through a sequence; None for step by step."""
        key0 = (chunk,target)
        if key0 in self._made: return self._made[key0]
        packing = self.structure.plan.packing(target)
        chosen = {}
        for number, block in enumerate(packing.blocks):
            if isinstance(block, ElementwiseBlock):
                if can_chunk(self.structure, block):
                    chosen[number] = Regime.ELEMENTWISE
            else:
                plan = adjoint_plan(packing, [number])
                chosen[number] = plan.packing(target).blocks[0].regime
        steps = 4 if chunk == "auto" else chunk
        key = (target, steps)
        if key not in self._made:
            self._made[key] = Chunking.build(steps, self.structure, self.dynamics, packing, chosen)
        self._made[key0]=self._made[key]
        return self._made[key]
