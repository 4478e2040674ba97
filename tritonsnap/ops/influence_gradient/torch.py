"""`influence_gradient` in PyTorch: an operator with a CPU kernel and all of its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.ops.arguments import check_plan, check_rows, read_influence, without_values
from tritonsnap.ops.influence_gradient import numpy as face
from tritonsnap.plan.blocks import ElementwiseBlock, WalkBlock
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_layout import StaticIndex, put, static_index, take, torch_packing
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key, find_call


def influence_gradient(
    delta: Tensor,
    j: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.influence_gradient`."""
    check_plan(plan)
    packing = torch_packing(plan, delta)
    given = read_influence("j", j, packing, "mask")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    blocks: tuple[Tensor, ...] = ()
    if packing.blocks:
        key = call_key(packing, "influence_gradient", sum_batch)
        blocks = _gradient(key, (delta, *given.blocks))
    if packed:
        return blocks
    if blocks:
        return packing.unpack_columns(blocks)
    none = without_values((delta, 1), *((j, 1) for j in given.arrays))
    return packing.unpack_columns((), like=none.sum() if sum_batch else none.sum(-1))


class _InfluenceGradient(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[1], [len(shape) for shape in call.packing.shapes("mask")]]

    def shapes(self, call: Call) -> list[Shape]:
        return call.packing.column_shapes()

    def lead(self, call: Call, operands: Any) -> Shape:
        return () if call.options[1] else super().lead(call, operands)

    def run(self, call: Call, *operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        return face.gradient(call.packing, operands[0], operands[1:], call.options[1])

    def run_on_device(self, call: Call, *operands: Tensor) -> tuple[Tensor, ...]:
        from tritonsnap.ops.influence_gradient.triton import column_gradient

        delta, j = operands
        batch = super().lead(call, operands)
        return (column_gradient(call.packing, delta, j, batch, call.options[1]),)

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        packing, delta = call.packing, operands[0]
        lead = super().lead(call, operands)
        of_delta: Any = 0
        of_j = []
        for number, (block, j) in enumerate(zip(packing.blocks, operands[1:], strict=True)):
            rows = _row_index(packing, number)
            if isinstance(block, CanonicalBlock):
                grad = take(packing, grads[number].expand(*lead, -1), _column_index(packing))
                of_delta = of_delta + put(packing, grad * j.conj(), rows)
                of_j.append(take(packing, delta, rows).conj() * grad)
                continue
            grad = grads[number].expand(*lead, *grads[number].shape[-2:])
            if isinstance(block, WalkBlock):
                grad = take(packing, grad.flatten(-2), _owner_index(packing, number))
            elif not isinstance(block, ElementwiseBlock):
                grad = grad[..., None, :]
            of_delta = of_delta + put(packing, (grad * j.conj()).sum(-1), rows)
            of_j.append(take(packing, delta, rows).conj()[..., None] * grad)
        return [of_delta, *of_j]

    def _vmap(
        self, info: Any, in_dims: Any, operands: list[Tensor], call: str
    ) -> tuple[list[Tensor], list[int]]:
        found = find_call(call)
        if not found.options[1]:
            return super()._vmap(info, in_dims, operands, call)
        each = call_key(found.packing, "influence_gradient", False)
        outputs, dims = super()._vmap(info, in_dims, operands, each)
        return [one.flatten(1, -3).sum(1) if one.ndim > 3 else one for one in outputs], dims


_gradient = _InfluenceGradient("influence_gradient")


def _row_index(packing: Packing, number: int) -> StaticIndex:
    """The row of M that each row of a block is."""

    def build() -> StaticIndex:
        block = packing.blocks[number]
        if isinstance(block, CanonicalBlock):
            return _padded(packing.groups.mask.rows, block, packing.groups.mask.shape[0])
        rows = (
            block.mask_row
            if isinstance(block, (ElementwiseBlock, WalkBlock))
            else block.mask_support
        )
        return StaticIndex(rows, packing.groups.mask.shape[0])

    return static_index(packing, ("rows", number), build)


def _column_index(packing: Packing) -> StaticIndex:
    """The column of each value in canonical order."""

    def build() -> StaticIndex:
        block, mask = packing.blocks[0], packing.groups.mask
        assert isinstance(block, CanonicalBlock)
        return _padded(mask.cols, block, mask.shape[1])

    return static_index(packing, ("columns of values",), build)


def _padded(index: NDArray[np.integer], block: CanonicalBlock, size: int) -> StaticIndex:
    """An index of all values of a block; padding points past the end."""
    padded = np.full(block.mask_shape, size, np.int64)
    padded[: len(index)] = index
    return StaticIndex(padded, size)


def _owner_index(packing: Packing, number: int) -> StaticIndex:
    """[N, C]: for each value of a walk the place of its column in ``[G * C]``."""

    def build() -> StaticIndex:
        block = packing.blocks[number]
        assert isinstance(block, WalkBlock)
        groups, width = block.columns.num_groups, block.columns.width
        owner = np.repeat(np.arange(groups), np.diff(block.mask_indptr.astype(np.int64)))
        return StaticIndex(owner[:, None] * width + np.arange(width), groups * width)

    return static_index(packing, ("owner", number), build)
