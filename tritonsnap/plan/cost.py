"""The cost model: how long each regime takes for a group on a target, in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.blocks import Regime
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.indices import ranges
from tritonsnap.sparsity.pattern import SparsityPattern


@dataclass(frozen=True)
class Target:
    """What runs a plan, with the nanoseconds that its operations take there.

    Attributes
    ----------
    name
        "numpy" (NumPy alone), "scipy" (NumPy with SciPy's compiled CSR product), "xla", or
        "triton" (a GPU: nanoseconds of the whole device, so that they add up).
    element
        Per value, to read, scale and write it.
    multiply_add
        Per multiply-add of a dense product with large operands.
    product
        Per dense product, however small.
    gather
        Per entry of D that a dense product gathers.
    nonzero
        Per nonzero that a walk visits.
    nonzero_element
        Per value that a walk adds at a nonzero.
    block
        Per block: the overhead of the calls.
    most_blocks
        Into how many blocks the groups of one regime are split at most.
    """

    name: str
    element: float
    multiply_add: float
    product: float
    gather: float
    nonzero: float
    nonzero_element: float
    block: float
    most_blocks: int

    @property
    def canonical(self) -> bool:
        """Whether it computes on values in canonical order, in one block."""
        return self.name == "triton"

    @property
    def by_row(self) -> bool:
        """Whether walks hold their nonzeros by row (CSR) instead of by classes of rows."""
        return self.name == "scipy"


TARGETS = {
    target.name: target
    for target in (
        Target("numpy", 0.35, 0.022, 700.0, 2.5, 12.0, 1.6, 15_000.0, 8),
        Target("scipy", 0.35, 0.022, 700.0, 2.5, 3.0, 0.25, 60_000.0, 8),
        Target("xla", 0.35, 0.05, 900.0, 2.5, 3.0, 0.6, 10_000.0, 4),
        # from the traffic model of an H200: 8 bytes an element at 4.3 TB/s; of the L1 bytes, at
        # some 14 TB/s, 32 a gathered entry of D and 40 a walked one
        Target("triton", 0.0019, 0.00006, 1.0, 0.0023, 0.0003, 0.0029, 3_000.0, 1),
    )
}


@dataclass(frozen=True)
class GroupCosts:
    """Predicted nanoseconds of one product per group and regime, batch 1, float32.

    Attributes
    ----------
    regimes : object [groups]
        The cheapest regime of each group.
    nanoseconds : float64 [groups]
        What it is predicted to take.
    by_regime
        The same for every regime that a group can have (inf where it cannot).
    nonzeros : int64 [groups]
        Nonzeros of D[S, R].
    """

    regimes: NDArray[np.object_]
    nanoseconds: NDArray[np.float64]
    by_regime: dict[Regime, NDArray[np.float64]]
    nonzeros: NDArray[np.int64]


def group_costs(groups: ColumnGroups, dynamics: SparsityPattern, target: Target) -> GroupCosts:
    """Price every regime for every group."""
    nonzeros = count_nonzeros(groups, dynamics)
    by_regime = price_groups(groups, nonzeros, target)
    names = np.array(list(by_regime), object)
    table = np.stack(list(by_regime.values()))
    best = np.argmin(table, axis=0)
    return GroupCosts(names[best], table[best, np.arange(len(groups))], by_regime, nonzeros)


def price_groups(
    groups: ColumnGroups, nonzeros: NDArray[np.int64], target: Target
) -> dict[Regime, NDArray[np.float64]]:
    """Nanoseconds of every group in every regime, given the nonzeros of its D[S, R]."""
    written, read = groups.mask_sizes, groups.x_sizes
    columns = groups.num_columns
    entries = written * read
    return {
        Regime.ELEMENTWISE: np.where(
            (written == 1) & (read == 1), target.element * columns, np.inf
        ),
        Regime.WALK: nonzeros * (target.nonzero + target.nonzero_element * columns)
        + target.element * written * columns,
        Regime.DENSE: np.where(
            read > 0,
            target.product
            + entries * (target.gather + target.multiply_add * columns)
            + target.element * written * columns,
            np.inf,
        ),
    }


def count_nonzeros(groups: ColumnGroups, dynamics: SparsityPattern) -> NDArray[np.int64]:
    """int64 [groups]: the nonzeros of D[S, R], counted on bits."""
    num_rows = dynamics.shape[0]
    row_bytes = 8 * -(-num_rows // 64)
    column_bits = _bits(dynamics, np.arange(dynamics.num_kinds), row_bytes)
    counts = np.zeros(len(groups), np.int64)
    at_once = max((1 << 25) // max(row_bytes * int(groups.x_sizes.max(initial=1)), 1), 1)
    for start in range(0, len(groups), at_once):
        stop = min(start + at_once, len(groups))
        written = _bits(groups.mask, groups.mask_kind[start:stop], row_bytes)
        kinds = groups.x_kind[start:stop]
        begin, sizes = groups.x.support_indptr[kinds], groups.x_sizes[start:stop]
        filled = np.flatnonzero(sizes)
        if not len(filled):
            continue
        members = np.concatenate(
            [groups.x.support_rows[b : b + n] for b, n in zip(begin, sizes, strict=True)]
        )
        owner = np.repeat(np.arange(stop - start), sizes)
        read = column_bits[dynamics.column_kind[members]]
        shared = np.bitwise_count(read & written[owner]).sum(axis=1, dtype=np.int64)
        first = (np.cumsum(sizes) - sizes)[filled]
        counts[start + filled] = np.add.reduceat(shared, first)
    return counts


def _bits(
    pattern: SparsityPattern, kinds: NDArray[np.integer], row_bytes: int
) -> NDArray[np.uint64]:
    """uint64 [kinds, words]: supports, one bit a row."""
    marks = np.zeros((len(kinds), 8 * row_bytes), np.bool_)
    sizes = np.diff(pattern.support_indptr)[kinds]
    rows = pattern.support_rows[ranges(pattern.support_indptr[kinds], sizes)]
    marks[np.repeat(np.arange(len(kinds)), sizes), rows] = True
    return np.packbits(marks, axis=1).view(np.uint64)


def partition(
    keys: NDArray[np.int64],
    cost: Callable[[NDArray[np.int64]], float],
    most: int,
    overhead: float,
) -> list[NDArray[np.int64]]:
    """Split items into at most `most` blocks of similar `keys`, as cheaply as can be.

    Parameters
    ----------
    keys : int64 [items]
        Items are taken in ascending order of these.
    cost
        What a block of the given items costs, padding included.
    overhead
        What a block costs however small.

    Returns
    -------
    list of int64 arrays
        The items of each block, ascending.
    """
    if not len(keys):
        return []
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order], prepend=keys[order][0] - 1))
    if len(edges) > _MOST_EDGES:
        edges = edges[np.linspace(0, len(edges) - 1, _MOST_EDGES).astype(int)]
    edges = np.append(edges, len(keys))
    num = len(edges) - 1
    price = np.full((num + 1, num + 1), np.inf)
    for i in range(num):
        for j in range(i + 1, num + 1):
            price[i, j] = cost(order[edges[i] : edges[j]]) + overhead
    best = price[0].copy()
    cuts: list[list[int]] = [[0, j] for j in range(num + 1)]
    for _ in range(most - 1):
        through = best[:, None] + price
        via = np.argmin(through, axis=0)
        better = through[via, np.arange(num + 1)] < best
        cuts = [[*cuts[via[j]], j] if better[j] else cuts[j] for j in range(num + 1)]
        best = np.where(better, through[via, np.arange(num + 1)], best)
    chosen = cuts[num]
    return [np.sort(order[edges[a] : edges[b]]) for a, b in pairwise(chosen)]


_MOST_EDGES = 24
