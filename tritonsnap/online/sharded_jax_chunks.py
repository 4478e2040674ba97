"""Chunked time of the learner that `Sharded` for JAX spreads: one program for all devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from tritonsnap.online.cell import Params
from tritonsnap.online.chunk_choice import Chunkings
from tritonsnap.online.chunk_structure import Chunking, digest_of
from tritonsnap.online.jax_sequence import register_snap
from tritonsnap.online.snap import SnAp
from tritonsnap.plan.alignment import align_factors, align_packings
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.factors import FactorBlock, FactorStructure
from tritonsnap.plan.jax_target import jax_packing
from tritonsnap.plan.packing import Packing, collect
from tritonsnap.plan.partition import Partition


class Share(SnAp):
    """The learner of one device's columns, which keep the numbers that they have in the whole."""

    def all_gradients(self, flat: Any, others: Params) -> Params:
        """As of any learner, with this device's columns of `others` alone."""
        packing = self.plan.packing_for(flat)
        ones = tuple(jax.numpy.ones(shape, bool) for shape in packing.column_shapes())
        held = self.cell.shaped(packing.unpack_columns(ones))
        kept = {name: jax.numpy.where(held[name], value, 0) for name, value in others.items()}
        return super().all_gradients(flat, kept)


register_snap(Share)


class AlignedChunkings(Chunkings):
    """The ways of the devices of a mesh: the same for all, each with index arrays of its own.

    Parameters
    ----------
    learner
        The learner in one piece.
    structures
        Each device's columns, aligned.
    spread
        Puts an index array [devices, ...] where each device has its own.
    """

    walks: ClassVar[bool] = False

    def __init__(
        self,
        learner: SnAp,
        structures: Sequence[FactorStructure],
        spread: Callable[[Any], Any],
    ) -> None:
        self.structures, self.spread = structures, spread
        self.packings = [jax_packing(one.plan) for one in structures]
        # at the price that is shipped: equal on all machines
        super().__init__(structures[0], learner.dynamics, self.packings[0].target)

    @property
    def digest(self) -> str:
        """How the digest of each chunking that this makes begins."""
        return digest_of(self.structure, self.packings)

    def packings_for(self, target: str) -> list[Packing]:
        """The packings of all devices."""
        return self.packings

    def make(self, target: str, steps: int, chosen: list[dict[int, Regime]]) -> Chunking:
        """Chunks of so many steps, with index arrays [devices, ...]."""
        (own,) = chosen
        price, devices = self.price(target), len(self.packings)
        whole = Chunking.build_aligned(
            steps, self.structure, self.dynamics, self.packings, own, price
        )
        arrays, tree = jax.tree.flatten(replace(whole, stepped=None))
        apart = [np.asarray(a).reshape(devices, len(a) // devices, *a.shape[1:]) for a in arrays]
        chunking: Chunking = jax.tree.unflatten(tree, list(map(self.spread, apart)))
        numbers = whole.stepped_numbers
        if not numbers:
            return chunking
        parts = [_only(one, numbers) for one in self.structures]
        stacked = map(self.spread, stacked_arrays(parts))
        return replace(chunking, stepped=jax.tree.unflatten(jax.tree.structure(parts[0]), stacked))


def aligned_structures(
    structure: FactorStructure, partition: Partition, target: str
) -> list[FactorStructure]:
    """Each device's columns of a structure; they differ in the contents of their arrays only."""
    packings = align_packings(structure.plan.packing(target), partition)
    layouts = align_factors(structure, packings)
    return [
        _over(structure, packing, layout) for packing, layout in zip(packings, layouts, strict=True)
    ]


def stacked_arrays(structures: Sequence[FactorStructure]) -> list[NDArray[np.integer]]:
    """The leaves of aligned structures, [devices, ...] each."""
    found = []
    for one in structures:
        packing = jax_packing(one.plan)
        layout = [array for block in one.layout(packing) for array in collect(block)]
        found.append([*packing.arrays(), *layout])
    return [np.stack(own) for own in zip(*found, strict=True)]


def _only(structure: FactorStructure, numbers: Sequence[int]) -> FactorStructure:
    """An aligned structure with only some of its blocks."""
    packing = jax_packing(structure.plan)
    blocks = tuple(packing.blocks[number] for number in numbers)
    layout = structure.layout(packing)
    part = replace(packing, blocks=blocks, _flat={}, calls={})
    return _over(structure, part, tuple(layout[number] for number in numbers))


def _over(
    structure: FactorStructure, packing: Packing, layout: tuple[FactorBlock, ...]
) -> FactorStructure:
    """A structure whose plan has this packing in JAX, and the factors of its blocks."""
    plan = structure.plan.with_packing(packing)
    plan.__dict__["_jax_target"] = packing.target.name
    own = structure.with_layouts(plan, {packing.digest: layout})
    object.__setattr__(own, "host", None)  # it is the template of others, not the whole
    return own
