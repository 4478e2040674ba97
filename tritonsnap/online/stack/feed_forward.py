"""Layers without memory that stand between the recurrent layers of a `Stack`."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import namespace_of
from tritonsnap.checks import check_choice, check_instance, check_integer, check_number, check_share
from tritonsnap.online.backend import index_like
from tritonsnap.online.cell import Params
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.sparsity.pattern import SparsityPattern

Joint = Literal["concatenate", "sum"]


@dataclass(frozen=True)
class FeedForward(ABC):
    """A map without memory, ``y = f(theta, x)``, of which every parameter feeds one output.

    Subclasses are frozen dataclasses with `inputs` and `outputs`; they define `make_maps`, `draw`,
    `apply`, `pull_back`, `gradients`, `jacobian` and `immediate`. Leading axes are batch.
    """

    inputs: int
    outputs: int

    @abstractmethod
    def make_maps(self) -> list[LinearMap]:
        """The parameters: their names, shapes and the output that each one feeds."""

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Initial parameters by name, in their shapes."""

    @abstractmethod
    def apply(self, params: Params, x: Any) -> Any:
        """The output [..., outputs] of an input [..., inputs]."""

    @abstractmethod
    def pull_back(self, params: Params, x: Any, delta: Any) -> Any:
        """The gradient in the input [..., inputs] from that in the output [..., outputs]."""

    @abstractmethod
    def gradients(self, params: Params, x: Any, delta: Any) -> Params:
        """The gradients in the parameters, summed over all leading axes."""

    @abstractmethod
    def jacobian(self, params: Params, x: Any) -> Any:
        """``dy/dx`` [outputs, inputs], with leading axes where it depends on x."""

    @abstractmethod
    def immediate(self, params: Params, x: Any) -> Any:
        """[..., p]: the derivative of the output that each parameter feeds, in canonical order."""

    @property
    def jacobian_pattern(self) -> SparsityPattern:
        """Where ``dy/dx`` may be nonzero: everywhere, unless a subclass knows better."""
        return SparsityPattern.full((self.outputs, self.inputs))

    @cached_property
    def maps(self) -> tuple[LinearMap, ...]:
        """The parameters, in order."""
        return tuple(self.make_maps())

    @property
    def num_parameters(self) -> int:
        """Parameters of all maps."""
        return sum(linear.num_parameters for linear in self.maps)

    @property
    def immediate_pattern(self) -> SparsityPattern:
        """Where ``dy/dtheta`` may be nonzero [outputs, p]: one entry in each column."""
        units = np.concatenate([np.empty(0, np.int64), *(linear.units for linear in self.maps)])
        return SparsityPattern.from_coo(units, np.arange(len(units)), (self.outputs, len(units)))

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        values = [getattr(self, item.name) for item in fields(self)]
        content = [v.digest if isinstance(v, SparsityPattern) else v for v in values]
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return hashlib.blake2b(f"{name}{content!r}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Linear(FeedForward):
    """A readout that the next layer reads: ``y = x @ kernel + bias``.

    Parameters: ``kernel`` [inputs, outputs], or [nnz] where it is sparse, and ``bias`` [outputs].

    Parameters
    ----------
    inputs, outputs
        Their numbers.
    density
        Share of the weights that exist, in (0, 1].
    seed
        Draws the positions of sparse weights.
    pattern : pattern [inputs, outputs], optional
        The positions of the weights, in place of drawn ones.

    Raises
    ------
    ValueError
        For sizes below 1, a density outside (0, 1] and a pattern of a wrong shape.
    TypeError
        For sizes that are no integers, and a pattern that is no `SparsityPattern`.
    """

    density: float = 1.0
    seed: int = 0
    pattern: SparsityPattern | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        check_integer("inputs", self.inputs, 1, 2**31)
        check_integer("outputs", self.outputs, 1, 2**31)
        check_share("density", self.density)
        check_integer("seed", self.seed)
        if self.pattern is None:
            return
        check_instance("pattern", self.pattern, SparsityPattern)
        if self.pattern.shape != (self.inputs, self.outputs):
            raise ValueError(
                f"`pattern` must have shape {(self.inputs, self.outputs)} (inputs, outputs), "
                f"got {self.pattern.shape}"
            )

    def make_maps(self) -> list[LinearMap]:
        """The kernel and the bias."""
        shape = (self.inputs, self.outputs)
        pattern = self.pattern
        if pattern is None and self.density < 1:
            pattern = SparsityPattern.random(shape, self.density, np.random.default_rng(self.seed))
        return [
            LinearMap("kernel", "input", "output", shape, pattern),
            LinearMap("bias", "one", "output", (1, self.outputs)),
        ]

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """A normal kernel with variance 1 / fan-in (of the existing weights), a zero bias."""
        kernel = self.maps[0]
        fan_in = np.bincount(kernel.units, minlength=self.outputs)[kernel.units]
        values = generator.normal(size=kernel.num_parameters) / np.sqrt(fan_in)
        return {"kernel": kernel.shaped(values), "bias": np.zeros(self.outputs)}

    def apply(self, params: Params, x: Any) -> Any:
        """``x @ kernel + bias``."""
        return x @ self.maps[0].dense(params["kernel"]) + params["bias"]

    def pull_back(self, params: Params, x: Any, delta: Any) -> Any:
        """``delta @ kernel.T``."""
        return delta @ self.maps[0].dense(params["kernel"]).T

    def gradients(self, params: Params, x: Any, delta: Any) -> Params:
        """``x.T @ delta`` where there are weights, and the sum of delta."""
        delta = delta.reshape(-1, self.outputs)
        dense = x.reshape(-1, self.inputs).T @ delta
        kernel = self.maps[0]
        if kernel.pattern is not None:
            dense = dense.reshape(-1)[index_like(dense, kernel.place)]
        return {"kernel": dense, "bias": delta.sum(axis=0)}

    def jacobian(self, params: Params, x: Any) -> Any:
        """The transposed kernel."""
        return self.maps[0].dense(params["kernel"]).T

    def immediate(self, params: Params, x: Any) -> Any:
        """The input of each weight, and one for each bias."""
        xp = namespace_of(x)
        kernel = self.maps[0]
        if kernel.pattern is None:
            each = xp.broadcast_to(x[..., None, :], (*x.shape[:-1], self.outputs, self.inputs))
            read = each.reshape(*x.shape[:-1], self.outputs * self.inputs)
        else:
            read = x[..., index_like(x, kernel.place // self.outputs)]
        ones = xp.ones_like(x[..., :1])
        return xp.concat([read, xp.broadcast_to(ones, (*x.shape[:-1], self.outputs))], axis=-1)

    @property
    def jacobian_pattern(self) -> SparsityPattern:
        """The transposed pattern of the kernel."""
        return self.maps[0].support.transpose()


@dataclass(frozen=True, init=False)
class LayerNorm(FeedForward):
    """``y = gain * (x - mean) / sqrt(variance + epsilon) + bias``, over the units of each row.

    Parameters: ``gain`` [units], from ones on, and ``bias`` [units].

    Parameters
    ----------
    units
        Their number.
    epsilon
        Added to the variance.

    Raises
    ------
    ValueError, TypeError
        If `units` is no integer of at least 1, or `epsilon` is not positive.

    References
    ----------
    Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450, 2016.
    """

    epsilon: float = 1e-5

    def __init__(self, units: int, epsilon: float = 1e-5) -> None:
        check_integer("units", units, 1, 2**31)
        check_number("epsilon", epsilon, "(0, inf)", 0, float("inf"))
        for name, value in (("inputs", units), ("outputs", units), ("epsilon", epsilon)):
            object.__setattr__(self, name, value)

    def make_maps(self) -> list[LinearMap]:
        """Gain and bias: one number a unit."""
        return [LinearMap(name, "one", "output", (1, self.outputs)) for name in ("gain", "bias")]

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Ones and zeros."""
        return {"gain": np.ones(self.outputs), "bias": np.zeros(self.outputs)}

    def apply(self, params: Params, x: Any) -> Any:
        """The normalised input, scaled and shifted."""
        return params["gain"] * self._normalised(x)[0] + params["bias"]

    def pull_back(self, params: Params, x: Any, delta: Any) -> Any:
        """The Jacobian is symmetric but for the gain."""
        normal, scale = self._normalised(x)
        through = params["gain"] * delta
        along = (normal * through).mean(axis=-1)[..., None]
        return (through - through.mean(axis=-1)[..., None] - normal * along) / scale

    def gradients(self, params: Params, x: Any, delta: Any) -> Params:
        """Delta times the normalised input, and delta."""
        gain = self._normalised(x)[0] * delta
        return {
            "gain": gain.reshape(-1, self.outputs).sum(axis=0),
            "bias": delta.reshape(-1, self.outputs).sum(axis=0),
        }

    def jacobian(self, params: Params, x: Any) -> Any:
        """``gain[i] (delta_ij - 1/n - normal_i normal_j / n) / scale``."""
        xp = namespace_of(x)
        normal, scale = self._normalised(x)
        centred = xp.eye(self.outputs, dtype=x.dtype) - 1 / self.outputs
        outer = normal[..., :, None] * normal[..., None, :] / self.outputs
        return params["gain"][:, None] * (centred - outer) / scale[..., None]

    def immediate(self, params: Params, x: Any) -> Any:
        """The normalised input for the gain, ones for the bias."""
        xp = namespace_of(x)
        normal = self._normalised(x)[0]
        return xp.concat([normal, xp.ones_like(normal)], axis=-1)

    def _normalised(self, x: Any) -> tuple[Any, Any]:
        """The input with mean 0 and variance 1, and what it was divided by [..., 1]."""
        xp = namespace_of(x)
        centred = x - x.mean(axis=-1)[..., None]
        scale = xp.sqrt((centred**2).mean(axis=-1) + self.epsilon)[..., None]
        return centred / scale, scale


@dataclass(frozen=True)
class Skip:
    """A connection that leaves layers out: the layer before, joined with an earlier one.

    Parameters
    ----------
    source
        The place of the earlier layer in the stack, or "input" for the stack's input.
    how
        ``"concatenate"``: the layer before, then the earlier one. ``"sum"``: a residual
        connection; both have equal sizes.

    Raises
    ------
    ValueError
        If `source` is negative or no layer's place, or `how` is unknown.
    """

    source: int | Literal["input"]
    how: Joint = "concatenate"

    def __post_init__(self) -> None:
        is_place = isinstance(self.source, int) and not isinstance(self.source, bool)
        if self.source != "input" and not (is_place and int(self.source) >= 0):
            raise ValueError(f'`source` must be "input" or a layer\'s place, got {self.source!r}')
        check_choice("how", self.how, get_args(Joint))

    @property
    def digest(self) -> str:
        """A description of the content, equal in every process."""
        return repr(self)

    def outputs(self, before: int, earlier: int) -> int:
        """Numbers that come out where so many come in."""
        return before + earlier if self.how == "concatenate" else before

    def join(self, before: Any, earlier: Any) -> Any:
        """The output."""
        if self.how == "sum":
            return before + earlier
        return namespace_of(before).concat([before, earlier], axis=-1)

    def pull_back(self, delta: Any, before: int) -> tuple[Any, Any]:
        """The gradients in the layer before, of that size, and in the earlier one."""
        if self.how == "sum":
            return delta, delta
        return delta[..., :before], delta[..., before:]
