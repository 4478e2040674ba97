"""`CompressedStructure`: an immediate Jacobian that is added from its compressed form.

The compressed Jacobian ``V I`` has one row per color (see `tritonsnap.gather_compressed`), and
each nonzero of I stands alone in it, so a step reads the nonzeros where it adds them, and never
writes them down by themselves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_instance
from tritonsnap.plan.blocks import Block
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.compact import compact, signed
from tritonsnap.plan.flat_values import FlatPlaces
from tritonsnap.plan.immediate import ImmediateStructure
from tritonsnap.plan.packing import AnyBlock, Packing
from tritonsnap.sparsity.compression import Projection


class Compressed(NamedTuple):
    """The values of a compressed immediate Jacobian.

    Attributes
    ----------
    values : [..., colors, p]
        ``V I``: what one VJP per color computes.
    structure : CompressedStructure
        Which values of the influence they are added to.
    """

    values: Any
    structure: CompressedStructure


@dataclass(frozen=True, eq=False)
class CompressedBlock:
    """Where one block reads a compressed Jacobian.

    Attributes
    ----------
    whole
        Whether `source` has the shape of the block; else it lists the values that get something.
    place : [entries], or [0] if `whole`
        Where they lie in the flattened block.
    source : [entries], or the block's shape if `whole`
        Where each lies in the flattened compressed Jacobian; one past its end for nothing.
    """

    whole: bool
    place: Any
    source: Any

    ARRAYS: ClassVar = ("place", "source")


@dataclass(frozen=True, eq=False)
class CanonicalColors:
    """Where the values of a `CanonicalBlock` read a compressed Jacobian.

    Attributes
    ----------
    color : [nnz]
        The row of the compressed Jacobian that each value reads; `num_colors` for none.
    """

    color: Any

    ARRAYS: ClassVar = ("color",)


@dataclass(frozen=True, eq=False)
class CompressedStructure(ImmediateStructure):
    """Which values of an influence a compressed immediate Jacobian is added to.

    Parameters
    ----------
    plan
        The plan whose influence it is added to.
    projection
        How the immediate Jacobian is compressed: by VJPs, so that each row has one color. Its
        pattern lies in ``plan.mask``.

    Raises
    ------
    ValueError, TypeError
        That name `projection`, if it is compressed otherwise or does not fit the plan.
    """

    projection: Projection

    def __post_init__(self) -> None:
        super().__post_init__()
        check_instance("projection", self.projection, Projection)
        compression = self.projection.compression
        if compression.mode != "row":
            raise ValueError(
                '`projection` must be compressed by VJPs (mode "row"), got mode '
                f"{compression.mode!r}"
            )
        shape, mask = compression.mask.shape, self.plan.mask
        if shape != mask.shape:
            raise ValueError(f"`projection` must have shape {mask.shape} of the plan, got {shape}")
        if not mask.contains(compression.pattern):
            raise ValueError("`projection` has positions that the plan's mask lacks: `keep` fewer")

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        content = self.plan.digest + self.projection.compression.digest
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def num_colors(self) -> int:
        """Rows of the compressed Jacobian."""
        return self.projection.compression.num_passes

    def canonical(self) -> CanonicalColors:
        """The colors of values in canonical order."""
        key = "canonical"
        if key not in self._layouts:
            compression = self.projection.compression
            assert compression.rows is not None
            kept = compression.index >= 0
            place = self.plan.mask.positions(compression.pattern)[kept]
            colors = np.full(self.plan.mask.nnz, self.num_colors, np.int64)
            colors[place] = compression.rows.colors[compression.pattern.rows[kept]]
            color = signed(np.append(colors, self.num_colors))[:-1]
            self._layouts[key] = (CanonicalColors(color),)
        colored: CanonicalColors = self._layouts[key][0]
        return colored

    def _lay_out_all(self, packing: Packing) -> tuple[CompressedBlock, ...]:
        mask, color = self.plan.mask, self.canonical().color
        length = self.num_colors * mask.shape[1]
        inside = color < self.num_colors
        source = np.where(inside, color * np.int64(mask.shape[1]) + mask.cols, length)
        source = np.append(source, length)
        return tuple(
            _lay_out(source[place], length) for place in _places(packing.blocks, packing, mask.nnz)
        )


def _places(
    blocks: tuple[AnyBlock, ...], packing: Packing, nnz: int
) -> tuple[NDArray[np.int64], ...]:
    """For each block the canonical place of its values; nnz at padding."""
    if not blocks:
        return ()
    if isinstance(blocks[0], CanonicalBlock):
        place = np.arange(blocks[0].mask_values)
        return (np.minimum(place, nnz),)
    padded = cast("tuple[Block, ...]", blocks)
    return FlatPlaces.build(padded, packing.shapes("mask"), "mask", nnz).of_block


def _lay_out(source: NDArray[np.int64], length: int) -> CompressedBlock:
    filled = source < length
    if 2 * filled.sum() >= source.size:
        return CompressedBlock(True, np.empty(0, np.uint8), compact(source))
    place = np.flatnonzero(filled)
    return CompressedBlock(False, compact(place), compact(source.ravel()[place]))
