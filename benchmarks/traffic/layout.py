"""How Triton spreads a tile of memory accesses over the lanes of warps.

This follows Triton's coalescing pass. The axis with the longest contiguous runs is the fastest
(the last one, if equal). Each lane takes as many consecutive elements along it as are contiguous
and aligned, up to 16 bytes, as long as all lanes have some; the lanes of a warp fill the axes from
the fastest on, then the warps do. A lane's elements move in one instruction where the mask is
equal for all of them, else in narrower ones.

The compiler must prove contiguity, alignment and equal masks beforehand; here they are read off
the addresses, so this is the best that it can do. Whether it does is for the ahead-of-time tests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WARP = 32
"""Lanes of a warp."""
SECTOR = 32
"""Bytes of a sector: what moves between the caches."""
VECTOR = 16
"""Most bytes that a lane moves in one instruction."""


class WarpRequests(NamedTuple):
    """A tile access as requests of warps.

    Parameters
    ----------
    request : int64 [elements]
        The request that each element of the tile belongs to, elements in C order.
    copies
        How many warps load the same tile, because it is smaller than they are together.
        (Stores are not repeated.)
    """

    request: NDArray[np.int64]
    copies: int


def split(
    offsets: NDArray[np.int64], mask: NDArray[np.bool_], itemsize: int, num_warps: int
) -> WarpRequests:
    """Split a tile access into warp requests.

    Parameters
    ----------
    offsets : int64 [tile shape]
        Byte offset of each element from an address that is aligned to 16 bytes.
    mask : bool [tile shape]
        Which elements are accessed.
    itemsize
        Bytes of an element.
    num_warps
        Warps of the program.
    """
    shape = offsets.shape or (1,)
    offsets, mask = offsets.reshape(shape), mask.reshape(shape)
    runs = [_contiguous_run(offsets, axis, itemsize) for axis in range(len(shape))]
    order = sorted(range(len(shape)), key=lambda axis: (-runs[axis], -axis))
    fastest = order[0]
    vector = min(runs[fastest], VECTOR // itemsize, max(1, offsets.size // (WARP * num_warps)))
    starts = np.moveaxis(offsets, fastest, -1)
    while np.any(starts[..., ::vector] % (vector * itemsize)):
        vector //= 2

    request = np.zeros(shape, np.int64)
    lanes, warps, warps_used = WARP, num_warps, 1
    for axis in order:
        size = shape[axis]
        width = vector if axis == fastest else 1
        last = axis == order[-1]
        lanes_here = lanes if last else min(lanes, max(1, size // width))
        blocks = -(-size // (width * lanes_here))
        index = np.arange(size) // (width * lanes_here)
        request = request * blocks + index.reshape(-1, *[1] * (len(shape) - 1 - axis))
        warps_used *= min(warps, blocks)
        lanes, warps = lanes // lanes_here, warps // min(warps, blocks)

    instruction = _equal_mask_width(np.moveaxis(mask, fastest, -1), vector)
    part = np.arange(shape[fastest]) % vector // instruction
    request = request * (vector // instruction) + part.reshape(
        -1, *[1] * (len(shape) - 1 - fastest)
    )
    return WarpRequests(request.ravel(), num_warps // warps_used)


def _contiguous_run(offsets: NDArray[np.int64], axis: int, itemsize: int) -> int:
    """Find the largest power of two whose aligned blocks along `axis` are contiguous."""
    other = tuple(a for a in range(offsets.ndim) if a != axis)
    step_is_item = np.all(np.diff(offsets, axis=axis) == itemsize, axis=other)
    run = 1
    while 2 * run <= offsets.shape[axis] and step_is_item[run - 1 :: 2 * run].all():
        run *= 2
    return run


def _equal_mask_width(mask: NDArray[np.bool_], vector: int) -> int:
    """Find the largest width up to `vector` whose aligned blocks along the last axis are equal."""
    while vector > 1:
        blocks = mask.reshape(*mask.shape[:-1], -1, vector)
        if np.all(blocks == blocks[..., :1]):
            break
        vector //= 2
    return vector
