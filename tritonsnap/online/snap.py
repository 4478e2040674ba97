"""`SnAp` and `RTRL`: gradients forward in time, from a sparse influence."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from tritonsnap.arrays import Library, library_of, namespace, namespace_of
from tritonsnap.checks import check_choice
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.carry import Carry, memory_of_steps, narrowed, widened
from tritonsnap.online.cell import Cell, Linearization, Params, Prepared
from tritonsnap.online.chunk import run_chunks
from tritonsnap.online.chunk_choice import Chunkings, Ways
from tritonsnap.online.chunk_structure import Chunking
from tritonsnap.online.dynamics import (
    DynamicsStructure,
    dynamics_pattern,
    immediate_pattern,
)
from tritonsnap.online.learner import Learner
from tritonsnap.online.trees import add_trees, map_tree
from tritonsnap.online.unroll import Unroll
from tritonsnap.ops import influence_gradient, influence_step, influence_update
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.sparsity.snap import check_order, snap_pattern

if TYPE_CHECKING:
    from tritonsnap.online.stack.network import Stack

HalfPrecision = Literal["float16", "bfloat16"]


class SnApPrepared(NamedTuple):
    """What the steps read of the parameters.

    Attributes
    ----------
    cell
        For the forward pass.
    weights
        The recurrent weights of each target where the dynamics have entries.
    """

    cell: Prepared
    weights: tuple[Any, ...]


class SnAp(Learner):
    """The sparse n-step approximation of RTRL.

    The influence ``J_t = ds_t/dtheta`` is kept where it can become nonzero within `order` steps
    and carried forward by ``J_t = I_t + M * (D_t J_{t-1})``. The parts of a unit (hidden state and
    cell of an LSTM) stay together: what feeds a unit has all of them from the first step on.

    Parameters
    ----------
    cell
        The network: a `Cell` or a `Stack`.
    order
        The number of steps n >= 1; None keeps everything, which is exact RTRL.
    influence_dtype
        "float16" or "bfloat16" stores the influence in half the memory (NumPy: "float16" only).
        Each step computes in the carry's own dtype and rounds once, when it stores, so with the
        unit roundoff u (2^-11, or 2^-8 for bfloat16) the error E grows as
        ``E_t <= |D_t| E_{t-1} + u |J_t|``. None stores it in the carry's dtype.

    Attributes
    ----------
    plan : DsmmPlan
        The plan of the influence: its patterns, groups and costs.

    Raises
    ------
    ValueError, TypeError
        If `order` is no integer of at least 1 and not None, or `influence_dtype` is unknown.

    References
    ----------
    Menick et al., "Practical Real Time Recurrent Learning with a Sparse Approximation", ICLR 2021.
    """

    prepared: ClassVar[type] = SnApPrepared
    weighted: ClassVar = True
    """Whether influence flows through recurrent weights, not only within each unit."""

    def __init__(
        self,
        cell: Cell | Stack,
        order: int | None = 1,
        *,
        influence_dtype: HalfPrecision | None = None,
    ) -> None:
        super().__init__(cell)
        check_order(order)
        if influence_dtype is not None:
            check_choice("influence_dtype", influence_dtype, get_args(HalfPrecision))
        self.order = order
        self.influence_dtype = influence_dtype

    @cached_property
    def structure(self) -> FactorStructure:
        """The factors of the immediate Jacobian, and the plan of the influence."""
        cell = self.cell
        immediate, dynamics = immediate_pattern(cell), dynamics_pattern(cell, self.weighted)
        mask = snap_pattern(dynamics, immediate, self.order)
        ends = np.cumsum([linear.num_parameters for linear in cell.maps])
        segments = [
            int(end)
            for end, one, following in zip(ends, cell.maps, cell.maps[1:], strict=False)
            if one.target != following.target
        ]
        places = [cell.sources[linear.source][0] + linear.rows for linear in cell.maps]
        targets = [
            np.full(linear.num_parameters, cell.targets.index(linear.target))
            for linear in cell.maps
        ]
        return FactorStructure(
            plan=DsmmPlan(mask, mask, dynamics, segments=segments),
            unit=np.concatenate([linear.units for linear in cell.maps]),
            target=np.concatenate(targets),
            source=np.concatenate(places),
            num_units=cell.hidden,
            num_targets=len(cell.targets),
            num_sources=cell.num_sources,
        )

    @cached_property
    def dynamics(self) -> DynamicsStructure:
        """Which weights and gains the dynamics are made of."""
        return DynamicsStructure.build(self.cell, self.plan.dynamics, self.weighted)

    @property
    def plan(self) -> DsmmPlan:
        """The plan of the influence."""
        return self.structure.plan

    def init(self, batch: int, like: Library = "numpy", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows."""
        state = self._zero_state(batch, like, dtype)
        xp = namespace(like)
        influence = self._zero_influence(self.plan, state)
        return Carry(state, influence, xp.zeros((), dtype=xp.int32))

    @untracked
    def prepare(self, params: Params) -> SnApPrepared:
        """What the steps read of the parameters; compute it once per update."""
        ready = self.cell.prepare(params)
        dense = self._dense(*params.values())
        return SnApPrepared(ready, self.dynamics.prepare(params, dense))

    @untracked
    def step(
        self, ready: SnApPrepared | Params, carry: Carry, x: Any, reset: Any = None
    ) -> tuple[Carry, Any]:
        """Go one step forward; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        return self._advance(ready, carry, x, reset)

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient of a loss of the current state; see `Learner.gradient`."""
        self._check_delta(carry, dL_dstate)
        flat = influence_gradient(dL_dstate, widened(carry), self.plan, sum_batch=True)
        return self.by_parameter(flat)

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, step by step, without compiling."""
        ready, xs = self.prepare(unroll.params), unroll.xs
        xp = namespace_of(xs)
        packing = self.plan.packing_for(xs)
        written_to = memory_of_steps(packing, unroll.carry)
        start = (
            unroll.carry,
            xp.zeros((), dtype=xs.dtype),
            tuple(xp.zeros(shape, dtype=xs.dtype) for shape in packing.column_shapes()),
            map_tree(xp.zeros_like, unroll.readout),
        )

        def body(running: Any, inputs: Any) -> tuple[Any, None]:
            carry, total, gradients, readout_gradients = running
            x, y, weight, reset = inputs
            state, operands, options = self._linearized(ready, carry, x, reset)
            loss, delta, of_readout = unroll.loss(state, y, weight)
            out = written_to(operands[1])
            influence, own = influence_step(
                *operands, delta, self.plan, packed=True, out=out, **options
            )
            carry = Carry(state, narrowed(influence, carry), carry.step + 1)
            gradients = tuple(one + new for one, new in zip(gradients, own, strict=True))
            readout_gradients = add_trees(readout_gradients, of_readout)
            return (carry, total + loss, gradients, readout_gradients), None

        end, _ = scan(body, start, unroll.series)
        carry, total, gradients, readout_gradients = end
        by_parameter = self.by_parameter(packing.unpack_columns(gradients, like=total))
        return unroll.result(total, by_parameter, readout_gradients, carry)

    def chunking(self, chunk: int | Literal["auto"] | Chunking, xs: Any) -> Chunking | None:
        """How `sequence` goes through `xs`; see `Learner.chunking`.

        A number chunks every block, "auto" those for which the cost model predicts a gain.
        """
        host = self.__dict__.get("host", self)
        if isinstance(chunk, Chunking):
            if not chunk.digest.startswith(host.structure.digest):
                raise ValueError(f"`chunk` must be a chunking of {self!r}, got that of another")
            return chunk
        return host.chunkings.find_for(chunk, self.plan.packing_for(xs), xs)

    @cached_property
    def chunkings(self) -> Ways[Any]:
        """The ways through a sequence that were asked for so far."""
        return Chunkings(self.structure, self.dynamics)

    def run(self, chunking: Chunking | None, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        if chunking is None:
            return self.run_sequence(unroll)
        return run_chunks(self, chunking, unroll)

    def _zero_influence(self, plan: DsmmPlan, state: Any) -> tuple[Any, ...]:
        """The blocks of a plan for the rows of a state, in the dtype that is stored."""
        xp, dtype = namespace_of(state), state.dtype
        if self.influence_dtype == "bfloat16" and library_of(state) == "numpy":
            raise ValueError(
                "`influence_dtype` 'bfloat16' needs torch or JAX, NumPy has only 'float16'"
            )
        if self.influence_dtype is not None:
            dtype = getattr(xp, self.influence_dtype)
        return plan.packing_for(state).zeros((state.shape[0],), xp, dtype=dtype)

    def _has_made(self, carry: Carry) -> bool:
        return type(carry.influence) is tuple and all(
            getattr(block, "shape", ())[:1] == carry.state.shape[:1] for block in carry.influence
        )

    def _advance(self, ready: SnApPrepared, carry: Carry, x: Any, reset: Any) -> tuple[Carry, Any]:
        state, operands, options = self._linearized(ready, carry, x, reset)
        influence = influence_update(*operands, self.plan, **options)
        return Carry(state, narrowed(influence, carry), carry.step + 1), state

    def _linearized(
        self, ready: SnApPrepared, carry: Carry, x: Any, reset: Any
    ) -> tuple[Any, tuple[Any, tuple[Any, ...], Any], dict[str, Any]]:
        """The new state, and D, J, the immediate Jacobian and options of the step's update."""
        linear = self.cell.linearize(ready.cell, reset_rows(carry.state, reset), x)
        operands = self._operands(self.structure, ready, widened(carry), linear, reset)
        return linear.state, *operands

    def updated(
        self,
        structure: FactorStructure,
        ready: SnApPrepared,
        influence: tuple[Any, ...],
        linear: Linearization,
        reset: Any,
    ) -> tuple[Any, ...]:
        """The influence after a step, all of it or the blocks that `structure` has."""
        operands, options = self._operands(structure, ready, influence, linear, reset)
        blocks: tuple[Any, ...] = influence_update(*operands, structure.plan, **options)
        return blocks

    def _operands(
        self,
        structure: FactorStructure,
        ready: SnApPrepared,
        influence: tuple[Any, ...],
        linear: Linearization,
        reset: Any,
    ) -> tuple[tuple[Any, tuple[Any, ...], Factors], dict[str, Any]]:
        """D, J and the immediate Jacobian of a step, and the options of `influence_update`."""
        if reset is not None:
            influence = tuple(reset_rows(block, reset) for block in influence)
        dense = self._dense(linear.state)
        operand = self.dynamics.operand(ready.weights, linear, dense)
        factors = Factors(linear.gains, linear.sources, structure)
        form = "dense" if dense else "values"
        return (operand.d, influence, factors), {"row_scale": operand.row_scale, "form": form}

    def _dense(self, *arrays: Any) -> bool:
        """Whether the plan wants D as a dense matrix from the library of `arrays`."""
        library_of(*arrays)
        return self.plan.packing_for(arrays[0]).wants_dense

    def by_parameter(self, flat: Any) -> Params:
        """A flat gradient [..., columns] as a dict of arrays like the parameters."""
        return self.cell.shaped(flat)

    def all_gradients(self, flat: Any, others: Params) -> Params:
        """A flat gradient and `others`, which have the form of the parameters, together."""
        return add_trees(others, self.by_parameter(flat))

    def __repr__(self) -> str:
        return f"SnAp({self.cell!r}, order={self.order}{self._stored_as()})"

    def _stored_as(self) -> str:
        return f", influence_dtype={self.influence_dtype!r}" if self.influence_dtype else ""


class RTRL(SnAp):
    """Exact real-time recurrent learning: `SnAp` without a limit on steps.

    References
    ----------
    Williams and Zipser, "A Learning Algorithm for Continually Running Fully Recurrent Neural
    Networks", Neural Computation 1(2), 1989.
    """

    def __init__(self, cell: Cell | Stack, *, influence_dtype: HalfPrecision | None = None) -> None:
        super().__init__(cell, None, influence_dtype=influence_dtype)

    def __repr__(self) -> str:
        return f"RTRL({self.cell!r}{self._stored_as()})"
