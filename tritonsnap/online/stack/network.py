"""`Stack`: recurrent layers one above the other, and what stands between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from tritonsnap.arrays import Library, namespace, namespace_of
from tritonsnap.checks import check_instance
from tritonsnap.online.cell import (
    Cell,
    Linearization,
    Params,
    check_dtype,
    check_shapes,
    generator_from,
)
from tritonsnap.online.stack.feed_forward import FeedForward, Skip
from tritonsnap.online.stack.inputs import input_adjoint, input_kernel, input_maps

Layer = Cell | FeedForward | Skip


class PreparedStack(NamedTuple):
    """What a step reads of the parameters, for each layer: see `Stack.prepare`."""

    layers: tuple[Any, ...]


@dataclass(frozen=True)
class Stack:
    """A network of several recurrent layers: give it to `SnAp`, `RTRL` or `BPTT` as their cell.

    Every layer reads what the one before it gives: a cell its new state (of several parts, the
    part "hidden"). What the last layer gives is the network's output, which a loss or a readout
    reads. Parameters have the place of their layer in front of their names: ``"0.recurrent"``.

    Parameters
    ----------
    layers
        Cells, feed-forward layers (`Linear`, `LayerNorm`, or one's own `FeedForward`) and `Skip`
        connections, from the input on.
    exact
        How `SnAp` and `RTRL` treat the layers. False: each layer has an influence of its own, and
        the gradient of a loss goes back through the depth at the time of the loss only. It is the
        gradient of a network in which the part of a layer's state that goes on in time passes no
        gradient to the layer's input; what stands between the layers is trained through the
        present alone. True: the layers have influences of all parameters below them as well; then
        `RTRL` is exact, and SnAp-n keeps what becomes nonzero within n steps of the whole network.
        `BPTT` is exact in either case.

    Attributes
    ----------
    inputs, outputs
        Numbers of the network's inputs and outputs.
    sizes
        Sizes of the signals: the input, then what each layer gives.
    rows
        Rows of the network's state: those of all cells, and the output if the last layer is none.
    output : slice
        The rows of the state that are the output.

    Raises
    ------
    ValueError
        If there is no cell, sizes do not fit each other, or a `Skip` reads no earlier layer.
    TypeError
        If a layer is none of the above.

    Examples
    --------
    >>> from tritonsnap import GRU, Linear, Skip
    >>> layers = [GRU(inputs=8, hidden=32), Linear(32, 16), GRU(inputs=16, hidden=32), Skip(0)]
    >>> stack = Stack(layers)
    >>> stack.outputs
    64
    """

    layers: Sequence[Layer]
    exact: bool = False
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.layers, (list, tuple)):
            raise TypeError(f"`layers` must be a list or a tuple, got {type(self.layers).__name__}")
        object.__setattr__(self, "layers", tuple(self.layers))
        check_instance("exact", self.exact, bool)
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, (Cell, FeedForward, Skip)):
                raise TypeError(
                    f"`layers[{number}]` must be a Cell, a FeedForward or a Skip, "
                    f"got {type(layer).__name__}"
                )
            if isinstance(layer, Cell) and not layer.factored:
                raise TypeError(
                    f"`layers[{number}]` must be in factored form, got {type(layer).__name__}: "
                    "take it alone, or another kind"
                )
        if not any(isinstance(layer, Cell) for layer in self.layers):
            raise ValueError(f"`layers` must hold at least one Cell, got {list(self.layers)}")
        if isinstance(self.layers[0], Skip):
            raise ValueError("`layers[0]` must not be a Skip: nothing comes before it")
        object.__setattr__(self, "sizes", self._signal_sizes())

    # ---- structure -----------------------------------------------------------------------------

    def _signal_sizes(self) -> tuple[int, ...]:
        sizes: list[int] = []
        for number, layer in enumerate(self.layers):
            if isinstance(layer, Skip):
                earlier = self.sources(number)[1]
                if earlier >= number:
                    raise ValueError(
                        f"`layers[{number}]` must read a layer before layers[{number - 1}], "
                        f"got {layer.source}"
                    )
                if layer.how == "sum" and sizes[earlier] != sizes[-1]:
                    raise ValueError(
                        f"`layers[{number}]` must add signals of equal sizes, "
                        f"got {sizes[-1]} and {sizes[earlier]}"
                    )
                sizes.append(layer.outputs(sizes[-1], sizes[earlier]))
                continue
            if not sizes:
                sizes.append(layer.inputs)
            if layer.inputs != sizes[-1]:
                raise ValueError(
                    f"`layers[{number}]` must have the {sizes[-1]} inputs that layers[{number - 1}]"
                    f" gives, got {layer.inputs}"
                )
            sizes.append(layer.outputs)
        return tuple(sizes)

    def sources(self, number: int) -> tuple[int, ...]:
        """The signals that a layer reads: 0 is the input, n + 1 is what layer n gives."""
        layer = self.layers[number]
        if not isinstance(layer, Skip):
            return (number,)
        return (number, 0 if layer.source == "input" else int(layer.source) + 1)

    @property
    def inputs(self) -> int:
        """Numbers in the input."""
        return self.sizes[0]

    @property
    def outputs(self) -> int:
        """Numbers in the output."""
        return self.sizes[-1]

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """The rows of the state that belong to each layer; none for what has no memory."""
        sizes = [layer.rows if isinstance(layer, Cell) else 0 for layer in self.layers]
        ends = list(accumulate(sizes))
        return tuple(slice(end - size, end) for end, size in zip(ends, sizes, strict=True))

    @property
    def memory(self) -> int:
        """Rows of all cells."""
        return self.places[-1].stop

    @property
    def rows(self) -> int:
        """Rows of the state."""
        return self.memory + (0 if isinstance(self.layers[-1], Cell) else self.outputs)

    @property
    def output(self) -> slice:
        """The rows of the state that are the output."""
        last = self.layers[-1]
        begin = self.places[-1].start + last.output.start if isinstance(last, Cell) else self.memory
        return slice(begin, begin + self.outputs)

    @property
    def columns(self) -> tuple[slice, ...]:
        """Where the parameters of each layer lie among all parameters."""
        sizes = [0 if isinstance(layer, Skip) else layer.num_parameters for layer in self.layers]
        ends = list(accumulate(sizes))
        return tuple(slice(end - size, end) for end, size in zip(ends, sizes, strict=True))

    @property
    def num_parameters(self) -> int:
        """Parameters of all layers."""
        return self.columns[-1].stop

    @cached_property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter by name."""
        return self.joined(
            [
                {}
                if isinstance(layer, Skip)
                else {linear.name: linear.parameter_shape for linear in layer.maps}
                for layer in self.layers
            ]
        )

    @cached_property
    def digest(self) -> str:
        """A hash of the content, equal in every process."""
        content = f"{self.exact} {[layer.digest for layer in self.layers]}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    # ---- parameters ----------------------------------------------------------------------------

    def init(self, rng: Any = 0, like: Library = "numpy", dtype: str = "float32") -> Params:
        """Draw the parameters of all layers; see `Cell.init`."""
        check_dtype(dtype)
        generator = generator_from(rng)
        xp = namespace(like)
        by_layer: list[Params] = []
        for layer in self.layers:
            if isinstance(layer, Cell):
                by_layer.append(layer.init(generator, like, dtype))
            elif isinstance(layer, FeedForward):
                drawn = layer.draw(generator)
                by_layer.append(
                    {n: xp.asarray(np.ascontiguousarray(v, dtype)) for n, v in drawn.items()}
                )
            else:
                by_layer.append({})
        return self.joined(by_layer)

    def joined(self, by_layer: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One dict from one for each layer."""
        return {
            f"{number}.{name}": value
            for number, params in enumerate(by_layer)
            for name, value in params.items()
        }

    def split(self, params: Params) -> tuple[Params, ...]:
        """The inverse of `joined`."""
        prefixes = (f"{number}." for number in range(len(self.layers)))
        return tuple(
            {n.removeprefix(prefix): v for n, v in params.items() if n.startswith(prefix)}
            for prefix in prefixes
        )

    def shaped(self, flat: Any, stop: int) -> list[Params]:
        """The parameters of each layer below layer `stop`, from all of them in one ``[..., p]``."""
        by_layer: list[Params] = []
        for layer, place in zip(self.layers[:stop], self.columns[:stop], strict=True):
            own, begin = {}, place.start
            for linear in () if isinstance(layer, Skip) else layer.maps:
                own[linear.name] = linear.shaped(flat[..., begin : begin + linear.num_parameters])
                begin += linear.num_parameters
            by_layer.append(own)
        return by_layer

    def check_params(self, params: Params) -> None:
        """Raise a `ValueError` that names the parameter unless all are there in their shapes."""
        check_shapes(params, self.parameter_shapes)

    # ---- values --------------------------------------------------------------------------------

    def prepare(self, params: Params) -> PreparedStack:
        """What `step` reads of the parameters; compute it once per update."""
        self.check_params(params)
        return PreparedStack(
            tuple(
                layer.prepare(own) if isinstance(layer, Cell) else own
                for layer, own in zip(self.layers, self.split(params), strict=True)
            )
        )

    def step(self, ready: PreparedStack | Params, state: Any, x: Any) -> Any:
        """The new state [..., rows] from the old one and an input [..., inputs]."""
        ready = self.prepare(ready) if isinstance(ready, dict) else ready
        return self.linearize(ready.layers, state, x)[0]

    def linearize(self, ready: tuple[Any, ...], state: Any, x: Any) -> tuple[Any, tuple[Any, ...]]:
        """The new state, and for each layer what its derivatives are made of.

        Returns
        -------
        state : [..., rows]
        moments
            For a cell its `Linearization`, for all else what the layer before gave.
        """
        signals, states, moments = [x], [], []
        for number, (layer, own) in enumerate(zip(self.layers, ready, strict=True)):
            below, *earlier = (signals[source] for source in self.sources(number))
            moment = below
            if isinstance(layer, Cell):
                moment = layer.linearize(own, state[..., self.places[number]], below)
                states.append(moment.state)
                signals.append(moment.state[..., layer.output])
            elif isinstance(layer, FeedForward):
                signals.append(layer.apply(own, below))
            else:
                signals.append(layer.join(below, *earlier))
            moments.append(moment)
        if not isinstance(self.layers[-1], Cell):
            states.append(signals[-1])
        joined = states[0] if len(states) == 1 else namespace_of(state).concat(states, axis=-1)
        return joined, tuple(moments)

    # ---- the way down --------------------------------------------------------------------------

    def weights_down(self, ready: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `descend` reads of the parameters: of a cell the kernels that read its input."""
        return tuple(
            input_kernel(layer, own) if isinstance(layer, Cell) else own
            for layer, own in zip(self.layers, ready, strict=True)
        )

    def trace(self, moments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `descend` reads of a step: a cell's gains, else what the layer before gave."""
        return tuple(
            moment.gains if isinstance(moment, Linearization) else moment for moment in moments
        )

    def zeros_down(self, batch: int, xp: Any, dtype: Any) -> tuple[Any, Any]:
        """What `trace` and `weights_down` give, in zeros."""
        trace, weights = [], []
        for layer, size in zip(self.layers, self.sizes, strict=False):
            own: Any = {}
            shape: tuple[int, ...] = (batch, size)
            if isinstance(layer, Cell):
                shape = (batch, len(layer.targets), layer.rows)
                width = len(input_maps(layer)) * layer.hidden
                own = xp.zeros((layer.inputs, width), dtype=dtype)
            elif isinstance(layer, FeedForward):
                own = {m.name: xp.zeros(m.parameter_shape, dtype=dtype) for m in layer.maps}
            trace.append(xp.zeros(shape, dtype=dtype))
            weights.append(own)
        return tuple(trace), tuple(weights)

    def descend(
        self,
        weights: tuple[Any, ...],
        trace: tuple[Any, ...],
        delta: Any,
        *,
        through_cells: bool = True,
        futures: Sequence[Any] | None = None,
    ) -> tuple[Any, ...]:
        """Take the gradient in the output down through the layers, at one point in time.

        Parameters
        ----------
        weights, trace
            From `weights_down` and `trace`.
        delta : [..., outputs]
            The gradient in the output; None for zero.
        through_cells
            Whether it goes on from a cell's state to the cell's input.
        futures : for each layer [..., rows] or None, optional
            Gradients in the states of cells that come from elsewhere: from later times.

        Returns
        -------
        tuple
            For each layer the gradient in what it gives; for a cell in its state [..., rows]; None
            where there is no path.
        """
        arriving: list[Any] = [None] * (len(self.layers) + 1)
        arriving[-1] = delta
        deltas: list[Any] = []
        for number in reversed(range(len(self.layers))):
            layer, own, moment = self.layers[number], weights[number], trace[number]
            at = arriving[number + 1]
            if isinstance(layer, Cell):
                at = _sum(on_rows(layer, at), None if futures is None else futures[number])
            deltas.append(at)
            sources = self.sources(number)
            if at is None or sources == (0,) or (isinstance(layer, Cell) and not through_cells):
                continue
            if isinstance(layer, Cell):
                below: tuple[Any, ...] = (input_adjoint(layer, own, moment, at),)
            elif isinstance(layer, FeedForward):
                below = (layer.pull_back(own, moment, at),)
            else:
                below = layer.pull_back(at, self.sizes[number])
            for source, part in zip(sources, below, strict=True):
                arriving[source] = _sum(arriving[source], part)
        return tuple(reversed(deltas))


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def on_rows(cell: Cell, values: Any) -> Any:
    """[..., rows] from values [..., outputs] of what a cell passes on: zero for the other rows."""
    if values is None or cell.outputs == cell.rows:
        return values
    xp = namespace_of(values)
    before, after = (
        xp.zeros((*values.shape[:-1], size), dtype=values.dtype)
        for size in (cell.output.start, cell.rows - cell.output.stop)
    )
    return xp.concat([before, values, after], axis=-1)
