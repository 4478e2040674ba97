"""Torch operators over packings: kernels, fakes, vmap and derivatives, given once for all ops.

An operator takes tensors with leading batch axes and the key of a `Call`, since a plan cannot be
an argument of a torch operator. Every operator is linear in each of its groups of operands, which
gives its forward mode; its reverse mode is made of other operators, so all are closed under
differentiation.

`torch.library.custom_op` has neither forward mode nor `torch.func`, and `torch.compile` does not
trace an `autograd.Function` with a `jvp`: so the operator is wrapped in a function, and compiled
code calls it directly.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from tritonsnap.plan.packing import Packing

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """All that is static about one use of an operator.

    Attributes
    ----------
    packing
        The packing it works on.
    options
        What else the operator needs to know.
    """

    packing: Packing
    options: tuple[Any, ...]
    key: str


_calls: WeakValueDictionary[str, Call] = WeakValueDictionary()


@torch.compiler.assume_constant_result
def call_key(packing: Packing, *options: Any) -> str:
    """The key of a call, which lives as long as `packing` or one that equals it.

    `options` are hashable; objects among them have a `digest`.
    """
    call: Call | None = packing.calls.get(options)
    if call is None:
        names = [str(getattr(option, "digest", option)) for option in options]
        key = ":".join([packing.digest, *names])
        call = _calls.setdefault(key, Call(packing, options, key))
        packing.calls[options] = call
    return call.key


def find_call(key: str) -> Call:
    """The call that `call_key` named.

    Raises
    ------
    RuntimeError
        If its plan no longer exists, as in a compiled function that outlives it.
    """
    call = _calls.get(key)
    if call is None:
        raise RuntimeError("the plan of this operator no longer exists: keep a reference to it")
    return call


class PlanOperator(ABC):
    """An operator whose operands are tensors with leading batch axes that broadcast.

    Parameters
    ----------
    name
        Its name in ``torch.ops.tritonsnap``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.operator = torch.library.custom_op(
            f"tritonsnap::{name}",
            self._cpu,
            mutates_args=(),
            device_types="cpu",
            schema="(Tensor[] operands, str call) -> Tensor[]",
        )
        self.operator.register_kernel("cuda", self._device)
        self.operator.register_fake(self._fake)
        self.operator.register_vmap(self._vmap)
        self.operator.register_autograd(self._backward, setup_context=self._save)
        self._function = _differentiable(self)

    # ---- what an operator says of itself -------------------------------------------------------

    @abstractmethod
    def axes(self, call: Call) -> list[list[int]]:
        """How many axes of each operand are not batch, by groups in which it is linear."""

    @abstractmethod
    def shapes(self, call: Call) -> list[Shape]:
        """The shape of each output without batch axes."""

    @abstractmethod
    def run(self, call: Call, *operands: NDArray[Any]) -> Sequence[NDArray[Any]]:
        """Compute the outputs in NumPy, in memory of their own."""

    def run_on_device(self, call: Call, *operands: Tensor) -> Sequence[Tensor]:
        """Compute the outputs on the operands' device; by way of the CPU if not overridden."""
        found = self.run(call, *(one.cpu().numpy() for one in operands))
        return [torch.from_numpy(one).to(operands[0].device) for one in found]

    @abstractmethod
    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        """The gradient of each operand that is needed, with any batch axes, differentiably."""

    def tangent(
        self, call: Call, operands: list[Tensor], tangents: list[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """The derivative of the outputs along `tangents`: one term per group of operands."""
        total: tuple[Tensor, ...] | None = None
        begin = 0
        for group in self.axes(call):
            members = slice(begin, begin + len(group))
            begin += len(group)
            if all(tangent is None for tangent in tangents[members]):
                continue
            along = list(operands)
            along[members] = [
                torch.zeros_like(one) if tangent is None else tangent
                for one, tangent in zip(operands[members], tangents[members], strict=True)
            ]
            term = self(call.key, along)
            if total is None:
                total = term
            else:
                total = tuple(one + other for one, other in zip(total, term, strict=True))
        assert total is not None  # torch asks only where there is a tangent
        return total

    def lead(self, call: Call, operands: Sequence[Tensor]) -> Shape:
        """The batch axes of the outputs."""
        axes = itertools.chain.from_iterable(self.axes(call))
        leads = [one.shape[: one.ndim - own] for one, own in zip(operands, axes, strict=True)]
        return tuple(torch.broadcast_shapes(*leads))

    # ---- what torch asks of it -----------------------------------------------------------------

    def __call__(self, key: str, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the operator, differentiably; `key` comes from `call_key`."""
        if torch.compiler.is_compiling():
            return tuple(self.operator(list(operands), key))
        if is_plain(operands):  # an online learner's every step: spare it the dispatcher
            on_cpu = operands[0].device.type == "cpu"
            return tuple((self._cpu if on_cpu else self.operator)(list(operands), key))
        outputs: tuple[Tensor, ...] = self._function.apply(key, *operands)
        return outputs

    def _cpu(self, operands: list[Tensor], call: str) -> list[Tensor]:
        dtype = common_dtype(operands)
        wide = torch.promote_types(dtype, torch.float32)
        arrays = [as_array(one, wide) for one in operands]
        found = self.run(find_call(call), *arrays)
        outputs = [torch.from_numpy(np.ascontiguousarray(array)) for array in found]
        return outputs if wide == dtype else [output.to(dtype) for output in outputs]

    def _device(self, operands: list[Tensor], call: str) -> list[Tensor]:
        dtype = common_dtype(operands)
        return list(self.run_on_device(find_call(call), *(one.to(dtype) for one in operands)))

    def _fake(self, operands: list[Tensor], call: str) -> list[Tensor]:
        found, dtype = find_call(call), common_dtype(operands)
        lead = self.lead(found, operands)
        like = operands[0]
        return [like.new_empty((*lead, *shape), dtype=dtype) for shape in self.shapes(found)]

    def _vmap(
        self, info: Any, in_dims: Any, operands: list[Tensor], call: str
    ) -> tuple[list[Tensor], list[int]]:
        moved = self._batch_first(find_call(call), in_dims[0], operands)
        outputs = self.operator(moved, call)
        return outputs, [0] * len(outputs)

    def _batch_first(
        self, call: Call, dims: Sequence[int | None], operands: list[Tensor]
    ) -> list[Tensor]:
        """The operands with the mapped axis before all batch axes of all operands."""
        axes = list(itertools.chain.from_iterable(self.axes(call)))
        lead = max(
            one.ndim - own - (dim is not None)
            for one, own, dim in zip(operands, axes, dims, strict=True)
        )
        moved = []
        for one, own, dim in zip(operands, axes, dims, strict=True):
            if dim is not None:
                one = one.movedim(dim, 0)
                missing = lead - (one.ndim - 1 - own)
                one = one.reshape(one.shape[0], *(1,) * missing, *one.shape[1:])
            moved.append(one)
        return moved

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        operands, key = inputs
        ctx.call = find_call(key)
        ctx.save_for_backward(*operands)

    def _backward(self, ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor | None], None]:
        operands, needed = list(ctx.saved_tensors), list(ctx.needs_input_grad[0])
        return self.gradients(ctx.call, operands, needed, list(grads)), None

    def gradients(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        """`adjoint` summed over the batch axes that an operand was broadcast along."""
        found = self.adjoint(call, operands, needed, grads)
        return [
            None if grad is None or not need else grad.sum_to_size(one.shape).to(one.dtype)
            for grad, one, need in zip(found, operands, needed, strict=True)
        ]


def _differentiable(operator: PlanOperator) -> Any:
    """An autograd function around an operator: reverse and forward mode, and `torch.func`."""

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(key: str, *operands: Tensor) -> tuple[Tensor, ...]:
            return tuple(operator.operator(list(operands), key))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            key, *operands = inputs
            ctx.call = find_call(key)  # keeps the plan alive until the backward pass
            ctx.save_for_backward(*operands)
            ctx.save_for_forward(*operands)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            needed = list(ctx.needs_input_grad[1:])
            operands = list(ctx.saved_tensors)
            return None, *operator.gradients(ctx.call, operands, needed, list(grads))

        @staticmethod
        def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
            if eager_transforms.JVP_NESTING > 1:  # torch would take the second derivative as zero
                raise NotImplementedError(
                    "torch has no forward over forward mode for custom functions: "
                    "use torch.func.jacrev for one of the two"
                )
            return operator.tangent(ctx.call, list(ctx.saved_tensors), list(tangents))

    return Differentiable


def is_plain(operands: Sequence[Tensor]) -> bool:
    """Whether nothing watches or transforms what is done with the operands."""
    if torch._C._len_torch_dispatch_stack() or is_transformed(operands):
        return False
    return all(type(one) is Tensor for one in operands)


def is_transformed(operands: Sequence[Tensor]) -> bool:
    """Whether derivatives are taken of what is done with the operands, or it is mapped over."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(one.requires_grad for one in operands)


def common_dtype(operands: Sequence[Tensor]) -> torch.dtype:
    """The dtype that all operands are promoted to."""
    dtype = operands[0].dtype
    for operand in operands[1:]:
        if operand.dtype != dtype:
            dtype = torch.promote_types(dtype, operand.dtype)
    return dtype


def as_array(tensor: Tensor, wide: torch.dtype) -> NDArray[Any]:
    """A NumPy array over a tensor's memory; 16-bit floats are widened to compute in."""
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.to(wide)
    if tensor.is_complex() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return np.asarray(tensor.numpy())
