"""The original gated recurrent unit, whose reset gate comes before the matrix product."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import namespace_of
from tritonsnap.online.backend import index_like, matmul, take
from tritonsnap.online.cell import Linearization, Params
from tritonsnap.online.cells import GRU, sigmoid
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.online.unfactored.cell import Jacobians, JacobianValues, UnfactoredCell, Work
from tritonsnap.plan.compact import compact
from tritonsnap.sparsity.pattern import SparsityPattern

GATES = ("reset", "update", "candidate")


class Kernels(NamedTuple):
    """What a step reads of the parameters.

    Attributes
    ----------
    input, recurrent, bias
        Dense, by gate: [inputs, hidden], [hidden, hidden], [hidden].
    candidate_values : [nnz]
        The recurrent weights of the candidate as they are stored, in canonical order.
    """

    input: dict[str, Any]
    recurrent: dict[str, Any]
    bias: dict[str, Any]
    candidate_values: Any


class Activations(NamedTuple):
    """The gates of a step, all [..., hidden]."""

    reset: Any
    update: Any
    candidate: Any


@dataclass(frozen=True)
class ResetBeforeGRU(GRU, UnfactoredCell):
    """``GRU(reset="before")``: ``n = tanh(x W_n + (r * h) U_n + b_n)``.

    A parameter of a reset gate acts on every unit that reads the gated one, so its column of the
    immediate Jacobian is full where U_n is, and the learners take both Jacobians as values. These
    are in closed form::

        d h'[k] / d a_r[i] = (1 - z[k]) (1 - n[k]^2) U_n[i, k] h[i] r[i] (1 - r[i])
        d h'[k] / d h[l]   = (1 - z[k]) (1 - n[k]^2) (U_n[l, k] r[l]
                             + sum_i U_n[i, k] h[i] r[i] (1 - r[i]) U_r[l, i])
                             + (h[k] - n[k]) z[k] (1 - z[k]) U_z[l, k] + z[k] [k = l]
    """

    reset: str = field(default="before", kw_only=True)

    targets: ClassVar = GATES
    factored: ClassVar = False

    def make_maps(self) -> list[LinearMap]:
        """Three maps for each gate; the candidate's recurrent weights read the gated state."""
        return [
            linear
            for gate in GATES
            for linear in (
                self.weight(f"input_{gate}", "input", gate),
                self.weight(f"recurrent_{gate}", "hidden", gate),
                self.bias(f"bias_{gate}", gate),
            )
        ]

    # ---- structure -----------------------------------------------------------------------------

    @property
    def by_name(self) -> dict[str, LinearMap]:
        """The maps by name."""
        return {linear.name: linear for linear in self.maps}

    @cached_property
    def readers(self) -> SparsityPattern:
        """Which units read which gated unit: the pattern [hidden, hidden] of U_n, transposed."""
        return self.by_name["recurrent_candidate"].support.transpose()

    @cached_property
    def immediate_pattern(self) -> SparsityPattern:
        """A reset gate's parameters reach the readers of the unit, the others the unit."""
        readers = self.readers
        units = np.arange(self.hidden)
        sizes = np.bincount(readers.cols, minlength=self.hidden)
        kinds = [
            linear.units if linear.target == "reset" else self.hidden + linear.units
            for linear in self.maps
        ]
        return SparsityPattern.from_columns(
            (self.hidden, self.num_parameters),
            np.concatenate([[0], np.cumsum(np.append(sizes, np.ones(self.hidden, np.int64)))]),
            np.concatenate([readers.rows, units]),
            np.concatenate(kinds),
        )

    @cached_property
    def dynamics_pattern(self) -> SparsityPattern:
        """The update gate, the candidate, what it reads through the reset gate, and the state."""
        reset, update = (
            self.by_name[f"recurrent_{gate}"].support.transpose() for gate in ("reset", "update")
        )
        through_reset = self.readers @ reset
        return SparsityPattern.identity(self.hidden) | update | self.readers | through_reset

    @property
    def work(self) -> Work:
        """A product with each kernel; for the dynamics one of two kernels."""
        step = sum(linear.shape[0] * linear.shape[1] for linear in self.maps)
        dynamics = self.hidden**3 + 3 * self.hidden**2
        return Work(step, dynamics, dynamics, passes=0)

    # ---- values --------------------------------------------------------------------------------

    def prepare(self, params: Params) -> Kernels:  # type: ignore[override]
        """What a step reads of the parameters; compute it once per update."""
        self.check_params(params)
        input, recurrent = (
            {gate: self.by_name[name].dense(params[name]) for gate in GATES for name in [of + gate]}
            for of in ("input_", "recurrent_")
        )
        bias = {gate: params[f"bias_{gate}"] for gate in GATES}
        stored = self.by_name["recurrent_candidate"].flat(params["recurrent_candidate"])
        return Kernels(input, recurrent, bias, stored)

    def step(self, ready: Kernels | Params, state: Any, x: Any) -> Any:  # type: ignore[override]
        """The new state [..., hidden] from the old one and an input [..., inputs]."""
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        gates = activations(ready, state, x)
        return _mixed(gates, state)

    def linearize(self, ready: Any, state: Any, x: Any) -> Linearization:
        """Raise a `TypeError`: there are no gains that the immediate Jacobian consists of."""
        raise TypeError(
            'GRU(reset="before") has no factored immediate Jacobian, which this learner needs; '
            'use reset="after"'
        )

    def make_jacobians(self, dynamics: SparsityPattern) -> ResetBeforeJacobians:
        """The Jacobians in closed form, those of the dynamics where asked for."""
        pattern = self.immediate_pattern
        units = np.concatenate([linear.units for linear in self.maps])
        target = np.repeat([GATES.index(linear.target) for linear in self.maps], self._sizes)
        column = pattern.cols
        # gains are [update | candidate | one for each pair of readers]
        gain = (target[column] - 1) * self.hidden + units[column]
        of_reset = target[column] == 0
        readers = self.readers.transpose()  # columns are readers: the order of the stored weights
        keys = readers.cols.astype(np.int64) * self.hidden + readers.rows
        wanted = pattern.rows.astype(np.int64) * self.hidden + units[column]
        gain[of_reset] = 2 * self.hidden + np.searchsorted(keys, wanted[of_reset])
        arrays = (gain, self._source[column], readers.rows, readers.cols)
        place = dynamics.rows.astype(np.int64) * self.hidden + dynamics.cols
        return ResetBeforeJacobians(tuple(compact(array) for array in (*arrays, place)))

    def push_forward(self, ready: Kernels, state: Any, x: Any, tangent: Any) -> tuple[Any, Any]:
        """The new state, and the tangent in it of one in the old state."""
        gates = activations(ready, state, x)
        gain_update, through = _gains(gates, state)
        of_reset = gates.reset * (1 - gates.reset) * (tangent @ ready.recurrent["reset"])
        of_gated = of_reset * state + gates.reset * tangent
        moved = (
            through * (of_gated @ ready.recurrent["candidate"])
            + gain_update * (tangent @ ready.recurrent["update"])
            + gates.update * tangent
        )
        return _mixed(gates, state), moved

    def pull_back(self, ready: Kernels, state: Any, x: Any, adjoint: Any) -> tuple[Params, Any]:
        """The gradients in the parameters, summed over the batch, and in the old state."""
        gates = activations(ready, state, x)
        of, of_gated = _pulled_back(ready, gates, state, adjoint)
        back = adjoint * gates.update + of_gated * gates.reset
        for gate in ("reset", "update"):
            back = back + of[gate] @ ready.recurrent[gate].T
        flat = self.immediate_products(ready, state[None], x[None], adjoint[None, None])
        return self.shaped(flat[0, 0]), back

    def immediate_products(self, ready: Kernels, states: Any, xs: Any, adjoints: Any) -> Any:
        """Products of adjoints and immediate Jacobians, summed over time."""
        xp = namespace_of(states)
        states, xs = states[:, None], xs[:, None]
        gates = activations(ready, states, xs)
        of, _ = _pulled_back(ready, gates, states, adjoints)
        read = {"input": xs, "hidden": states}
        products = []
        for linear in self.maps:
            flow = of[linear.target]
            if linear.source == "one":
                products.append(flow.sum(axis=-2))
                continue
            source = read[linear.source]
            source = gates.reset * states if linear.name == "recurrent_candidate" else source
            if linear.pattern is None:  # in the order of the columns: all sources of a unit
                product = matmul(xp.swapaxes(flow, -1, -2), source)
                products.append(product.reshape(*product.shape[:2], -1))
            else:
                product = matmul(xp.swapaxes(source, -1, -2), flow)
                products.append(take(product.reshape(*product.shape[:2], -1), linear.place))
        return xp.concat(products, axis=-1)

    # ---- helpers -------------------------------------------------------------------------------

    @property
    def _sizes(self) -> list[int]:
        return [linear.num_parameters for linear in self.maps]

    @property
    def _source(self) -> NDArray[np.integer]:
        """What each parameter multiplies, among [input | state | gated state | one]."""
        begin = {"input": 0, "hidden": self.inputs, "one": self.inputs + 2 * self.hidden}
        gated = self.inputs + self.hidden
        return np.concatenate(
            [
                linear.rows
                + (gated if linear.name == "recurrent_candidate" else begin[linear.source])
                for linear in self.maps
            ]
        )


