"""`influence_update` in PyTorch: an operator with a CPU kernel and all of its derivatives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    Influence,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    give_back,
    read_influence,
    with_own_axes,
)
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_update import numpy as face
from tritonsnap.ops.influence_update.compressed import read_immediate
from tritonsnap.ops.influence_update.out import Operands
from tritonsnap.ops.influence_update.torch_out import write_update
from tritonsnap.ops.masked_dsmm.torch import product, product_adjoint
from tritonsnap.plan.compressed import Compressed, CompressedStructure
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_layout import StaticIndex, put, static_index, take, torch_packing
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key, common_dtype


def influence_update(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Tensor | tuple[Tensor, ...] | Factors | Compressed,
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
    form: Form | None = None,
    out: tuple[Tensor, ...] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.influence_update`."""
    check_plan(plan)
    check_precision(precision)
    packing = torch_packing(plan, d)
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    added = read_immediate(immediate, plan, packing, given.batch)
    if out is not None:
        operands = Operands(d, form, given, added, row_scale)
        return write_update(packing, operands, precision, out)
    if not isinstance(added, Influence):
        blocks = update(packing, d, form, given.blocks, added, row_scale, precision)
        others = with_own_axes(d, form, row_scale, added)
        return give_back(given, blocks, packing, *others)
    blocks = product(packing, d, form, given.blocks, row_scale, precision)
    others = with_own_axes(d, form, row_scale)
    if given.flat and added.flat:
        return give_back(given, blocks, packing, *others) + added.values
    blocks = tuple(block + part for block, part in zip(blocks, added.blocks, strict=True))
    return give_back(given, blocks, packing, *others)


