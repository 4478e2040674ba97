"""`SnAp` and `RTRL` of a `Stack`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from tritonsnap.arrays import Library, namespace, namespace_of
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.carry import Carry, in_dtype_of, stored_as
from tritonsnap.online.cell import Cell, Params
from tritonsnap.online.chunk_choice import Ways
from tritonsnap.online.learner import check_chunk, form_of
from tritonsnap.online.snap import RTRL, SnAp, SnApPrepared
from tritonsnap.online.stack.chunks import StackChunking, StackChunkings, run_chunks
from tritonsnap.online.stack.crossing import (
    Crossing,
    crossings,
    edge_jacobian,
    network_influence,
    parameter_columns,
)
from tritonsnap.online.stack.exact_chunks import run_chunks as run_exact_chunks
from tritonsnap.online.stack.exact_structure import ExactChunking, ExactChunkings, is_saturated
from tritonsnap.online.stack.feed_forward import FeedForward
from tritonsnap.online.stack.learner import StackLearner
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll
from tritonsnap.ops import influence_gradient, influence_update
from tritonsnap.plan.dsmm_plan import DsmmPlan


class StackPrepared(NamedTuple):
    """What the steps read of the parameters, for each layer.

    Attributes
    ----------
    layers
        Of a cell what `SnAp.prepare` returns, else the layer's parameters.
    crossing
        Of a cell that is crossed the recurrent weights, dense.
    down
        What `Stack.descend` reads.
    """

    layers: tuple[Any, ...]
    crossing: tuple[Any, ...]
    down: tuple[Any, ...]


class StackInfluence(NamedTuple):
    """The influences of a stack, and what the last step left for a gradient.

    Attributes
    ----------
    own
        For each cell the packed influence of its own parameters.
    crossing
        For each cell that is crossed the packed influence of all parameters below it.
    trace, down
        What `Stack.descend` reads of the last step, and of the parameters.
    """

    own: tuple[Any, ...]
    crossing: tuple[Any, ...]
    trace: tuple[Any, ...]
    down: tuple[Any, ...]


class StackGradient(NamedTuple):
    """Gradients on their way to the parameters.

    Attributes
    ----------
    own
        For each layer that of its own parameters: of a cell packed, else by name.
    crossing
        For each cell that is crossed that of all parameters below it, packed.
    """

    own: tuple[Any, ...]
    crossing: tuple[Any, ...]


@form_of(SnAp)
class StackSnAp(StackLearner, SnAp):
    """`SnAp` of a `Stack`: layer by layer, or across layers where the stack is exact.

    Attributes
    ----------
    learners
        A `SnAp` of each cell; None for layers without memory.
    crossings
        How the influence of the parameters below reaches each layer; None where it does not.
    """

    prepared: ClassVar[type] = StackPrepared

    def _learner_of(self, cell: Cell) -> SnAp:
        return SnAp(cell, self.order, influence_dtype=self.influence_dtype)

    @cached_property
    def crossings(self) -> tuple[Crossing | None, ...]:
        """How the influence of the parameters below reaches each layer; None where it does not."""
        if not self.stack.exact:
            return (None,) * len(self.stack.layers)
        columns = parameter_columns(self.stack)
        return crossings(self.stack, columns, network_influence(self.stack, self.order, columns))

    @property
    def crossing_plans(self) -> tuple[DsmmPlan | None, ...]:
        """For each cell that is crossed the plan of that influence."""
        return tuple(one.plan if one is not None else None for one in self.crossings)

    @property
    def plan(self) -> DsmmPlan:
        """A stack has a plan a cell, and one a crossing.

        Raises
        ------
        AttributeError
            Always.
        """
        raise AttributeError("a Stack has no single plan: see `learners` and `crossings`")

    def init(self, batch: int, like: Library = "numpy", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows."""
        state = self._zero_state(batch, like, dtype)
        xp = namespace(like)

        influence = StackInfluence(
            tuple(
                None if learner is None else learner.init(batch, like, dtype).influence
                for learner in self.learners
            ),
            tuple(plan and self._zero_influence(plan, state) for plan in self.crossing_plans),
            *self.stack.zeros_down(batch, xp, state.dtype),
        )
        return Carry(state, influence, xp.zeros((), dtype=xp.int32))

    @untracked
    def prepare(self, params: Params) -> Any:
        """What the steps read of the parameters; compute it once per update."""
        self.stack.check_params(params)
        layers: list[Any] = []
        crossing: list[Any] = []
        for learner, plan, own in zip(
            self.learners, self.crossing_plans, self.stack.split(params), strict=True
        ):
            layers.append(own if learner is None else learner.prepare(own))
            crossing.append(None if plan is None else learner.dynamics.prepare(own, dense=True))
        down = self.stack.weights_down(_for_forward_pass(layers))
        return StackPrepared(tuple(layers), tuple(crossing), down)

    @untracked
    def step(self, ready: Any, carry: Carry, x: Any, reset: Any = None) -> tuple[Carry, Any]:
        """Go one step forward; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        before = carry.influence._replace(down=ready.down)
        state, influence = self._forward(ready, carry.state, before, x, reset)
        return Carry(state, influence, carry.step + 1), self.output_of(state)

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current output; see `Learner.gradient`."""
        self._check_delta(carry, dL_dstate)
        xp = namespace_of(dL_dstate)
        # before the first step there is no output that a loss could depend on
        delta = xp.where(carry.step > 0, dL_dstate, xp.zeros_like(dL_dstate))
        found = self._add_gradient(self._zero_gradient(delta), carry.influence, delta)
        return self._by_name(found, delta)

    def chunking(self, chunk: Any, xs: Any) -> Any:
        """How `sequence` goes through `xs`; see `Learner.chunking`."""
        host: Any = self.__dict__.get("host", self)
        cells = [learner for learner in self.learners if learner is not None]
        if isinstance(chunk, (StackChunking, ExactChunking)):
            if not chunk.fits(host):
                raise ValueError(f"`chunk` must be a chunking of {self!r}, got that of another")
            return chunk
        check_chunk(chunk)
        if chunk not in ("auto", 1) and not host.has_chunks:
            raise ValueError(
                f"`chunk` must be 'auto' or 1 for {self!r}, whose order drops paths through the "
                f"network, got {chunk!r}"
            )
        return host.chunkings.find_for(chunk, cells[0].plan.packing_for(xs), xs)

    @cached_property
    def has_chunks(self) -> bool:
        """Whether it has a form in chunks: an exact stack has if nothing is dropped."""
        return not self.stack.exact or is_saturated(self.stack, self.order)

    @cached_property
    def chunkings(self) -> Ways[Any]:
        """The ways through a sequence that were asked for so far."""
        if self.stack.exact:
            return ExactChunkings(self)
        return StackChunkings([learner and learner.chunkings for learner in self.learners])

    def run(self, chunking: Any, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        if chunking is None:
            return self.run_sequence(unroll)
        if isinstance(chunking, ExactChunking):
            return run_exact_chunks(self, chunking, unroll)
        return run_chunks(self, chunking, unroll)

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        ready, xs = self.prepare(unroll.params), unroll.xs
        xp = namespace_of(xs)
        start = (
            unroll.carry.state,
            unroll.carry.influence._replace(down=ready.down),
            xp.zeros((), dtype=xs.dtype),
            self._zero_gradient(xs),
            map_tree(xp.zeros_like, unroll.readout),
        )

        def body(running: Any, inputs: Any) -> tuple[Any, None]:
            state, influence, total, gradient, of_readout = running
            x, y, weight, reset = inputs
            state, influence = self._forward(ready, state, influence, x, reset)
            loss, delta, new = unroll.loss(self.output_of(state), y, weight)
            gradient = self._add_gradient(gradient, influence, delta)
            of_readout = add_trees(of_readout, new)
            return (state, influence, total + loss, gradient, of_readout), None

        end, _ = scan(body, start, unroll.series)
        state, influence, total, gradient, of_readout = end
        by_name = self._by_name(gradient, total)
        carry = Carry(state, influence, unroll.carry.step + xs.shape[0])
        return unroll.result(total, by_name, of_readout, carry)

    def _has_made(self, carry: Carry) -> bool:
        return isinstance(carry.influence, StackInfluence)

    def _forward(
        self, ready: StackPrepared, state: Any, influence: StackInfluence, x: Any, reset: Any
    ) -> tuple[Any, StackInfluence]:
        """The new state and influences."""
        before = reset_rows(state, reset)
        state, moments = self.stack.linearize(_for_forward_pass(ready.layers), before, x)
        own = tuple(
            learner and learner.updated(learner.structure, prepared, blocks, moment, reset)
            for learner, prepared, blocks, moment in zip(
                self.learners,
                ready.layers,
                in_dtype_of(state, influence.own),
                moments,
                strict=True,
            )
        )
        past = in_dtype_of(state, influence.crossing)
        past = map_tree(lambda block: reset_rows(block, reset), past)
        crossing = self._cross(ready, moments, own, past)
        own, crossing = stored_as((influence.own, influence.crossing), (own, crossing))
        return state, StackInfluence(own, crossing, self.stack.trace(moments), influence.down)

    def _cross(
        self,
        ready: StackPrepared,
        moments: tuple[Any, ...],
        own: tuple[Any, ...],
        past: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """The influences of the parameters below each cell, from the bottom up."""
        read = {source for one in self.crossings if one is not None for source in one.sources}
        signals: list[Any] = []  # for each layer that is read, of all parameters up to it, flat
        after: list[Any] = []
        for number, (layer, crossing) in enumerate(
            zip(self.stack.layers, self.crossings, strict=True)
        ):
            blocks = signal = None
            if crossing is not None:
                jacobians = [
                    edge_jacobian(self.stack, number, source, ready.down[number], moments[number])
                    for source in crossing.sources
                ]
                signal = crossing.arriving(jacobians, [signals[k] for k in crossing.sources])
            if crossing is not None and crossing.plan is not None:
                dynamics = self.learners[number].dynamics
                operand = dynamics.operand(ready.crossing[number], moments[number], dense=True)
                blocks = influence_update(
                    operand.d,
                    past[number],
                    signal,
                    crossing.plan,
                    row_scale=operand.row_scale,
                    form="dense",
                )
                signal = crossing.plan.unpack(blocks) if number in read else None
            if number in read and isinstance(layer, Cell):
                signal = _behind(signal, self.learners[number].plan.unpack(own[number]))
            if number in read and isinstance(layer, FeedForward):
                signal = _behind(signal, layer.immediate(ready.down[number], moments[number]))
            after.append(blocks)
            signals.append(signal)
        return tuple(after)

    def _zero_gradient(self, like: Any) -> StackGradient:
        """Zeros in the library and dtype of an array."""
        xp = namespace_of(like)

        def packed(plan: DsmmPlan | None) -> Any:
            if plan is None:
                return None
            shapes = plan.packing_for(like).column_shapes()
            return tuple(xp.zeros(shape, dtype=like.dtype) for shape in shapes)

        own: list[Any] = []
        for layer, learner in zip(self.stack.layers, self.learners, strict=True):
            if isinstance(layer, FeedForward):
                shapes = {linear.name: linear.parameter_shape for linear in layer.maps}
                own.append({n: xp.zeros(shape, dtype=like.dtype) for n, shape in shapes.items()})
            else:
                own.append(packed(learner and learner.plan))
        return StackGradient(tuple(own), tuple(packed(plan) for plan in self.crossing_plans))

    def _add_gradient(
        self, sums: StackGradient, influence: StackInfluence, delta: Any
    ) -> StackGradient:
        """Add the gradient of one step's loss, given its gradient in the output."""
        deltas = self.stack.descend(
            influence.down, influence.trace, delta, through_cells=not self.stack.exact
        )
        own, crossing = list(sums.own), list(sums.crossing)
        kept = in_dtype_of(delta, (influence.own, influence.crossing))
        for number, (layer, at) in enumerate(zip(self.stack.layers, deltas, strict=True)):
            if at is None:
                continue
            if isinstance(layer, FeedForward):
                new = layer.gradients(influence.down[number], influence.trace[number], at)
                own[number] = add_trees(own[number], new)
            if isinstance(layer, Cell):
                for into, blocks, plan in (
                    (own, kept[0][number], self.learners[number].plan),
                    (crossing, kept[1][number], self.crossing_plans[number]),
                ):
                    if plan is not None:
                        parts = influence_gradient(at, blocks, plan, sum_batch=True, packed=True)
                        into[number] = add_trees(into[number], parts)
        return StackGradient(tuple(own), tuple(crossing))

    def _by_name(self, gradient: StackGradient, like: Any) -> Params:
        """The gradient by parameters; `like` gives the library and dtype."""
        zero = like.sum() * 0
        by_layer: list[Params] = []
        for layer, learner, own in zip(self.stack.layers, self.learners, gradient.own, strict=True):
            if isinstance(layer, Cell):
                packing = learner.plan.packing_for(like)
                own = learner.by_parameter(packing.unpack_columns(own, like=zero))
            by_layer.append(own or {})
        for number, plan in enumerate(self.crossing_plans):
            if plan is None:
                continue
            blocks = gradient.crossing[number]
            flat = plan.packing_for(like).unpack_columns(blocks, like=zero)
            below = self.stack.shaped(flat, number)
            by_layer[:number] = add_trees(by_layer[:number], below)
        return self.stack.joined(by_layer)


@form_of(RTRL)
class StackRTRL(StackSnAp, RTRL):
    """`RTRL` of a `Stack`: exact where the stack is, else within each layer."""


def _for_forward_pass(layers: Sequence[Any]) -> tuple[Any, ...]:
    """What `Stack.linearize` reads of `StackPrepared.layers`."""
    return tuple(own.cell if isinstance(own, SnApPrepared) else own for own in layers)


def _behind(front: Any, back: Any) -> Any:
    """Flat values with others behind them."""
    return back if front is None else namespace_of(back).concat([front, back], axis=-1)
