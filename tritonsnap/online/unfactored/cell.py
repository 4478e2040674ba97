"""`UnfactoredCell`: what learners need of a cell whose Jacobians come as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from tritonsnap.online.cell import Params
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.sparsity.pattern import SparsityPattern


class JacobianValues(NamedTuple):
    """A step's new state and its Jacobians.

    Attributes
    ----------
    state : [batch, rows]
        The new state.
    immediate : [batch, nnz]
        ``df/dtheta`` on the cell's `immediate_pattern`.
    dynamics : [batch, nnz] or [batch, rows, rows]
        ``ds_t/ds_{t-1}`` on the pattern asked for, or dense.
    """

    state: Any
    immediate: Any
    dynamics: Any


class Work(NamedTuple):
    """What a step computes for a row of the batch.

    Attributes
    ----------
    step
        Multiply-adds of the new state.
    jacobians, dynamics
        Multiply-adds of its Jacobians, on top, and of that of the dynamics alone.
    passes
        Derivative passes that the Jacobians take; 0 in closed form.
    """

    step: int
    jacobians: int
    dynamics: int
    passes: int


class Jacobians(ABC):
    """The Jacobians of a step, those of the dynamics where a pattern asks; in JAX a pytree."""

    @abstractmethod
    def __call__(self, ready: Any, state: Any, x: Any, dense: bool) -> JacobianValues:
        """Both, of a state [batch, rows] and an input [batch, inputs]; see `JacobianValues`."""

    @abstractmethod
    def dynamics(self, ready: Any, state: Any, x: Any) -> Any:
        """The values [batch, nnz] of the dynamics alone."""


class UnfactoredCell(ABC):
    """A recurrent cell ``s_t = f(theta, s_{t-1}, x_t)`` whose Jacobians are sparse matrices.

    Attributes
    ----------
    inputs, hidden
        Numbers of inputs and of units.
    """

    inputs: int
    hidden: int

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of the state."""

    @property
    @abstractmethod
    def maps(self) -> tuple[LinearMap, ...]:
        """Parameters that are linear maps, if any."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Equal for cells that compute the same."""

    @property
    @abstractmethod
    def immediate_pattern(self) -> SparsityPattern:
        """Where ``df/dtheta`` [rows, parameters] may be nonzero."""

    @property
    @abstractmethod
    def dynamics_pattern(self) -> SparsityPattern:
        """Where ``ds_t/ds_{t-1}`` [rows, rows] may be nonzero, by any path."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """What a step computes."""

    @abstractmethod
    def check_params(self, params: Params) -> None:
        """Raise a `ValueError` or `TypeError` that names what does not fit."""

    @abstractmethod
    def prepare(self, params: Params) -> Any:
        """What a step reads of the parameters, a named tuple; compute it once per update."""

    @abstractmethod
    def step(self, ready: Any, state: Any, x: Any) -> Any:
        """The new state [batch, rows]; `ready` is what `prepare` returns, or the parameters."""

    @abstractmethod
    def make_jacobians(self, dynamics: SparsityPattern) -> Jacobians:
        """The function that gives Jacobians, those of the dynamics on a part of their pattern."""

    @abstractmethod
    def push_forward(self, ready: Any, state: Any, x: Any, tangent: Any) -> tuple[Any, Any]:
        """The new state, and the tangent in it of one in the old state, both [batch, rows]."""

    @abstractmethod
    def pull_back(self, ready: Any, state: Any, x: Any, adjoint: Any) -> tuple[Params, Any]:
        """The gradients in the parameters, summed over the batch, and in the old state.

        `adjoint` [batch, rows] is that in the new state.
        """

    @abstractmethod
    def immediate_products(self, ready: Any, states: Any, xs: Any, adjoints: Any) -> Any:
        """Products of adjoints and immediate Jacobians, summed over time.

        Parameters
        ----------
        ready
            What `prepare` returns.
        states, xs : [batch, K, rows], [batch, K, inputs]
            The old state and the input of each step.
        adjoints : [batch, N, K, rows]
            Any number of adjoints in the new state of each step.

        Returns
        -------
        [batch, N, parameters], in the order of the columns of the Jacobian
        """

    @abstractmethod
    def shaped(self, flat: Any) -> Params:
        """Numbers [parameters], in the order of the columns of the Jacobian, as parameters."""
