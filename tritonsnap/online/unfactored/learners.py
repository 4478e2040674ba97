"""`SnAp`, `RTRL`, `UORO` and `BPTT` of cells whose Jacobians come as values."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import index_like, reset_rows, scan, untracked
from tritonsnap.online.bptt import BPTT
from tritonsnap.online.carry import Carry, widened
from tritonsnap.online.cell import Params
from tritonsnap.online.learner import form_of
from tritonsnap.online.snap import RTRL, SnAp, SnApPrepared
from tritonsnap.online.trees import add_trees, leaves_of, map_tree
from tritonsnap.online.unfactored.cell import Jacobians, UnfactoredCell
from tritonsnap.online.unfactored.chunk import run_chunks
from tritonsnap.online.unfactored.chunk_choice import UnfactoredChunkings
from tritonsnap.online.unfactored.chunk_structure import UnfactoredChunking
from tritonsnap.online.unroll import Unroll
from tritonsnap.online.uoro import UORO
from tritonsnap.plan.compact import compact
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.sparsity.pattern import SparsityPattern
from tritonsnap.sparsity.snap import snap_pattern


@form_of(SnAp)
class UnfactoredSnAp(SnAp):
    """`SnAp` where the immediate Jacobian comes as values on its pattern."""

    network: ClassVar[type] = UnfactoredCell
    cell: Any

    @cached_property
    def plan(self) -> DsmmPlan:
        """The plan of the influence."""
        dynamics = self.cell.dynamics_pattern
        mask = snap_pattern(dynamics, self.cell.immediate_pattern, self.order)
        return DsmmPlan(mask, mask, dynamics)

    @property
    def structure(self) -> FactorStructure:
        """Raise a `TypeError`: there is none, and whatever needs it cannot take this cell."""
        raise TypeError(
            f"{type(self.cell).__name__} has no factored immediate Jacobian, which this needs: "
            "give a Cell in factored form"
        )

    @cached_property
    def jacobians(self) -> Jacobians:
        """The Jacobians of a step, as far as the plan needs them."""
        jacobians: Jacobians = self.cell.make_jacobians(self.plan.dynamics)
        return jacobians

    def places(self, packing: Packing) -> list[Any]:
        """For each block: which immediate value every packed value is, from one; zero if none."""
        known = self.__dict__.setdefault("_places", {})
        if packing.digest not in known:
            place = _place_among(self.cell.immediate_pattern, self.plan.mask)
            known[packing.digest] = [compact(block) for block in packing.pack(place, "mask")]
        blocks: list[Any] = known[packing.digest]
        return blocks

    def chunking(self, chunk: Any, xs: Any) -> Any:
        """How `sequence` goes through `xs`; see `Learner.chunking`."""
        host = self.__dict__.get("host", self)
        if isinstance(chunk, UnfactoredChunking):
            if not chunk.digest.startswith(host.digest):
                raise ValueError(f"`chunk` must be a chunking of {self!r}, got that of another")
            return chunk
        return host.chunkings.find_for(chunk, self.plan.packing_for(xs), xs)

    @cached_property
    def chunkings(self) -> UnfactoredChunkings:
        """The ways through a sequence that were asked for so far."""
        return UnfactoredChunkings(self.cell, self.plan, self.digest)

    @cached_property
    def digest(self) -> str:
        """Equal for learners that keep the same influence of the same cell."""
        return f"{self.cell.digest} {self.plan.digest}"

    def run(self, chunking: Any, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        if chunking is None:
            return self.run_sequence(unroll)
        return run_chunks(self, chunking, unroll)

    @untracked
    def prepare(self, params: Params) -> SnApPrepared:
        """What the steps read of the parameters; compute it once per update."""
        ready = self.cell.prepare(params)
        (like, *_) = leaves_of(params)
        self.places(self.plan.packing_for(like))
        _ = self.jacobians  # found here once, before a program is compiled
        return SnApPrepared(ready, ())

    def _linearized(
        self, ready: SnApPrepared, carry: Carry, x: Any, reset: Any
    ) -> tuple[Any, tuple[Any, tuple[Any, ...], Any], dict[str, Any]]:
        state, dense = reset_rows(carry.state, reset), self._dense(x)
        values = self.jacobians(ready.cell, state, x, dense)
        xp = namespace_of(x)
        padded = xp.concat([xp.zeros_like(values.state[:, :1]), values.immediate], axis=-1)
        influence = tuple(reset_rows(block, reset) for block in widened(carry))
        immediate = tuple(
            padded[..., index_like(padded, place)]
            for place in self.places(self.plan.packing_for(x))
        )
        operands = (values.dynamics, influence, immediate)
        return values.state, operands, {"form": "dense" if dense else "values"}


@form_of(RTRL)
class UnfactoredRTRL(UnfactoredSnAp, RTRL):
    """`RTRL` where the immediate Jacobian comes as values on its pattern."""


@form_of(UORO)
class UnfactoredUORO(UORO):
    """`UORO` whose right vector is [batch, parameters], from derivatives in one direction each."""

    network: ClassVar[type] = UnfactoredCell
    prepared: ClassVar[type] = tuple  # the cell's own
    cell: Any

    def _zero_right(self, state: Any) -> Any:
        num_parameters = self.cell.immediate_pattern.shape[1]
        return namespace_of(state).zeros((state.shape[0], num_parameters), dtype=state.dtype)

    def _products(
        self, ready: Any, state: Any, x: Any, left: Any, signs: Any
    ) -> tuple[Any, Any, Any]:
        new, moved = self.cell.push_forward(ready, state, x, left)
        added = self.cell.immediate_products(
            ready, state[:, None], x[:, None], signs[:, None, None]
        )
        return new, moved, added[:, 0]

    def _estimate(self, carry: Carry, delta: Any) -> Params:
        params: Params = self.cell.shaped(super()._estimate(carry, delta))
        return params


class Moment(NamedTuple):
    """What BPTT keeps of one step: what it used, the state and input it read, and the resets."""

    ready: Any
    state: Any
    x: Any
    reset: Any


@form_of(BPTT)
class UnfactoredBPTT(BPTT):
    """`BPTT` that computes each step again on the way back."""

    network: ClassVar[type] = UnfactoredCell
    prepared: ClassVar[type] = tuple  # the cell's own
    moment: ClassVar[type] = Moment
    cell: Any

    @untracked
    def step(self, ready: Any, carry: Carry, x: Any, reset: Any = None) -> tuple[Carry, Any]:
        """Go one step forward and remember it; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        old = reset_rows(carry.state, reset)
        state = self.cell.step(ready, old, x)
        history = (*carry.influence, Moment(ready, old, x, reset))
        return Carry(state, history, carry.step + 1), state

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current state through the whole history."""
        self._check_delta(carry, dL_dstate)
        adjoint = dL_dstate
        xp = namespace_of(adjoint)
        size = self.cell.immediate_pattern.shape[1]
        total = self.cell.shaped(xp.zeros((size,), dtype=adjoint.dtype))
        for moment in reversed(carry.influence):
            new, adjoint = self.cell.pull_back(moment.ready, moment.state, moment.x, adjoint)
            total = add_trees(total, new)
            adjoint = reset_rows(adjoint, moment.reset)
        return total

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        ready, xs, resets = self.prepare(unroll.params), unroll.xs, unroll.resets

        def forward(state: Any, inputs: Any) -> tuple[Any, tuple[Any, Any]]:
            x, reset = inputs
            old = reset_rows(state, reset)
            state = self.cell.step(ready, old, x)
            return state, (old, state)

        state, (old, states) = scan(forward, unroll.carry.state, (xs, resets))
        loss, deltas, of_readout = unroll.loss(states, unroll.ys, unroll.mask)

        def backward(running: Any, inputs: Any) -> tuple[Any, None]:
            adjoint, gradients = running
            old, x, delta, reset = inputs
            new, adjoint = self.cell.pull_back(ready, old, x, adjoint + delta)
            gradients = add_trees(gradients, new)
            return (reset_rows(adjoint, reset), gradients), None

        xp = namespace_of(xs)
        start = (xp.zeros_like(state), map_tree(xp.zeros_like, unroll.params))
        (_, gradients), _ = scan(backward, start, (old, xs, deltas, resets), reverse=True)
        carry = Carry(state, (), unroll.carry.step + xs.shape[0])
        return unroll.result(loss, gradients, of_readout, carry)


def _place_among(part: SparsityPattern, whole: SparsityPattern) -> NDArray[np.int64]:
    """Where each nonzero of `whole` is among those of `part`, counted from one; zero if nowhere."""
    keys, wanted = (
        pattern.cols.astype(np.int64) * pattern.shape[0] + pattern.rows for pattern in (part, whole)
    )
    place = np.zeros(len(wanted), np.int64)
    place[np.searchsorted(wanted, keys)] = np.arange(1, len(keys) + 1)
    return place
