"""Plans and operands on a torch device, as the kernels on canonical values read them."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tritonsnap.ops.arguments import Form
from tritonsnap.plan.compressed import CompressedStructure
from tritonsnap.plan.factors import CanonicalFactors, FactorStructure
from tritonsnap.plan.outer_pairs import OuterPairs
from tritonsnap.plan.packing import Packing

_packings: WeakKeyDictionary[Packing, dict[torch.device, Packing]] = WeakKeyDictionary()
_factors: WeakKeyDictionary[FactorStructure, dict[torch.device, CanonicalFactors]] = (
    WeakKeyDictionary()
)
_colors: WeakKeyDictionary[CompressedStructure, dict[torch.device, Tensor]] = WeakKeyDictionary()
_entries: WeakKeyDictionary[Packing, dict[torch.device, tuple[Tensor, Tensor]]] = (
    WeakKeyDictionary()
)
_pairs: WeakKeyDictionary[Packing, dict[torch.device, OuterPairs]] = WeakKeyDictionary()


def device_packing(host: Packing, device: torch.device) -> Packing:
    """A packing for Triton, its arrays moved to `device` once."""
    copies = _packings.setdefault(host, {})
    if device not in copies:
        moved: dict[int, Tensor] = {}  # arrays that are one stay one
        arrays = host.arrays()
        for array in arrays:
            moved.setdefault(id(array), torch.from_numpy(array.copy()).to(device))
        copies[device] = host.with_arrays([moved[id(array)] for array in arrays])
    return copies[device]


def device_factors(structure: FactorStructure, device: torch.device) -> CanonicalFactors:
    """The factors' arrays, moved to `device` once."""
    copies = _factors.setdefault(structure, {})
    if device not in copies:
        host = structure.canonical()
        copies[device] = CanonicalFactors(
            torch.from_numpy(host.column_gain.copy()).to(device),
            torch.from_numpy(host.column_source.copy()).to(device),
        )
    return copies[device]


def device_colors(structure: CompressedStructure, device: torch.device) -> Tensor:
    """The color of each value in canonical order, moved to `device` once."""
    copies = _colors.setdefault(structure, {})
    if device not in copies:
        copies[device] = torch.from_numpy(structure.canonical().color.copy()).to(device)
    return copies[device]


def device_pairs(host: Packing, device: torch.device) -> OuterPairs:
    """The pairs of a packing for Triton, listed and moved to `device` once."""
    copies = _pairs.setdefault(host, {})
    if device not in copies:
        pairs = host.pairs
        copies[device] = pairs.with_arrays(
            torch.from_numpy(array).to(device) for array in pairs.arrays()
        )
    return copies[device]


def device_entries(packing: Packing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of each entry of D, moved to `device` once: a CUDA graph may hold the call."""
    copies = _entries.setdefault(packing, {})
    if device not in copies:
        rows, cols = (
            torch.from_numpy(part.astype(np.int64)).to(device)
            for part in (packing.dynamics.rows, packing.dynamics.cols)
        )
        copies[device] = rows, cols
    return copies[device]


def batch_rows(array: Tensor, own_axes: int, batch: tuple[int, ...]) -> Tensor:
    """A contiguous ``[batch, ...]``; ``[1, ...]`` where all batch rows share it."""
    own = array.shape[array.ndim - own_axes :]
    lead = array.shape[: array.ndim - own_axes]
    if all(size == 1 for size in lead):
        return array.reshape(1, *own).contiguous()
    return array.expand(*batch, *own).reshape(math.prod(batch), *own).contiguous()


def full_batch(values: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A contiguous ``[batch, values]``, repeated along batch axes that it lacks."""
    size = values.shape[-1]
    return values.expand(*batch, size).reshape(math.prod(batch), size).contiguous()


class DeviceDynamics:
    """One D, given dense or as values, as what the kernels read."""

    def __init__(self, d: Tensor, form: Form, packing: Packing, batch: tuple[int, ...]) -> None:
        self._given = batch_rows(d, 2 if form == "dense" else 1, batch)
        self._form = form
        self._packing = packing

    @property
    def values(self) -> Tensor:
        """The values, ``[batch or 1, nnz(dynamics)]``."""
        if self._form == "values":
            return self._given
        rows, cols = device_entries(self._packing, self._given.device)
        return self._given[:, rows, cols].contiguous()

    @property
    def dense(self) -> Tensor:
        """The matrix, ``[batch or 1, m, k]``."""
        if self._form == "dense" and not self._packing.restricted:
            return self._given
        values = self.values
        rows, cols = device_entries(self._packing, self._given.device)
        matrix = values.new_zeros(len(values), *self._packing.dynamics.shape)
        matrix[:, rows, cols] = values
        return matrix
