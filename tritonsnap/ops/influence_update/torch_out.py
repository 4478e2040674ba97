"""`influence_update` and the SnAp-1 step in PyTorch with an influence that is written in place.

An operator of torch says which of its arguments it writes to, and none of those may be another
argument too: so J is no operand where it is written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tritonsnap.ops.arguments import Influence
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_gradient.numpy import gradient
from tritonsnap.ops.influence_update.numpy import update
from tritonsnap.ops.influence_update.out import (
    Operands,
    check_in_place,
    check_out,
    shares_memory,
)
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_operator import (
    Call,
    as_array,
    call_key,
    common_dtype,
    find_call,
    is_plain,
    is_transformed,
)


class OutOperator:
    """An operator without derivatives that writes an influence to tensors it is given.

    Parameters
    ----------
    name
        Its name in ``torch.ops.tritonsnap``.
    returns
        Of its schema: a gradient, or nothing.
    """

    def __init__(self, name: str, returns: Literal["Tensor", "()"]) -> None:
        self.name = name
        self.operator = torch.library.custom_op(
            f"tritonsnap::{name}",
            self._cpu,
            mutates_args=("out",),
            device_types="cpu",
            schema=f"(Tensor[] operands, Tensor(a!)[] out, str call) -> {returns}",
        )
        self.operator.register_kernel("cuda", self._device)
        self.operator.register_fake(self._fake)

    def __call__(
        self, packing: Packing, given: Operands, precision: str, out: tuple[Tensor, ...]
    ) -> Any:
        """Write the blocks of M * (D J) + I; the gradient [p] is returned where there is a delta.

        Raises
        ------
        ValueError
            That names `out`, where derivatives are taken or it may not be in that memory.
        """
        if is_transformed([*given.arrays, *out]):
            raise ValueError(
                "`out` has no derivatives and cannot be mapped over: leave it out, or work under "
                "`torch.no_grad()` and outside of torch.func"
            )
        over = all(starmap(_same_memory, zip(given.j.blocks, out, strict=True)))
        check_in_place(packing, over)
        structure = None if isinstance(given.immediate, Influence) else given.immediate.structure
        stepped, scaled = given.delta is not None, given.row_scale is not None
        key = call_key(packing, self.name, given.form, scaled, stepped, precision, structure, over)
        operands = [*given.added, given.d, *given.rows, *(() if over else given.j.blocks)]
        if torch.compiler.is_compiling() or not is_plain([*operands, *out]):
            return self.operator(operands, list(out), key)
        torch.autograd.graph.increment_version(out)  # an online learner's every step: spare it
        run = self._cpu if given.d.device.type == "cpu" else self._device  # the dispatcher
        return run(operands, list(out), key)

    def _cpu(self, operands: list[Tensor], out: list[Tensor], call: str) -> Tensor | None:
        found, dtype = find_call(call), out[0].dtype
        _check_memory(operands, out)
        wide = torch.promote_types(dtype, torch.float32)
        written = tuple(as_array(one, wide) for one in out)
        d, blocks, immediate, scale, delta = _named(
            found, [as_array(one, wide) for one in operands], written
        )
        dynamics = Dynamics(d, found.options[1], found.packing, np)
        influence = update(found.packing, dynamics, blocks, immediate, scale, written)
        if wide != dtype:
            for one, block in zip(out, influence, strict=True):
                one.copy_(torch.from_numpy(block))
            influence = tuple(as_array(one, wide) for one in out)
        if delta is None:
            return None
        blocks = gradient(found.packing, delta, influence, True)
        return torch.from_numpy(found.packing.unpack_columns(blocks)).to(dtype)

    def _device(self, operands: list[Tensor], out: list[Tensor], call: str) -> Tensor | None:
        from tritonsnap.ops.influence_update.triton import step_block, update_block

        found, (into,) = find_call(call), out
        _check_memory(operands, out)
        given = [one.to(into.dtype) for one in operands]
        d, (j,), immediate, scale, delta = _named(found, given, (into,))
        if not isinstance(immediate, (Factors, Compressed)):
            (immediate,) = immediate
        packing, (_, form, _, _, precision, *_) = found.packing, found.options
        if delta is not None:
            return step_block(packing, d, form, j, immediate, scale, delta, into)
        batch = tuple(into.shape[:-1])
        update_block(packing, d, form, j, immediate, scale, batch, precision, into)
        return None

    def _fake(self, operands: list[Tensor], out: list[Tensor], call: str) -> Tensor | None:
        found = find_call(call)
        stepped = found.options[3]
        return out[0].new_empty(found.packing.groups.mask.shape[1]) if stepped else None


_update_out = OutOperator("influence_update_out", "()")
_step_out = OutOperator("influence_step_out", "Tensor")


def write_update(
    packing: Packing, operands: Operands, precision: str, out: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Write the blocks of M * (D J) + I to `out`, and return it."""
    blocks = _checked(packing, operands, out)
    if blocks:
        _update_out(packing, operands, precision, blocks)
    return blocks


def write_step(
    packing: Packing, operands: Operands, out: tuple[Tensor, ...] | None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A SnAp-1 step, its influence in `out` or in new memory, and its gradient [p]."""
    if out is None:
        (j,) = operands.j.blocks
        batch = _batch(operands)
        blocks: tuple[Tensor, ...] = (j.new_empty((*batch, j.shape[-1])),)
    else:
        blocks = _checked(packing, operands, out)
    return blocks, _step_out(packing, operands, "ieee", blocks)


def _checked(packing: Packing, operands: Operands, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    check_out(out, operands.j, packing, _batch(operands), common_dtype(operands.arrays))
    return tuple(out)


def _batch(operands: Operands) -> tuple[int, ...]:
    """The batch axes of the result."""
    return tuple(torch.broadcast_shapes(*operands.batch_axes))  # type: ignore[no-untyped-call]


def _named(
    call: Call, operands: Sequence[Any], out: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], Any, Any, Any]:
    """D, the blocks of J, which `out` is where it is written over, I, the row scale and delta."""
    _, _, scaled, stepped, _, structure, over = call.options
    rest = iter(operands)
    immediate: Any
    if isinstance(structure, FactorStructure):
        immediate = Factors(next(rest), next(rest), structure)
    elif isinstance(structure, CompressedStructure):
        immediate = Compressed(next(rest), structure)
    else:
        immediate = tuple(next(rest) for _ in out)
    d = next(rest)
    row_scale, delta = (next(rest) if given else None for given in (scaled, stepped))
    return d, out if over else tuple(rest), immediate, row_scale, delta


def _same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers, as far as can be known without their memory."""
    if one is other:
        return True
    if torch.compiler.is_compiling() or not is_plain([one, other]):
        return False
    where = [(t.data_ptr(), t.shape, t.stride()) for t in (one, other)]
    return where[0] == where[1] and one.numel() > 0


def _check_memory(operands: list[Tensor], out: list[Tensor]) -> None:
    """Raise unless each output is one piece of memory that no other argument lies in."""
    extents = [_extent(one) for one in (*out, *operands)]
    for number, one in enumerate(out):
        if not one.is_contiguous() or one.is_conj() or one.is_neg():
            raise ValueError(f"`out[{number}]` must be contiguous, got strides {one.stride()}")
        begin, end = extents[number]
        for other, (first, last) in enumerate(extents):
            if other != number and first < end and begin < last:
                raise ValueError(shares_memory(number))


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses between which a tensor lies."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return begin, begin + (last + 1) * tensor.element_size()
