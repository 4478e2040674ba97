"""Packing, unpacking, and gathers along static indices, as torch operators.

Each is linear, and the adjoint of another one here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.flat_values import Side
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key


class StaticIndex:
    """Places along an axis of a given size; one past its end stands for nothing.

    Attributes
    ----------
    places : int64, any shape
    size
        The length of the axis.
    """

    def __init__(self, places: NDArray[np.integer], size: int) -> None:
        self.places = places.astype(np.int64)
        self.size = size
        content = hashlib.blake2b(self.places.tobytes(), digest_size=16).hexdigest()
        self._copies: dict[torch.device, Tensor] = {}
        self.digest = f"{content}/{self.places.shape}/{size}"

    def on(self, device: torch.device) -> Tensor:
        """The places on a device, moved there once."""
        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self.places).to(device)
        return self._copies[device]


def static_index(
    packing: Packing, name: tuple[Any, ...], build: Callable[[], StaticIndex]
) -> StaticIndex:
    """An index that is built once for a packing."""
    known = packing.calls
    if name not in known:
        known[name] = build()
    index: StaticIndex = known[name]
    return index


class _Pack(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[1]]

    def shapes(self, call: Call) -> list[Shape]:
        return call.packing.shapes(call.options[1])

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        packed = call.packing.pack(operands[0], call.options[1])
        shared = [np.may_share_memory(block, operands[0]) for block in packed]
        return [block.copy() if own else block for block, own in zip(packed, shared, strict=True)]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        return [unpack(call.packing, tuple(grads), call.options[1])]


class _Unpack(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[len(shape) for shape in call.packing.shapes(call.options[1])]]

    def shapes(self, call: Call) -> list[Shape]:
        return [(call.packing.pattern(call.options[1]).nnz,)]

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        return [call.packing.unpack(operands, call.options[1])]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        return list(pack(call.packing, grads[0], call.options[1]))


class _UnpackColumns(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[2] * len(call.packing.blocks)]

    def shapes(self, call: Call) -> list[Shape]:
        return [(call.packing.groups.mask.shape[1],)]

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        return [call.packing.unpack_columns(operands)]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        return list(pack_columns(call.packing, grads[0]))


class _Take(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[1]]

    def shapes(self, call: Call) -> list[Shape]:
        return [call.options[1].places.shape]

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        values = operands[0]
        bordered = np.concatenate(
            [values, np.zeros_like(values, shape=(*values.shape[:-1], 1))], -1
        )
        return [bordered[..., call.options[1].places]]

    def run_on_device(self, call: Call, *operands: Tensor) -> list[Tensor]:
        values = operands[0]
        bordered = torch.cat([values, values.new_zeros(*values.shape[:-1], 1)], -1)
        return [bordered[..., call.options[1].on(values.device)]]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        return [put(call.packing, grads[0], call.options[1])]


class _Put(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[call.options[1].places.ndim]]

    def shapes(self, call: Call) -> list[Shape]:
        return [(call.options[1].size,)]

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        index, values = call.options[1], operands[0]
        lead = values.shape[: values.ndim - index.places.ndim]
        total = np.zeros((*lead, index.size + 1), values.dtype)
        for row in np.ndindex(*lead):
            np.add.at(total[row], index.places.ravel(), values[row].ravel())
        return [total[..., :-1]]

    def run_on_device(self, call: Call, *operands: Tensor) -> list[Tensor]:
        index, values = call.options[1], operands[0]
        lead = values.shape[: values.ndim - index.places.ndim]
        flat = values.reshape(*lead, index.places.size)
        # a sorted sum for each place: no atomics, so the same bits every time
        order = torch.argsort(index.on(values.device).ravel(), stable=True)
        counts = torch.bincount(index.on(values.device).ravel(), minlength=index.size + 1)
        lengths = counts.expand(*lead, -1).contiguous()
        total = torch.segment_reduce(
            flat[..., order].contiguous(), "sum", lengths=lengths, axis=len(lead), initial=0
        )
        return [total[..., :-1].contiguous()]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        return [take(call.packing, grads[0], call.options[1])]


_pack, _unpack = _Pack("pack"), _Unpack("unpack")
_unpack_columns, _take, _put = _UnpackColumns("unpack_columns"), _Take("take"), _Put("put")


def torch_packing(plan: DsmmPlan, like: Tensor) -> Packing:
    """The packing that tensors on the device of `like` have, as `torch.compile` can follow it."""
    target = None if like.device.type == "cpu" else "triton"
    _build_packing(plan, target)
    return plan.packing(target)


@torch.compiler.assume_constant_result
def _build_packing(plan: DsmmPlan, target: str | None) -> int:
    """Build it as plain Python: `torch.compile` would trace the NumPy code of a first use.

    So it would that of the sizes by which operators check their operands.
    """
    return len(plan.packing(target).digest) + plan.dynamics.nnz + plan.x.nnz + plan.mask.nnz


def pack(packing: Packing, values: Tensor, side: Side) -> tuple[Tensor, ...]:
    """Blocks of flat values."""
    if not packing.blocks:
        return ()
    return _pack(call_key(packing, "pack", side), [values])


def unpack(packing: Packing, blocks: tuple[Tensor, ...], side: Side) -> Tensor:
    """Flat values of blocks."""
    return _unpack(call_key(packing, "unpack", side), blocks)[0]


def unpack_columns(packing: Packing, blocks: tuple[Tensor, ...]) -> Tensor:
    """``[..., columns]`` of one value per column of each block."""
    return _unpack_columns(call_key(packing, "unpack_columns"), blocks)[0]


def pack_columns(packing: Packing, values: Tensor) -> tuple[Tensor, ...]:
    """``[..., G, C]`` of each block of ``[..., columns]``, zero at padding."""

    def index(number: int) -> StaticIndex:
        columns = packing.blocks[number].columns
        return static_index(
            packing,
            ("columns", number),
            lambda: StaticIndex(columns.index(np), columns.num_columns),
        )

    return tuple(take(packing, values, index(number)) for number in range(len(packing.blocks)))


def take(packing: Packing, values: Tensor, index: StaticIndex) -> Tensor:
    """``values[..., places]``, zero where a place is past the end."""
    return _take(call_key(packing, "take", index), [values])[0]


def put(packing: Packing, values: Tensor, index: StaticIndex) -> Tensor:
    """The sums of the values that each place of the axis gets, added one after the other."""
    return _put(call_key(packing, "put", index), [values])[0]