class ResetBeforeJacobians(Jacobians):
    """The Jacobians of a `ResetBeforeGRU` in closed form.

    Parameters
    ----------
    arrays
        Five index arrays: the gain and the source of each immediate value, the gated unit and the
        reader of each stored weight of U_n, and the place [row * hidden + column] of each value of
        the dynamics.
    """

    def __init__(self, arrays: tuple[Any, ...]) -> None:
        self.arrays = arrays

    def __call__(self, ready: Kernels, state: Any, x: Any, dense: bool) -> JacobianValues:
        """See `Jacobians`."""
        xp = namespace_of(state)
        gain, source, gated_unit, reader, _ = (index_like(state, array) for array in self.arrays)
        gates = activations(ready, state, x)
        gain_update, through = _gains(gates, state)
        gated = gates.reset * state
        slope = gated * (1 - gates.reset)
        of_pair = through[..., reader] * ready.candidate_values * slope[..., gated_unit]
        gains = xp.concat([gain_update, through, of_pair], axis=-1)
        sources = xp.concat([x, state, gated, xp.ones_like(state[..., :1])], axis=-1)
        dynamics = _dynamics(ready, gates, state)
        return JacobianValues(
            _mixed(gates, state),
            gains[..., gain] * sources[..., source],
            dynamics if dense else self._values(dynamics),
        )

    def dynamics(self, ready: Kernels, state: Any, x: Any) -> Any:
        """See `Jacobians`."""
        return self._values(_dynamics(ready, activations(ready, state, x), state))

    def _values(self, dynamics: Any) -> Any:
        place = index_like(dynamics, self.arrays[-1])
        return dynamics.reshape(*dynamics.shape[:-2], -1)[..., place]


