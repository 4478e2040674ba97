"""`Cell`: a recurrent network as linear maps and one elementwise function."""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tritonsnap.arrays import Library, library_of, library_of_arguments, namespace, namespace_of
from tritonsnap.checks import (
    check_choice,
    check_instance,
    check_integer,
    check_share,
    generator_of,
)
from tritonsnap.online.backend import derivative
from tritonsnap.online.linear_map import LinearMap
from tritonsnap.sparsity.pattern import SparsityPattern

Params = dict[str, Any]
Arrays = dict[str, Any]


class Prepared(NamedTuple):
    """What a step reads of the parameters, computed once per update.

    Attributes
    ----------
    kernels
        For each source the kernels of all maps that read it, side by side.
    """

    kernels: tuple[Any, ...]


class Linearization(NamedTuple):
    """A step's new state and its elementwise partial derivatives.

    Attributes
    ----------
    state : [..., rows]
        The new state.
    gains : [..., targets, rows]
        What each preactivation of a unit does to each of the unit's rows.
    own : [..., parts, parts, units] or None
        What each part of the old state does, directly, to each part of the new one.
    sources : [..., sources]
        What the parameters multiply: input, parts of the old state, one.
    """

    state: Any
    gains: Any
    own: Any
    sources: Any


@dataclass(frozen=True)
class Cell(ABC):
    """A recurrent cell: ``s_t = f(theta, s_{t-1}, x_t)`` with factored derivatives.

    The linear maps give preactivations ``a_q = sum_k u_k @ W_k``; an elementwise function turns
    them and the old state into the new state. Its partial derivatives are elementwise too, so the
    immediate Jacobian is ``g_q[i] * u_k[j]`` and the dynamics are
    ``sum_k diag(g_k) W_k^T + diag(g_0)``.

    Subclasses define `parts`, `targets`, `make_maps` and `activate`, and `partials` for NumPy and
    for speed: docs/own-cell.md shows how.

    Parameters
    ----------
    inputs, hidden
        Numbers of inputs and of units.
    density
        Share of the recurrent weights that exist, in (0, 1].
    input_density
        Share of the input weights that exist, in (0, 1].
    seed
        Draws the positions of sparse weights.
    patterns
        Patterns [inputs, units] of named weights, in place of drawn ones.

    Raises
    ------
    ValueError
        For sizes below 1, densities outside (0, 1], and patterns of unknown names or wrong shapes.
    TypeError
        For sizes that are no integers, and patterns that are no `SparsityPattern`.
    """

    inputs: int
    hidden: int
    density: float = 1.0
    input_density: float = 1.0
    seed: int = 0
    patterns: Mapping[str, SparsityPattern] | None = field(default=None, hash=False)

    parts: ClassVar[tuple[str, ...]] = ("hidden",)
    targets: ClassVar[tuple[str, ...]] = ()
    factored: ClassVar[bool] = True
    """Whether its immediate Jacobian is gains times sources; `GRU` (reset="before") has none."""

    def __post_init__(self) -> None:
        """Check the arguments and what the subclass says."""
        for name in ("inputs", "hidden"):
            check_integer(name, getattr(self, name), 1, 2**31)
        for name in ("density", "input_density"):
            check_share(name, getattr(self, name))
        check_integer("seed", self.seed)
        self._check_maps()
        self._check_activate()
        shapes = {linear.name: linear.shape for linear in self.maps if linear.source != "one"}
        for name, pattern in (self.patterns or {}).items():
            if name not in shapes:
                raise ValueError(f"`patterns` names {name!r}; the weights are {sorted(shapes)}")
            check_instance(f"patterns[{name!r}]", pattern, SparsityPattern)
            if pattern.shape != shapes[name]:
                raise ValueError(
                    f"`patterns[{name!r}]` must have shape {shapes[name]} (inputs, units), "
                    f"got {pattern.shape}"
                )

    # ---- what a subclass says ------------------------------------------------------------------

    @abstractmethod
    def make_maps(self) -> list[LinearMap]:
        """The cell's linear maps, those of one target next to each other."""

    @abstractmethod
    def activate(self, xp: Any, a: Arrays, state: Arrays) -> Arrays:
        """The new parts of the state from preactivations ``a`` and old parts, all [..., units]."""

    def partials(
        self, xp: Any, a: Arrays, state: Arrays, new: Arrays
    ) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        """The partial derivatives of `activate`; by default one JVP for each of its arguments.

        Returns
        -------
        gains
            For each target the derivative of each part that depends on it.
        own
            Derivatives of new parts in old ones by ``(new part, old part)``, where there are any.

        Raises
        ------
        TypeError
            By default, if the arrays are NumPy's, which cannot differentiate `activate`.
        """
        if library_of(*new.values()) == "numpy":
            raise TypeError(
                f"NumPy cannot differentiate `{type(self).__name__}.activate`: "
                "add the method `partials`, or use torch or JAX"
            )

        def from_target(target: str) -> Callable[[Any], Arrays]:
            return lambda at: self.activate(xp, {**a, target: at}, state)

        def from_part(part: str) -> Callable[[Any], Arrays]:
            return lambda at: self.activate(xp, a, {**state, part: at})

        gains = {target: derivative(from_target(target), at) for target, at in a.items()}
        own: dict[tuple[str, str], Any] = {}
        for origin, at in state.items():
            changed = derivative(from_part(origin), at)
            own |= {(part, origin): value for part, value in changed.items()}
        return gains, own

    def draw(self, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """First values [p] of every map's parameters, in canonical order.

        Weights are normal with variance 1 / fan-in (of the existing weights), biases zero.
        """
        params = {}
        for linear in self.maps:
            fan_in = np.bincount(linear.units, minlength=self.hidden)[linear.units]
            values = generator.normal(size=linear.num_parameters) / np.sqrt(fan_in)
            params[linear.name] = np.zeros_like(values) if linear.source == "one" else values
        return params

    # ---- structure -----------------------------------------------------------------------------

    @cached_property
    def maps(self) -> tuple[LinearMap, ...]:
        """The linear maps, in the order of the parameters."""
        return tuple(self.make_maps())

    @property
    def rows(self) -> int:
        """Rows of the state: parts times units."""
        return len(self.parts) * self.hidden

    @property
    def output(self) -> slice:
        """The rows of the state that the layer above reads: the part "hidden", or all of it."""
        if "hidden" not in self.parts:
            return slice(0, self.rows)
        begin = self.parts.index("hidden") * self.hidden
        return slice(begin, begin + self.hidden)

    @property
    def outputs(self) -> int:
        """Numbers that the layer above reads."""
        rows = self.output
        return rows.stop - rows.start

    @property
    def num_parameters(self) -> int:
        """Parameters of all maps."""
        return sum(linear.num_parameters for linear in self.maps)

    @cached_property
    def sources(self) -> dict[str, tuple[int, int]]:
        """Where the numbers of each source begin among all sources, and how many they are."""
        sizes = {"input": self.inputs, **dict.fromkeys(self.parts, self.hidden), "one": 1}
        begin, places = 0, {}
        for name, size in sizes.items():
            places[name] = (begin, size)
            begin += size
        return places

    @property
    def num_sources(self) -> int:
        """Numbers in all sources together."""
        return sum(size for _, size in self.sources.values())

    @cached_property
    def own_parts(self) -> tuple[tuple[str, str], ...]:
        """Which parts of the new state depend directly on which of the old one."""
        if self._partials_are_derived:
            return tuple((to, origin) for to in self.parts for origin in self.parts)
        return tuple(self._partials_at_zero()[1])

    @cached_property
    def gain_parts(self) -> dict[str, tuple[str, ...]]:
        """Which parts of the new state depend on each target."""
        if self._partials_are_derived:
            return dict.fromkeys(self.targets, self.parts)
        return {target: tuple(parts) for target, parts in self._partials_at_zero()[0].items()}

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["patterns"] = sorted((n, p.digest) for n, p in (self.patterns or {}).items())
        content = f"{type(self).__module__}.{type(self).__qualname__}{values!r}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def recurrent_maps(self) -> list[LinearMap]:
        """The maps that read a part of the state."""
        return [linear for linear in self.maps if linear.source in self.parts]

    def weight(self, name: str, source: str, target: str) -> LinearMap:
        """The weights from "input" or a part of the state to a target, dense or sparse.

        Where the cell has them sparse, their positions are those in `patterns`, or drawn: each
        name has its own draw.
        """
        of_input = source == "input"
        shape = (self.inputs if of_input else self.hidden, self.hidden)
        density = self.input_density if of_input else self.density
        pattern = (self.patterns or {}).get(name)
        if pattern is None and density < 1:
            draw = [self.seed, zlib.crc32(name.encode())]
            pattern = SparsityPattern.random(shape, density, np.random.default_rng(draw))
        return LinearMap(name, source, target, shape, pattern)

    def bias(self, name: str, target: str) -> LinearMap:
        """A bias, or any other parameter of each unit that `activate` reads as a target."""
        return LinearMap(name, "one", target, (1, self.hidden))

    # ---- values --------------------------------------------------------------------------------

    def init(self, rng: Any = 0, like: Library = "numpy", dtype: str = "float32") -> Params:
        """Draw parameters as `draw` says.

        Parameters
        ----------
        rng
            A seed, a NumPy `Generator`, or a JAX key.
        like
            The array library: "numpy", "torch" or "jax".
        dtype
            "float32" or "float64".

        Returns
        -------
        dict
            One array for each map, in order: [inputs, units], [units] for a bias, or [nnz] where
            the weights are sparse.
        """
        check_dtype(dtype)
        generator = generator_from(rng)
        xp = namespace(like)
        values = self.draw(generator)
        return {
            linear.name: xp.asarray(np.ascontiguousarray(linear.shaped(values[linear.name]), dtype))
            for linear in self.maps
        }

    def prepare(self, params: Params) -> Prepared:
        """What `step` reads of the parameters; compute it once per update."""
        self.check_params(params)
        xp = namespace_of(*params.values())
        kernels = []
        for source in self.sources:
            dense = [
                linear.dense(params[linear.name]) for linear in self.maps if linear.source == source
            ]
            if dense:
                kernels.append(dense[0] if len(dense) == 1 else xp.concat(dense, axis=1))
        return Prepared(tuple(kernels))

    def step(self, ready: Prepared | Params, state: Any, x: Any) -> Any:
        """The new state [..., rows] from the old one and an input [..., inputs]."""
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        xp = namespace_of(state, x)
        a, parts, _ = self._preactivations(xp, ready, state, x)
        return self._joined(xp, self.activate(xp, a, parts))

    def linearize(self, ready: Prepared, state: Any, x: Any) -> Linearization:
        """The new state and the elementwise partial derivatives of the step."""
        xp = namespace_of(state, x)
        a, parts, sources = self._preactivations(xp, ready, state, x)
        new = self.activate(xp, a, parts)
        gains, own = self.partials(xp, a, parts, new)
        zero = xp.zeros_like(new[self.parts[0]])

        def filled(value: Any) -> Any:
            return zero if value is None else xp.broadcast_to(value, zero.shape)

        stacked = [
            self._joined(xp, {part: filled(gains[target].get(part)) for part in self.parts})
            for target in self.targets
        ]
        direct = None
        if own:
            direct = xp.stack(
                [
                    xp.stack([filled(own.get((to, origin))) for origin in self.parts], axis=-2)
                    for to in self.parts
                ],
                axis=-3,
            )
        return Linearization(
            self._joined(xp, new), xp.stack(stacked, axis=-2), direct, xp.concat(sources, axis=-1)
        )

    def shaped(self, flat: Any) -> Params:
        """Numbers [parameters] in canonical order, map by map, in the shapes of the parameters."""
        params, begin = {}, 0
        for linear in self.maps:
            end = begin + linear.num_parameters
            params[linear.name] = linear.shaped(flat[..., begin:end])
            begin = end
        return params

    def flat(self, params: Params) -> Any:
        """The inverse of `shaped`."""
        parts = [linear.flat(params[linear.name]) for linear in self.maps]
        return namespace_of(parts[0]).concat(parts, axis=-1)

    def check_params(self, params: Params) -> None:
        """Raise a `ValueError` that names the parameter unless all are there in their shapes."""
        check_shapes(params, {linear.name: linear.parameter_shape for linear in self.maps})

    def check_input(self, name: str, x: Any) -> None:
        """Raise a `ValueError` that names `name` unless `x` is [..., inputs]."""
        if x.ndim == 0 or x.shape[-1] != self.inputs:
            raise ValueError(f"`{name}` must have shape [..., {self.inputs}], got {list(x.shape)}")

    def _check_maps(self) -> None:
        where = f"`{type(self).__name__}.make_maps`"
        names = [linear.name for linear in self.maps]
        if len(set(names)) < len(names):
            raise ValueError(f"{where} gives a name twice: {names}")
        for linear in self.maps:
            if linear.source not in self.sources:
                raise ValueError(
                    f"{where}: the source of {linear.name!r} must be one of "
                    f"{tuple(self.sources)}, got {linear.source!r}"
                )
            if linear.target not in self.targets:
                raise ValueError(
                    f"{where}: the target of {linear.name!r} must be one of {self.targets}, "
                    f"got {linear.target!r}"
                )
        missing = set(self.targets) - {linear.target for linear in self.maps}
        if missing:
            raise ValueError(f"{where} feeds nothing to the targets {sorted(missing)}")

    def _check_activate(self) -> None:
        """Look with NumPy, where it can: whatever mixes units would give wrong gradients."""
        rng = np.random.default_rng(0)
        arguments = [
            {name: np.repeat(rng.normal(size=(1, self.hidden)), 2, axis=0) for name in names}
            for names in (self.targets, self.parts)
        ]
        for array in (array for group in arguments for array in group.values()):
            array[1, 0] += 1.0  # the second row differs in the first unit alone
        try:
            with np.errstate(all="ignore"):
                new = self.activate(np, *arguments)
        except Exception:  # it may be one for torch or JAX only
            return
        where = f"`{type(self).__name__}.activate`"
        if not isinstance(new, dict) or set(new) != set(self.parts):
            found = sorted(new) if isinstance(new, dict) else type(new).__name__
            raise ValueError(f"{where} must return a dict of the parts {self.parts}, got {found}")
        for part, value in new.items():
            rows = np.broadcast_to(value, (2, self.hidden))
            if not np.allclose(rows[0, 1:], rows[1, 1:], rtol=1e-9, atol=0, equal_nan=True):
                raise ValueError(
                    f"{where} must be elementwise: a unit of {part!r} depends on another unit; "
                    "what mixes units belongs into a map"
                )

    @property
    def _partials_are_derived(self) -> bool:
        return type(self).partials is Cell.partials

    def _partials_at_zero(self) -> tuple[dict[str, Arrays], dict[tuple[str, str], Any]]:
        a = {target: np.zeros(1) for target in self.targets}
        state = {part: np.zeros(1) for part in self.parts}
        with np.errstate(all="ignore"):
            return self.partials(np, a, state, self.activate(np, a, state))

    def _preactivations(
        self, xp: Any, ready: Prepared, state: Any, x: Any
    ) -> tuple[Arrays, Arrays, list[Any]]:
        parts = {
            part: state[..., number * self.hidden : (number + 1) * self.hidden]
            for number, part in enumerate(self.parts)
        }
        one = xp.ones_like(state[..., :1])
        values = {"input": x, **parts, "one": one}
        kernels = iter(ready.kernels)
        a: Arrays = {}
        for source in self.sources:
            maps = [linear for linear in self.maps if linear.source == source]
            if not maps:
                continue
            kernel = next(kernels)
            together = kernel[0] if source == "one" else values[source] @ kernel
            for number, linear in enumerate(maps):
                part = together[..., number * self.hidden : (number + 1) * self.hidden]
                known = a.get(linear.target)
                a[linear.target] = part if known is None else known + part
        return a, parts, list(values.values())

    def _joined(self, xp: Any, parts: Arrays) -> Any:
        if len(self.parts) == 1:
            return parts[self.parts[0]]
        return xp.concat([parts[part] for part in self.parts], axis=-1)


def check_shapes(params: Params, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an error that names the parameter unless all are there in the expected shapes."""
    check_instance("params", params, dict)
    if set(params) != set(expected):
        raise ValueError(f"`params` must have {sorted(expected)}, got {sorted(params)}")
    library_of_arguments({f"params[{name!r}]": params[name] for name in expected})
    for name, shape in expected.items():
        if tuple(params[name].shape) != shape:
            raise ValueError(
                f"`params[{name!r}]` must have shape {shape}, got {tuple(params[name].shape)}"
            )


def check_dtype(dtype: str) -> None:
    """Raise a `ValueError` unless `dtype` is one that parameters and carries may have."""
    check_choice("dtype", dtype, ("float32", "float64"))


def generator_from(rng: Any, name: str = "rng") -> np.random.Generator:
    """A generator from a seed, a NumPy `Generator` or a JAX key; errors name the argument."""
    if hasattr(rng, "dtype") and library_of(rng) == "jax":
        from jax import dtypes, random

        typed = dtypes.issubdtype(rng.dtype, dtypes.prng_key)  # type: ignore[attr-defined]
        key = random.key_data(rng) if typed else rng
        return np.random.default_rng(np.asarray(key).ravel().tolist())
    return generator_of(name, rng)
