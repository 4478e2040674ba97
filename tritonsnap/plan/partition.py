"""`Partition`: which device holds which columns of an influence."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tritonsnap.checks import check_instance, check_integer
from tritonsnap.plan.blocks import Regime
from tritonsnap.plan.cost import price_groups
from tritonsnap.plan.packing import Packing, parts_of
from tritonsnap.sparsity.groups import ColumnGroups

_FINENESS = (1, 2, 4, 8)
"""Pieces of at most this part of a device's share are tried, and the best kept."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The columns of an influence spread over devices, groups whole or split by columns.

    Columns never need each other, so devices that hold different ones exchange nothing during a
    step. Groups go to devices longest first, each to the device that has the least to do (Graham,
    "Bounds on Multiprocessing Timing Anomalies", 1969), by the predicted time of the plan's cost
    model; groups that are too large for one device are split into runs of columns.

    Attributes
    ----------
    groups : ColumnGroups
        The plan's groups, the large ones in pieces.
    block : int64 [groups]
        The block of the plan's packing from which each comes.
    device : int64 [groups]
        The device that holds each.
    seconds : float64 [devices]
        What one product of each device's columns is predicted to take, batch 1, float32.
    flops : int64 [devices]
        Floating-point operations of the same product.
    alone : float
        What one device is predicted to take for all of them.

    Examples
    --------
    >>> from tritonsnap.plan import DsmmPlan
    >>> from tritonsnap.sparsity import SparsityPattern
    >>> full = SparsityPattern.full((4, 20))
    >>> partition = Partition.build(DsmmPlan(full, full).packing(), 3)
    >>> [len(partition.columns(device)) for device in range(3)]
    [7, 7, 6]
    """

    groups: ColumnGroups
    block: NDArray[np.int64]
    device: NDArray[np.int64]
    seconds: NDArray[np.float64]
    flops: NDArray[np.int64]
    alone: float

    @classmethod
    def build(cls, packing: Packing, num_devices: int, *, even: bool = False) -> Partition:
        """Spread the columns of a plan, as a target packs it, over devices.

        Parameters
        ----------
        packing
            The plan's packing on the target that the devices are.
        num_devices
            How many there are.
        even
            Whether all devices run one program, each block padded to the largest share of it: then
            every block is spread evenly of itself.

        Raises
        ------
        TypeError
            If `packing` is none, or `num_devices` is no integer.
        ValueError
            If `num_devices` is below 1, or there are more devices than columns.
        """
        check_instance("packing", packing, Packing)
        check_integer("num_devices", num_devices, 1)
        num_columns = int(packing.groups.num_columns.sum())
        if num_devices > max(num_columns, 1):
            raise ValueError(
                f"`num_devices` must be at most {max(num_columns, 1)}, the number of columns of "
                f"the influence that can be told apart, got {num_devices}"
            )
        found = [_Spread(packing, num_devices, even, fineness).partition for fineness in _FINENESS]
        return min(found, key=lambda partition: partition.seconds.max(initial=0))

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.seconds)

    def members(self, device: int) -> NDArray[np.int64]:
        """int64: the numbers of the groups that a device holds, ascending."""
        return np.flatnonzero(self.device == device)

    def columns(self, device: int) -> NDArray[np.int64]:
        """int64: the columns that a device holds, ascending."""
        return np.sort(self.groups.columns_of(self.members(device)))

    @property
    def values(self) -> NDArray[np.int64]:
        """int64 [devices]: the values of the influence that each device holds, per row of batch."""
        sizes = self.groups.mask_sizes * self.groups.num_columns
        return np.bincount(self.device, sizes, self.num_devices).astype(np.int64)

    @property
    def balance(self) -> float:
        """The mean of the devices' predicted times over the longest: 1 where none waits."""
        longest = self.seconds.max(initial=0)
        return float(self.seconds.mean() / longest) if longest else 1.0

    @property
    def efficiency(self) -> float:
        """The time of one device over the longest time times the devices: 1 for perfect scaling.

        Below the balance where pieces of a group read D several times, or padding is computed.
        """
        longest = self.seconds.max(initial=0)
        return self.alone / (self.num_devices * float(longest)) if longest else 1.0

    def __repr__(self) -> str:
        return (
            f"Partition({self.num_devices} devices, {len(self.groups)} groups, "
            f"{self.values.min()} to {self.values.max()} values each, "
            f"balance {self.balance:.3f}, efficiency {self.efficiency:.3f})"
        )