def activations(ready: Kernels, state: Any, x: Any) -> Activations:
    """The gates from an old state [..., hidden] and an input [..., inputs]."""
    xp = namespace_of(state, x)

    def driven(gate: str, past: Any) -> Any:
        return x @ ready.input[gate] + past @ ready.recurrent[gate] + ready.bias[gate]

    reset, update = (sigmoid(xp, driven(gate, state)) for gate in ("reset", "update"))
    return Activations(reset, update, xp.tanh(driven("candidate", reset * state)))


def _mixed(gates: Activations, state: Any) -> Any:
    return (1 - gates.update) * gates.candidate + gates.update * state


def _dynamics(ready: Kernels, gates: Activations, state: Any) -> Any:
    """``ds_t/ds_{t-1}`` as matrices [..., hidden, hidden]."""
    xp = namespace_of(state)
    gain_update, through = _gains(gates, state)
    slope = gates.reset * state * (1 - gates.reset)
    kernel = ready.recurrent["candidate"].T  # [reader, gated unit]
    paths = kernel * gates.reset[..., None, :]
    paths = paths + (kernel * slope[..., None, :]) @ ready.recurrent["reset"].T
    return (
        through[..., None] * paths
        + gain_update[..., None] * ready.recurrent["update"].T
        + gates.update[..., None] * xp.eye(state.shape[-1], dtype=state.dtype)
    )


def _pulled_back(
    ready: Kernels, gates: Activations, state: Any, adjoint: Any
) -> tuple[dict[str, Any], Any]:
    """The adjoints in the preactivation of each gate, and in the gated state."""
    gain_update, through = _gains(gates, state)
    of_candidate = adjoint * through
    of_gated = of_candidate @ ready.recurrent["candidate"].T
    of_reset = of_gated * gates.reset * state * (1 - gates.reset)
    of = {"reset": of_reset, "update": adjoint * gain_update, "candidate": of_candidate}
    return of, of_gated


def _gains(gates: Activations, state: Any) -> tuple[Any, Any]:
    """What the preactivations of update gate and candidate do to the new state of their unit."""
    _, update, candidate = gates
    through = (1 - update) * (1 - candidate**2)
    return (state - candidate) * update * (1 - update), through
