"""Optimizers as pure functions over trees of arrays: one for NumPy, torch and JAX.

Any other optimizer serves as well: gradients can be put on ``.grad`` for ``torch.optim``, and are
a pytree for optax. These are for where neither is at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tritonsnap.arrays import device_of, library_of_arguments, namespace_of
from tritonsnap.checks import check_instance, check_number
from tritonsnap.online.trees import leaves_of, map_tree, named_leaves


class SGDState(NamedTuple):
    """Plain gradient descent remembers nothing."""


class AdamState(NamedTuple):
    """Number of updates and the running moments of the gradient, like the parameters."""

    count: Any
    mean: Any
    square: Any


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent.

    Parameters
    ----------
    learning_rate
        Step size.
    clip_norm
        Scale a gradient whose norm over all leaves is larger down to this norm; None for never.
    """

    learning_rate: float
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "learning_rate", "clip_norm")

    def init(self, params: Any) -> SGDState:
        """State before the first update."""
        return SGDState()

    def update(self, gradients: Any, state: SGDState, params: Any) -> tuple[Any, SGDState]:
        """Parameters and state after one update; the arguments are left as they are."""
        _check_fit(params, gradients=gradients)
        gradients = clip_by_norm(gradients, self.clip_norm)
        return map_tree(lambda p, g: p - self.learning_rate * g, params, gradients), state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1).

    Parameters
    ----------
    learning_rate
        Step size.
    mean_decay, square_decay
        Decay of the running mean of the gradient and of its square, in [0, 1).
    epsilon
        Added to the root of the mean square.
    clip_norm
        Scale a gradient whose norm over all leaves is larger down to this norm; None for never.
    """

    learning_rate: float
    mean_decay: float = 0.9
    square_decay: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "learning_rate", "epsilon", "clip_norm")
        for name in ("mean_decay", "square_decay"):
            check_number(name, getattr(self, name), "[0, 1)", 0, 1)

    def init(self, params: Any) -> AdamState:
        """State before the first update."""
        first = next(iter(_check_arrays("params", params).values()))
        xp = namespace_of(first)
        # two trees of their own, so that jax.jit can take both buffers over
        mean, square = (map_tree(xp.zeros_like, params) for _ in range(2))
        return AdamState(xp.zeros((), dtype=xp.int32, device=device_of(first)), mean, square)

    def update(self, gradients: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        """Parameters and state after one update; the arguments are left as they are."""
        check_instance("state", state, AdamState)
        _check_fit(params, gradients=gradients, mean=state.mean, square=state.square)
        gradients = clip_by_norm(gradients, self.clip_norm)
        count = state.count + 1
        mean = map_tree(
            lambda m, g: self.mean_decay * m + (1 - self.mean_decay) * g, state.mean, gradients
        )
        square = map_tree(
            lambda s, g: self.square_decay * s + (1 - self.square_decay) * g * g,
            state.square,
            gradients,
        )

        def stepped(p: Any, m: Any, s: Any) -> Any:
            xp = namespace_of(p)
            steps = xp.astype(count, p.dtype)
            m = m / (1 - self.mean_decay**steps)
            s = s / (1 - self.square_decay**steps)
            return p - self.learning_rate * m / (xp.sqrt(s) + self.epsilon)

        return map_tree(stepped, params, mean, square), AdamState(count, mean, square)


Optimizer = SGD | Adam


def clip_by_norm(gradients: Any, limit: float | None) -> Any:
    """Scale a tree of gradients so that its norm over all leaves is at most `limit`."""
    if limit is None:
        return gradients
    leaves = leaves_of(gradients)
    xp = namespace_of(*leaves)
    norm = xp.sqrt(sum(xp.sum(leaf * leaf) for leaf in leaves))
    scale = limit / xp.clip(norm, limit, None)
    return map_tree(lambda leaf: leaf * xp.astype(scale, leaf.dtype), gradients)


def _check_positive(optimizer: object, *names: str) -> None:
    for name in names:
        value = getattr(optimizer, name)
        if value is not None or name != "clip_norm":
            check_number(name, value, "(0, inf)", 0, math.inf)


def _check_arrays(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their places, which must be arrays of numbers of one library."""
    leaves = dict(named_leaves(tree))
    if not leaves:
        raise ValueError(f"`{name}` must hold at least one array")
    library_of_arguments({f"{name}/{place}".rstrip("/"): leaf for place, leaf in leaves.items()})
    for place, leaf in leaves.items():
        if not namespace_of(leaf).isdtype(leaf.dtype, "numeric"):
            raise TypeError(f"`{name}/{place}` must hold numbers, got {leaf.dtype}")
    return leaves


def _check_fit(params: Any, **trees: Any) -> None:
    """Trees that do not fit would be broadcast, or leave a parameter as it is."""
    expected = _shapes("params", params)
    for name, tree in trees.items():
        found = _shapes(name, tree)
        for place in expected.keys() | found.keys():
            if found.get(place) != expected.get(place):
                raise ValueError(
                    f"`{name}` must have the leaves and shapes of `params`, got "
                    f"{found.get(place, 'nothing')} in place of "
                    f"{expected.get(place, 'nothing')} at {place!r}"
                )


def _shapes(name: str, tree: Any) -> dict[str, tuple[int, ...]]:
    return {place: tuple(leaf.shape) for place, leaf in _check_arrays(name, tree).items()}