class _Spread:
    """One way to spread groups, with pieces of at most 1 / `fineness` of a device's share."""

    def __init__(self, packing: Packing, num_devices: int, even: bool, fineness: int) -> None:
        self.num_devices = num_devices
        self.even = even
        parts = [
            (number, regime, members)
            for number, block in enumerate(packing.blocks)
            for regime, members in parts_of(block)
        ]
        block = np.zeros(len(packing.groups), np.int64)
        regime_of = np.empty(len(packing.groups), object)
        cost = np.zeros(len(packing.groups))
        for number, regime, members in parts:
            block[members], regime_of[members] = number, regime
            cost[members] = packing.costs.by_regime[regime][members]
        if even:
            for _, regime, members in parts:
                if regime != Regime.WALK:  # each takes the time of the block's largest
                    cost[members] = cost[members].max(initial=0)
        self.alone = float(cost.sum()) * 1e-9
        whole = np.bincount(block, cost)[block] if even else np.full(len(block), cost.sum())
        pieces = np.ceil(cost * num_devices * fineness / whole - 1e-9).astype(np.int64)
        pieces = np.clip(pieces, 1, packing.groups.num_columns)
        owner = np.repeat(np.arange(len(pieces)), pieces)
        self.groups = packing.groups.split(pieces)
        self.block, self.regime = block[owner], regime_of[owner]
        self.cost = np.zeros(len(owner))
        prices = price_groups(self.groups, packing.costs.nonzeros[owner], packing.target)
        self.flops = np.zeros(len(owner), np.int64)
        columns = self.groups.num_columns
        operations = {
            Regime.ELEMENTWISE: columns,
            Regime.WALK: 2 * packing.costs.nonzeros[owner] * columns,
            Regime.DENSE: 2 * self.groups.mask_sizes * self.groups.x_sizes * columns,
        }
        for regime in Regime:
            chosen = self.regime == regime
            self.cost[chosen] = prices[regime][chosen]
            self.flops[chosen] = operations[regime][chosen]

    @property
    def partition(self) -> Partition:
        device = np.zeros(len(self.cost), np.int64)
        nanoseconds = np.zeros(self.num_devices)
        for members in self._dealt_together():
            cost = self.cost[members]
            padded = self.even and self.regime[members[0]] != Regime.WALK
            if padded:
                cost = np.full(len(members), cost.max())
            device[members], loads = _longest_first(cost, self.num_devices)
            nanoseconds += loads.max() if self.even else loads
        flops = np.zeros(self.num_devices, np.int64)
        np.add.at(flops, device, self.flops)
        return Partition(self.groups, self.block, device, nanoseconds * 1e-9, flops, self.alone)

    def _dealt_together(self) -> list[NDArray[np.int64]]:
        """The groups of each block where blocks are even, else all groups."""
        if not len(self.cost):
            return []
        if not self.even:
            return [np.arange(len(self.cost))]
        return [np.flatnonzero(self.block == number) for number in np.unique(self.block)]


def _longest_first(
    cost: NDArray[np.float64], num_devices: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The device of each item and the load of each device."""
    heap = [(0.0, device) for device in range(num_devices)]
    device = np.zeros(len(cost), np.int64)
    loads = np.zeros(num_devices)
    for item in np.argsort(-cost, kind="stable"):
        load, chosen = heap[0]
        device[item] = chosen
        loads[chosen] = load + cost[item]
        heapq.heapreplace(heap, (float(loads[chosen]), chosen))
    return device, loads