def update(
    packing: Packing,
    d: Tensor,
    form: Form,
    blocks: tuple[Tensor, ...],
    immediate: Factors | Compressed,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> tuple[Tensor, ...]:
    """The blocks of M * (D J) + I."""
    if not blocks:
        return ()
    *added, structure = immediate
    operator: _Update = _compressed_update if isinstance(immediate, Compressed) else _update
    scale = () if row_scale is None else (row_scale,)
    options = (form, row_scale is not None, precision, structure)
    key = call_key(packing, operator.name, *options)
    return operator(key, (*added, d, *scale, *blocks))


class _Update(PlanOperator):
    """An update whose first operands make up the immediate Jacobian, which is linear in each."""

    own_axes: tuple[int, ...]

    @abstractmethod
    def immediate(self, structure: Any, added: Sequence[Any]) -> Factors | Compressed:
        """The first operands and their structure."""

    @abstractmethod
    def expand(self, call: Call, added: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The blocks of the immediate Jacobian, multiplied out."""

    @abstractmethod
    def contract(
        self, call: Call, added: Sequence[Tensor], grads: list[Tensor]
    ) -> Sequence[Tensor]:
        """The gradients of `expand` in each of its operands."""

    def axes(self, call: Call) -> list[list[int]]:
        _, form, scaled, _, _ = call.options
        own = [*([axes] for axes in self.own_axes), [2 if form == "dense" else 1]]
        own += [[1]] if scaled else []
        return [*own, [len(shape) for shape in call.packing.shapes("x")]]

    def shapes(self, call: Call) -> list[Shape]:
        return call.packing.shapes("mask")

    def _parts(self, call: Call, operands: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """The immediate Jacobian's operands, D, the row scale and the blocks of J."""
        num, scaled = len(self.own_axes), call.options[2]
        scale = operands[num + 1] if scaled else None
        return operands[:num], operands[num], scale, tuple(operands[num + 1 + scaled :])

    def run(self, call: Call, *operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        _, form, _, _, structure = call.options
        added, d, scale, blocks = self._parts(call, operands)
        dynamics = Dynamics(d, form, call.packing, np)
        return face.update(call.packing, dynamics, blocks, self.immediate(structure, added), scale)

    def run_on_device(self, call: Call, *operands: Tensor) -> tuple[Tensor, ...]:
        from tritonsnap.ops.influence_update.triton import update_block

        _, form, _, precision, structure = call.options
        added, d, scale, (j,) = self._parts(call, operands)
        immediate, batch = self.immediate(structure, added), self.lead(call, operands)
        return (update_block(call.packing, d, form, j, immediate, scale, batch, precision),)

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        _, form, _, precision, _ = call.options
        added, d, scale, blocks = self._parts(call, operands)
        num = len(added)
        of_added: Sequence[Tensor | None] = [None] * num
        if any(needed[:num]):
            of_added = self.contract(call, added, grads)
        of_product = product_adjoint(
            call.packing, form, d, scale, blocks, needed[num:], tuple(grads), precision
        )
        return [*of_added, *of_product]

    def tangent(
        self, call: Call, operands: list[Tensor], tangents: list[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """The outputs are linear in D, J and the row scale only beside the immediate Jacobian."""
        _, form, scaled, precision, _ = call.options
        lead, num = self.lead(call, operands), len(self.own_axes)
        total = [
            operands[0].new_zeros((*lead, *shape), dtype=common_dtype(operands))
            for shape in self.shapes(call)
        ]
        first = num + scaled + 1
        single = [(number, number + 1) for number in range(first)]
        for begin, end in (*single, (first, len(operands))):
            if all(tangent is None for tangent in tangents[begin:end]):
                continue
            along = list(operands)
            along[begin:end] = [
                one.new_zeros(one.shape) if tangent is None else tangent
                for one, tangent in zip(operands[begin:end], tangents[begin:end], strict=True)
            ]
            added, d, scale, blocks = self._parts(call, along)
            if end <= num:
                term = self.expand(call, added)
            else:
                term = product(call.packing, d, form, blocks, scale, precision)
            total = [one + other for one, other in zip(total, term, strict=True)]
        return tuple(total)


class _FactoredUpdate(_Update):
    """With gains and sources in front."""

    own_axes = (2, 1)

    def immediate(self, structure: FactorStructure, added: Sequence[Any]) -> Factors:
        gains, sources = added
        return Factors(gains, sources, structure)

    def expand(self, call: Call, added: Sequence[Tensor]) -> tuple[Tensor, ...]:
        packing, (gains, sources) = call.packing, added
        blocks = []
        for number, shape in enumerate(packing.shapes("mask")):
            place, gain, source = _entries(packing, call.options[4], number)
            values = take(packing, gains.flatten(-2), gain) * take(packing, sources, source)
            flat = put(packing, values, place)
            blocks.append(flat.reshape(*flat.shape[:-1], *shape))
        return tuple(blocks)

    def contract(
        self, call: Call, added: Sequence[Tensor], grads: list[Tensor]
    ) -> Sequence[Tensor]:
        packing, (gains, sources) = call.packing, added
        of_gains: Any = 0
        of_sources: Any = 0
        for number, (grad, shape) in enumerate(zip(grads, packing.shapes("mask"), strict=True)):
            place, gain, source = _entries(packing, call.options[4], number)
            values = take(packing, grad.flatten(-len(shape)), place)
            own_gains = take(packing, gains.flatten(-2), gain)
            own_sources = take(packing, sources, source)
            of_gains = of_gains + put(packing, values * own_sources.conj(), gain)
            of_sources = of_sources + put(packing, values * own_gains.conj(), source)
        return of_gains.reshape(*of_gains.shape[:-1], *gains.shape[-2:]), of_sources


class _CompressedUpdate(_Update):
    """With the compressed Jacobian in front."""

    own_axes = (2,)

    def immediate(self, structure: CompressedStructure, added: Sequence[Any]) -> Compressed:
        return Compressed(added[0], structure)

    def expand(self, call: Call, added: Sequence[Tensor]) -> tuple[Tensor, ...]:
        packing, compressed = call.packing, added[0].flatten(-2)
        blocks = []
        for number, shape in enumerate(packing.shapes("mask")):
            place, source = _compressed_places(packing, call.options[4], number)
            values = take(packing, compressed, source)
            if place is not None:
                flat = put(packing, values, place)
                values = flat.reshape(*flat.shape[:-1], *shape)
            blocks.append(values)
        return tuple(blocks)

    def contract(
        self, call: Call, added: Sequence[Tensor], grads: list[Tensor]
    ) -> Sequence[Tensor]:
        packing, total = call.packing, cast("Any", 0)
        for number, (grad, shape) in enumerate(zip(grads, packing.shapes("mask"), strict=True)):
            place, source = _compressed_places(packing, call.options[4], number)
            values = grad if place is None else take(packing, grad.flatten(-len(shape)), place)
            total = total + put(packing, values, source)
        return [total.reshape(*total.shape[:-1], *added[0].shape[-2:])]


_update = _FactoredUpdate("influence_update")
_compressed_update = _CompressedUpdate("compressed_update")


def _entries(
    packing: Packing, structure: FactorStructure, number: int
) -> tuple[StaticIndex, StaticIndex, StaticIndex]:
    """Where a block has its immediate Jacobian, and the gain and source of each such value."""
    block = packing.blocks[number]
    sizes = (
        int(np.prod(block.mask_shape)),
        structure.num_targets * packing.groups.mask.shape[0],
        structure.num_sources,
    )

    def index(which: int) -> StaticIndex:
        return static_index(
            packing,
            ("immediate", which, structure, number),
            lambda: StaticIndex(structure.entries(block, packing)[which], sizes[which]),
        )

    return index(0), index(1), index(2)


def _compressed_places(
    packing: Packing, structure: CompressedStructure, number: int
) -> tuple[StaticIndex | None, StaticIndex]:
    """Where a block gets something, None for everywhere, and from which compressed values."""
    part = structure.layout(packing)[number]
    shape = packing.shapes("mask")[number]
    length = structure.num_colors * packing.groups.mask.shape[1]

    def index(name: str, places: NDArray[Any], size: int) -> StaticIndex:
        key = ("compressed", name, structure, number)
        return static_index(packing, key, lambda: StaticIndex(places, size))

    source = index("source", part.source, length)
    return None if part.whole else index("place", part.place, int(np.prod(shape))), source
