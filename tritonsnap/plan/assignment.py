"""Which groups are computed together: regimes chosen by cost, blocks of similar size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tritonsnap.plan.blocks import Block, DenseBlock, ElementwiseBlock, Regime, WalkBlock
from tritonsnap.plan.cost import GroupCosts, Target, partition
from tritonsnap.sparsity.groups import ColumnGroups
from tritonsnap.sparsity.pattern import SparsityPattern

Assignment = tuple[tuple[Regime, NDArray[np.int64]], ...]


def choose(
    groups: ColumnGroups,
    dynamics_shape: tuple[int, int],
    costs: GroupCosts,
    target: Target,
    restricted: bool,
    regime: Regime | None = None,
) -> tuple[float, Assignment]:
    """The cheapest assignment of groups to regimes and blocks, and its nanoseconds at batch 1.

    `regime` forces all groups that are not elementwise into one regime; `restricted` says that a
    dense D holds entries that count as zero.
    """
    if target.canonical:  # nothing is padded to a common size, so each group has its best
        chosen = force(costs, regime)
        if regime is None and restricted:  # dense products need a D that has to be made first
            walk = force(costs, Regime.WALK)
            making = target.element * dynamics_shape[0] * dynamics_shape[1]
            saving = total_cost(costs, walk) - total_cost(costs, chosen)
            chosen = chosen if saving > making else walk
        assignment = tuple((kind, np.flatnonzero(chosen == kind)) for kind in Regime)
        return total_cost(costs, chosen) + target.block, assignment
    options = (regime,) if regime is not None else (None, Regime.WALK, Regime.DENSE)
    plans = [assign(groups, costs, target, option) for option in options]
    return min(plans, key=lambda plan: plan[0])


def count_flops(groups: ColumnGroups, costs: GroupCosts, assignment: Assignment) -> int:
    """Floating-point operations of one product, batch 1."""
    columns, written, read = groups.num_columns, groups.mask_sizes, groups.x_sizes
    total = 0
    for regime, g in assignment:
        if regime == Regime.ELEMENTWISE:
            total += int(columns[g].sum())
        elif regime == Regime.WALK:
            total += 2 * int((costs.nonzeros[g] * columns[g]).sum())
        else:
            total += 2 * int((written[g] * read[g] * columns[g]).sum())
    return total


def assign(
    groups: ColumnGroups, costs: GroupCosts, target: Target, forced: Regime | None
) -> tuple[float, Assignment]:
    """Split groups into blocks; `forced` is the regime of all that are not elementwise."""
    regimes = force(costs, forced)
    columns, written, read = groups.num_columns, groups.mask_sizes, groups.x_sizes
    assignment: list[tuple[Regime, NDArray[np.int64]]] = []
    total = 0.0

    def split(members: NDArray[np.int64], regime: Regime) -> None:
        nonlocal total

        def cost(items: NDArray[np.int64]) -> float:
            return block_cost(groups, costs, target, regime, members[items])

        keys = (
            (written * read * 4096 + columns)[members]
            if regime == Regime.DENSE
            else columns[members]
        )
        for items in partition(keys, cost, target.most_blocks, target.block):
            total += cost(items) + target.block
            assignment.append((regime, members[items]))

    single = regimes == Regime.ELEMENTWISE
    for segment in np.unique(groups.segment[single]):
        split(np.flatnonzero(single & (groups.segment == segment)), Regime.ELEMENTWISE)
    for regime in (Regime.DENSE, Regime.WALK):
        members = np.flatnonzero(regimes == regime)
        if len(members):
            split(members, regime)
    return total, tuple(assignment)


def block_cost(
    groups: ColumnGroups,
    costs: GroupCosts,
    target: Target,
    regime: Regime,
    members: NDArray[np.int64],
) -> float:
    """Predicted nanoseconds of a block at batch 1, its groups padded to the largest of them."""
    columns = groups.num_columns[members]
    most = columns.max()
    if regime == Regime.DENSE:
        rows, inner = groups.mask_sizes[members].max(), groups.x_sizes[members].max()
        entry = target.gather + target.multiply_add * most
        return float(
            len(members) * (target.product + rows * (inner * entry + target.element * most))
        )
    return float((costs.by_regime[regime][members] * (most / np.maximum(columns, 1))).sum())


def force(costs: GroupCosts, regime: Regime | None) -> NDArray[np.object_]:
    """The cheapest regimes, but `regime` for all groups that are not elementwise."""
    regimes = costs.regimes.copy()
    if regime is not None:
        possible = np.isfinite(costs.by_regime[regime])
        regimes[(regimes != Regime.ELEMENTWISE) & possible] = regime
    return regimes


def total_cost(costs: GroupCosts, regimes: NDArray[np.object_]) -> float:
    """Predicted nanoseconds of all groups in the given regimes."""
    return float(sum(costs.by_regime[kind][regimes == kind].sum() for kind in Regime))


def build_block(
    regime: Regime,
    groups: ColumnGroups,
    members: NDArray[np.int64],
    dynamics: SparsityPattern,
    target: Target,
) -> Block:
    """Lay out the groups `members` in one regime."""
    if regime == Regime.ELEMENTWISE:
        return ElementwiseBlock.build(groups, members, dynamics)
    if regime == Regime.WALK:
        return WalkBlock.build(groups, members, dynamics, target.by_row)
    return DenseBlock.build(groups, members)
