"""`UORO`: unbiased estimates of the exact gradient, forward in time, from two vectors."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from tritonsnap.arrays import Library, namespace_of
from tritonsnap.online.backend import reset_rows, scan, untracked
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Params, Prepared, generator_from
from tritonsnap.online.learner import Learner
from tritonsnap.online.signs import draw_words, make_key, random_signs
from tritonsnap.online.tangents import parameter_adjoint, state_tangent
from tritonsnap.online.trees import add_trees, leaves_of, map_tree
from tritonsnap.online.unroll import Unroll

_TINY = 1e-7  # the paper's epsilon: keeps norms of zero from dividing


class RankOne(NamedTuple):
    """An influence of rank one, ``J ~ of_state of_parameters^T``, for each row of the batch.

    Attributes
    ----------
    of_state : [batch, rows]
        The left vector.
    of_parameters : dict like the parameters, [batch, ...]
        The right vector; of a cell that is not in factored form [batch, parameters].
    key : [2]
        What the random signs are drawn from, together with the step.
    """

    of_state: Any
    of_parameters: Params
    key: Any


class UORO(Learner):
    """Unbiased online recurrent optimization: the influence as a random matrix of rank one.

    With signs ``v`` drawn anew at each step,

    ``s~ = rho_0 D s~ + rho_1 v``,  ``theta~ = theta~ / rho_0 + v^T I / rho_1``,

    so that the mean of ``s~ theta~^T`` is the exact influence. The factors rho_0 and rho_1 make
    the norms of the vectors equal, which keeps the variance low. A step costs two to three of
    SnAp-1, whatever the density; the gradient is noisy, and every row of the batch draws its own
    noise.

    Parameters
    ----------
    cell
        The network.
    seed
        A seed or a JAX key: decides the signs. The same seed gives the same signs in NumPy, torch
        and JAX. The key made from it is kept in the carry.

    Raises
    ------
    ValueError, TypeError
        If `seed` is negative, or neither an integer nor a key.

    References
    ----------
    Tallec and Ollivier, "Unbiased Online Recurrent Optimization", ICLR 2018, algorithm 1.
    """

    prepared: ClassVar[type] = Prepared

    def __init__(self, cell: Cell, seed: Any = 0) -> None:
        super().__init__(cell)
        self.seed = seed
        self._words = draw_words(generator_from(seed, "seed"))

    def init(self, batch: int, like: Library = "numpy", dtype: str = "float32") -> Carry:
        """A carry of zeros for `batch` rows, and the key."""
        state = self._zero_state(batch, like, dtype)
        xp = namespace_of(state)
        influence = RankOne(
            xp.zeros_like(state), self._zero_right(state), make_key(self._words, like)
        )
        return Carry(state, influence, xp.zeros((), dtype=xp.int32))

    @untracked
    def prepare(self, params: Params) -> Prepared:
        """What the steps read of the parameters; compute it once per update."""
        return self.cell.prepare(params)

    @untracked
    def step(
        self, ready: Prepared | Params, carry: Carry, x: Any, reset: Any = None
    ) -> tuple[Carry, Any]:
        """Go one step forward; see `Learner.step`."""
        self._check_step(ready, carry, x, reset)
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        return self._advance(ready, carry, x, reset)

    @untracked
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """An unbiased estimate of the gradient of a loss of the current state."""
        self._check_delta(carry, dL_dstate)
        return self._estimate(carry, dL_dstate)

    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        ready, xs = self.prepare(unroll.params), unroll.xs
        xp = namespace_of(xs)

        def body(running: Any, inputs: Any) -> tuple[Any, None]:
            carry, total = running
            x, y, weight, reset = inputs
            carry, state = self._advance(ready, carry, x, reset)
            loss, delta, of_readout = unroll.loss(state, y, weight)
            new = (loss, self._estimate(carry, delta), of_readout)
            return (carry, add_trees(total, new)), None

        given = map_tree(xp.zeros_like, (unroll.params, unroll.readout))
        start = (unroll.carry, (xp.zeros((), dtype=xs.dtype), *given))
        (carry, (loss, own, of_readout)), _ = scan(body, start, unroll.series)
        return unroll.result(loss, own, of_readout, carry)

    def _has_made(self, carry: Carry) -> bool:
        return isinstance(carry.influence, RankOne)

    def _zero_right(self, state: Any) -> Any:
        """A right vector of zeros for the rows of a state."""
        xp = namespace_of(state)
        return {
            linear.name: xp.zeros((state.shape[0], *linear.parameter_shape), dtype=state.dtype)
            for linear in self.cell.maps
        }

    def _products(
        self, ready: Any, state: Any, x: Any, left: Any, signs: Any
    ) -> tuple[Any, Any, Any]:
        """The new state, ``D left``, and ``signs^T I`` as a right vector."""
        linear = self.cell.linearize(ready, state, x)
        moved = state_tangent(self.cell, ready, linear, left)
        return linear.state, moved, parameter_adjoint(self.cell, linear, signs)

    def _advance(self, ready: Any, carry: Carry, x: Any, reset: Any) -> tuple[Carry, Any]:
        left, right, key = carry.influence
        left = reset_rows(left, reset)
        right = map_tree(lambda leaf: reset_rows(leaf, reset), right)
        signs = random_signs(key, carry.step, tuple(left.shape), left.dtype)
        state = reset_rows(carry.state, reset)
        state, left, added = self._products(ready, state, x, left, signs)
        past = _balance(right, left)
        present = _balance(added, signs)
        left = past[:, None] * left + present[:, None] * signs
        right = map_tree(
            lambda old, new: old / _like(past, old) + new / _like(present, new), right, added
        )
        return Carry(state, RankOne(left, right, key), carry.step + 1), state

    def _estimate(self, carry: Carry, delta: Any) -> Params:
        xp = namespace_of(delta)
        weight = (delta * carry.influence.of_state).sum(axis=-1)  # [batch]
        return map_tree(
            lambda leaf: xp.tensordot(weight, leaf, axes=([0], [0])),
            carry.influence.of_parameters,
        )

    def __repr__(self) -> str:
        return f"UORO({self.cell!r}, seed={self.seed!r})"


def _balance(right: Params, left: Any) -> Any:
    """[batch]: the factor of the left vector that makes both norms equal."""
    xp = namespace_of(left)
    squares = sum((leaf**2).reshape(leaf.shape[0], -1).sum(axis=-1) for leaf in leaves_of(right))
    return xp.sqrt(xp.sqrt(squares) / (xp.sqrt((left**2).sum(axis=-1)) + _TINY)) + _TINY


def _like(factor: Any, leaf: Any) -> Any:
    """A factor [batch] with the axes of [batch, ...]."""
    return factor.reshape(-1, *(1,) * (leaf.ndim - 1))
