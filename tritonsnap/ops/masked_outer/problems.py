"""Problems and references by which the outer product's kernels are tested and tuned."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.canonical import outer_tile_arguments, outer_walk_arguments
from tritonsnap.ops.kernel import Problem
from tritonsnap.ops.masked_dsmm.problems import random_columns, wide
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.outer_pairs import OUTER_TILE, OuterPairs
from tritonsnap.sparsity.pattern import SparsityPattern


def walk_problem(pairs: int, batch: int) -> Problem:
    """About so many pairs, of groups of up to 8 rows, each in some runs of columns."""
    random = np.random.default_rng([pairs, batch])
    height = 2 + int(pairs**0.5)
    square = pairs % 2 == 1
    kinds = [random.permutation(height)[: random.integers(1, 9)] for _ in range(-(-pairs // 16))]
    mask = random_columns(height, 2 * kinds, random)
    x = mask if square else random_columns(height, 2 * kinds[::-1], random, mask.shape[1])
    packing = DsmmPlan(x, mask).packing("triton")
    block = packing.blocks[0]
    assert block.square == square
    products = OuterPairs.of_pairs(packing.groups, packing.dynamics)
    arguments = outer_walk_arguments(
        block,
        products,
        random.standard_normal((batch, block.mask_values)),
        random.standard_normal((batch, block.x_values)),
    )
    outputs = {"partial": (batch, products.num_partial)}
    return Problem(wide(arguments), outputs, {"pairs": pairs, "batch": batch})


def walk_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Run by run."""
    partial = np.zeros((a["batch"], a["num_partial"]))
    for group in range(len(a["run_begin"]) - 1):
        pairs = np.flatnonzero(a["pair_group"] == group)
        for run in a["group_run"][slice(*a["run_begin"][group : group + 2])]:
            r, x = _of_run(a, run, group)
            products = r[:, :, a["pair_row"][pairs]] * x[:, :, a["pair_inner"][pairs]]
            partial[:, pairs] += products.sum(axis=1)
    return {"partial": partial}


def tile_problem(tiles: int, batch: int) -> Problem:
    """About so many tiles; of D where their number is even, of groups where it is odd.

    Four kinds of some 40 columns have about half of the rows, or few of them, or none. D has all
    of its first columns: the tiles there are needed whole.
    """
    random = np.random.default_rng([tiles, batch])
    kind = np.sort(random.integers(0, 4, 160))
    height = int(OUTER_TILE * tiles**0.5) - 3

    def pattern(height: int) -> SparsityPattern:
        drawn = random.random((height, 4)) < [0.5, 0.9, 1 / height, 0]
        return SparsityPattern.from_dense(drawn[:, kind])

    x, mask = pattern(height), pattern(height + 5)
    shape = (mask.shape[0], x.shape[0])
    is_first = np.arange(shape[1]) < 2 * shape[1] // 3
    dynamics = SparsityPattern.from_dense((random.random(shape) < 0.7) | is_first)
    packing = DsmmPlan(x, mask, dynamics).packing("triton")
    block = packing.blocks[0]
    build = OuterPairs.of_groups if tiles % 2 else OuterPairs.of_dynamics
    products = build(packing.groups, packing.dynamics)
    arguments = outer_tile_arguments(
        block,
        products,
        random.standard_normal((batch, block.mask_values)),
        random.standard_normal((batch, block.x_values)),
    )
    outputs = {"partial": (batch, products.num_partial)}
    return Problem(wide(arguments), outputs, {"tiles": tiles, "batch": batch})


def tile_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Tile by tile, run by run."""
    words = a["kept"][:, 1:].swapaxes(1, 2)[..., None] >> np.arange(32)
    bits = (words & 1).astype(bool).reshape(-1, OUTER_TILE, OUTER_TILE)
    partial = np.full((a["batch"], a["num_partial"]), np.nan)
    for begin, end, row, inner, num_rows, num_inner, place, step in a["tiles"]:
        matrix = np.zeros((a["batch"], OUTER_TILE, OUTER_TILE))
        for run in np.unique(a["pieces"][begin:end, 0]):
            group = a["run_group"][run]
            r, x = _of_run(a, run, group)
            rows = a["mask_row"][slice(*a["row_begin"][group : group + 2])] - row
            inners = a["x_row"][slice(*a["x_begin"][group : group + 2])] - inner
            if a["local"]:
                rows, inners = np.arange(len(rows)) - row, np.arange(len(inners)) - inner
            left, right = (np.flatnonzero((of >= 0) & (of < OUTER_TILE)) for of in (rows, inners))
            products = np.einsum("bck,bcs->bks", x[:, :, right], r[:, :, left])
            matrix[:, inners[right][:, None], rows[left]] += products
        for i in range(num_inner):
            first = place + i * step if step else a["kept"][place, 0, i]
            own = np.arange(OUTER_TILE) < num_rows if step else bits[place, i]
            partial[:, first : first + own.sum()] = matrix[:, i, own]
    return {"partial": partial}


def sum_problem(entries: int, batch: int) -> Problem:
    """Entries of up to 5 partial sums."""
    random = np.random.default_rng([entries, batch])
    begin = np.concatenate([[0], np.cumsum(random.integers(0, 6, entries))])
    arguments = {
        "entry_begin": begin,
        "entry_partial": random.permutation(begin[-1]),
        "partial": random.standard_normal((batch, begin[-1])),
        "num_entries": entries,
        "num_partial": int(begin[-1]),
        "batch": batch,
    }
    sizes = {"entries": entries, "batch": batch}
    return Problem(wide(arguments), {"out": (batch, entries)}, sizes)


def sum_reference(**a: Any) -> Mapping[str, NDArray[Any]]:
    """Entry by entry."""
    begin = a["entry_begin"]
    parts = [
        a["partial"][:, a["entry_partial"][first:last]].sum(axis=1)
        for first, last in itertools.pairwise(begin)
    ]
    return {"out": np.stack(parts, axis=1)}


def _of_run(a: Mapping[str, Any], run: int, group: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The columns of a run in M and in X, ``[batch, columns, rows of the group]``."""
    columns = a["run_column"][run + 1] - a["run_column"][run]
    r, x = (
        a[name][:, a[first][run] :][:, : columns * (a[begin][group + 1] - a[begin][group])]
        for name, first, begin in (("r", "run_value", "row_begin"), ("x", "run_x", "x_begin"))
    )
    return r.reshape(len(r), columns, -1), x.reshape(len(x), columns, -1)
