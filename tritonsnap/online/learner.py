"""`Learner`: what every training rule has in common."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast

from tritonsnap.arrays import (
    Library,
    library_of,
    library_of_arguments,
    namespace,
)
from tritonsnap.checks import check_instance, check_integer
from tritonsnap.online.backend import untracked
from tritonsnap.online.carry import Carry
from tritonsnap.online.cell import Cell, Params, check_dtype
from tritonsnap.online.trees import leaves_of, named_leaves
from tritonsnap.online.unroll import LossFunction, Unroll

if TYPE_CHECKING:
    from tritonsnap.online.chunk_structure import Chunking
    from tritonsnap.online.stack.chunks import StackChunking
    from tritonsnap.online.stack.network import Stack


class Learner(ABC):
    """A rule that gives the gradient of a recurrent network's loss.

    Parameters
    ----------
    cell
        The network: a `Cell`, or a `Stack` where the rule has a form for stacks.
    """

    network: ClassVar[type] = Cell
    """What the rule learns."""

    prepared: ClassVar[type] = tuple
    """What `prepare` returns."""

    forms: ClassVar[tuple[type[Learner], ...]] = ()
    """The forms of the rule for other kinds of networks; see `form_of`."""

    def __new__(cls, cell: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Make the learner, in the form of the rule for this kind of network."""
        for form in cls.__dict__.get("forms", ()):
            if isinstance(cell, form.network):
                return cast(Self, object.__new__(form))
        return object.__new__(cls)

    def __init__(self, cell: Cell | Stack) -> None:
        if isinstance(cell, Cell) and self.network is Cell and not cell.factored:
            raise TypeError(
                f"`cell` must be in factored form for {type(self).__name__}, got "
                f"{type(cell).__name__}: SnAp, RTRL, UORO and BPTT take it"
            )
        if not isinstance(cell, self.network):
            known = any(isinstance(cell, form.network) for form in _FORMS)
            hint = f": {type(self).__name__} has no form for it, as SnAp, RTRL and BPTT have"
            raise TypeError(
                f"`cell` must be a {self.network.__name__}, got {type(cell).__name__}"
                f"{hint if known else ''}"
            )
        self.cell = cast(Cell, cell)  # what all rules read of it a stack has, too
        if "jax" in sys.modules:
            self._make_pytree()

    @property
    def num_outputs(self) -> int:
        """Numbers that a loss reads: the rows of the state."""
        return self.cell.rows

    def output_of(self, state: Any) -> Any:
        """What a loss reads of a state [..., rows]: all of it."""
        return state

    @abstractmethod
    def init(self, batch: int, like: Library = "numpy", dtype: str = "float32") -> Carry:
        """A carry of zeros.

        Parameters
        ----------
        batch
            Rows side by side, at least 1.
        like
            The array library: "numpy", "torch" or "jax".
        dtype
            "float32" or "float64": that of the state, and of all that is computed.

        Raises
        ------
        ValueError, TypeError
            If an argument is not allowed; the message names it.
        """

    @abstractmethod
    def prepare(self, params: Params) -> Any:
        """What the steps read of the parameters; compute it once per update.

        Raises
        ------
        ValueError, TypeError
            That names the parameter which is missing or has a wrong shape.
        """

    @abstractmethod
    def step(self, ready: Any, carry: Carry, x: Any, reset: Any = None) -> tuple[Carry, Any]:
        """Go one step forward.

        Parameters
        ----------
        ready
            What `prepare` returns, or the parameters.
        carry
            The learner's state.
        x : [batch, inputs]
            The input.
        reset : bool [batch], optional
            Rows whose state and influence are zeroed before the input is read.

        Returns
        -------
        carry, state
            The new carry and its state [batch, rows].
        """

    @abstractmethod
    def gradient(self, carry: Carry, dL_dstate: Any) -> Params:
        """The gradient in the parameters of a loss of the current state.

        Parameters
        ----------
        carry
            The learner's state.
        dL_dstate : [batch, rows]
            The gradient of the loss in the state.

        Returns
        -------
        dict like the parameters, summed over the batch
        """

    @untracked
    def sequence(
        self,
        params: Params,
        carry: Carry,
        xs: Any,
        ys: Any,
        loss_fn: LossFunction,
        mask: Any = None,
        resets: Any = None,
        *,
        readout: Any = None,
        chunk: int | Literal["auto"] | Chunking | StackChunking | None = "auto",
    ) -> tuple[Any, Any, Carry]:
        """Go through a sequence and add up its gradient.

        Parameters
        ----------
        params
            The cell's parameters, constant over the sequence.
        carry
            The learner's state.
        xs : [T, batch, inputs]
            The inputs.
        ys : [T, batch, ...]
            The targets.
        loss_fn
            ``loss_fn(state, y)``, or ``loss_fn(readout, state, y)`` where `readout` is given:
            losses [batch]. JAX and torch differentiate any function; NumPy needs one with a method
            `gradients`, such as `Readout`. Where time is chunked it is called with [K, batch, ...]
            and gives losses [K, batch].
        mask : [T, batch], optional
            What each loss is multiplied by. Where it is zero a `Readout` takes nothing from the
            target, even NaN; a NaN in the state still spoils the gradient.
        resets : bool [T, batch], optional
            Rows whose state and influence are zeroed before that step's input is read.
        readout
            Parameters of the loss function.
        chunk
            Steps K that are gone through at once: the influence is then read and written once a
            chunk in place of once a step, at a memory of K steps; results are equal to rounding.
            1 goes step by step, "auto" takes what the cost model predicts to be fastest. Only
            `SnAp` and `RTRL` on the CPU and in JAX have chunks, alone or sharded, of all kinds of
            cells and of stacks layer by layer. Within `jax.jit` give what `chunking` returned
            outside, as an argument of the compiled function: else its index arrays become
            constants of the program.

        Returns
        -------
        loss
            The sum of the losses over rows and steps.
        gradients
            Like `params`; with a readout a pair of these and the readout's gradient.
        carry
            The new state. Nothing flows back into the old one: gradients go through the influence.

        Raises
        ------
        ValueError, TypeError
            That name the argument, for wrong shapes, dtypes or mixed libraries.
        """
        unroll = Unroll(params, carry, xs, ys, loss_fn, mask, resets, readout)
        if "torch" in sys.modules:
            from tritonsnap.online.torch_sequence import make_ready

            make_ready(self, chunk, xs)
        self._check_unroll(unroll)
        chunking = None if chunk is None else self.chunking(chunk, xs)
        if library_of(xs) == "jax":
            from tritonsnap.online.jax_sequence import run

            return run(self, chunking, unroll)
        return self.run(chunking, unroll)

    def chunking(self, chunk: Any, xs: Any) -> Any:
        """How `sequence` goes through `xs` [T, batch, inputs]; None for step by step.

        Raises
        ------
        ValueError, TypeError
            If `chunk` is neither "auto" nor an integer of at least 1, or this learner cannot do it.
        """
        check_chunk(chunk)
        if chunk not in ("auto", 1):
            raise ValueError(
                f"`chunk` must be 'auto' or 1 for {type(self).__name__}, got {chunk!r}"
            )
        return None

    def run(self, chunking: Any, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, without compiling."""
        return self.run_sequence(unroll)

    @abstractmethod
    def run_sequence(self, unroll: Unroll) -> tuple[Any, Any, Carry]:
        """`sequence` on checked arguments, step by step, without compiling."""

    def _make_pytree(self) -> None:
        """Let functions that JAX compiles take the learner as an argument."""
        importlib.import_module("tritonsnap.online.jax_sequence")

    def _zero_state(self, batch: int, like: Library, dtype: str) -> Any:
        check_integer("batch", batch, 1)
        check_dtype(dtype)
        xp = namespace(like)
        if like == "jax":
            self._make_pytree()
        return xp.zeros((batch, self.cell.rows), dtype=getattr(xp, dtype))

    def _has_made(self, carry: Carry) -> bool:
        """Whether a carry is one of this kind of learner."""
        return True

    def _check_carry(self, carry: Carry) -> None:
        check_instance("carry", carry, Carry)
        if not self._has_made(carry):
            raise TypeError(
                f"`carry` must be what `init` or a step of {type(self).__name__} returned: this "
                "one is of another rule, or its influence has not the rows of its state"
            )

    def _check_step(self, ready: Any, carry: Carry, x: Any, reset: Any) -> None:
        self._check_carry(carry)
        if isinstance(ready, dict):
            self.cell.check_params(ready)
        elif not isinstance(ready, self.prepared) or not hasattr(ready, "_fields"):
            raise TypeError(
                f"`ready` must be what `prepare` returns, or a dict of parameters, "
                f"got {type(ready).__name__}"
            )
        weights = leaves_of(ready)
        library_of_arguments(
            {"x": x, "carry.state": carry.state},
            packed={"ready": weights},
            optional={"reset": reset},
        )
        batch = carry.state.shape[0]
        if tuple(x.shape) != (batch, self.cell.inputs):
            raise ValueError(
                f"`x` must have shape [{batch}, {self.cell.inputs}], got {list(x.shape)}"
            )
        if x.dtype != carry.state.dtype:
            raise TypeError(f"`x` must have the carry's dtype {carry.state.dtype}, got {x.dtype}")
        for weight in weights:
            if weight.dtype != carry.state.dtype:
                raise TypeError(
                    f"`ready` must have the carry's dtype {carry.state.dtype}, got {weight.dtype}"
                )
        check_mask("reset", reset, (batch,), boolean=True)

    def _check_delta(self, carry: Carry, delta: Any) -> None:
        self._check_carry(carry)
        library_of_arguments({"carry.state": carry.state, "dL_dstate": delta})
        shape = (carry.state.shape[0], self.num_outputs)
        if tuple(delta.shape) != shape:
            raise ValueError(f"`dL_dstate` must have shape {list(shape)}, got {list(delta.shape)}")
        if delta.dtype != carry.state.dtype:
            raise TypeError(
                f"`dL_dstate` must have the carry's dtype {carry.state.dtype}, got {delta.dtype}"
            )

    def _check_unroll(self, unroll: Unroll) -> None:
        params, carry, xs, ys, _, mask, resets, _ = unroll
        self.cell.check_params(params)
        self._check_carry(carry)
        library_of_arguments(
            {**dict(named_leaves(params)), "carry.state": carry.state, "xs": xs, "ys": ys},
            optional={"mask": mask, "resets": resets},
        )
        batch = carry.state.shape[0]
        if xs.ndim != 3 or tuple(xs.shape[1:]) != (batch, self.cell.inputs):
            raise ValueError(
                f"`xs` must have shape [T, {batch}, {self.cell.inputs}], got {list(xs.shape)}"
            )
        if xs.shape[0] == 0:
            raise ValueError(f"`xs` must have at least one step, got {list(xs.shape)}")
        if xs.dtype != carry.state.dtype:
            raise TypeError(f"`xs` must have the carry's dtype {carry.state.dtype}, got {xs.dtype}")
        for name, value in named_leaves(params):
            if value.dtype != carry.state.dtype:
                raise TypeError(
                    f"`params[{name!r}]` must have the carry's dtype {carry.state.dtype}, "
                    f"got {value.dtype}"
                )
        if tuple(ys.shape[:2]) != tuple(xs.shape[:2]):
            raise ValueError(
                f"`ys` must have shape [{xs.shape[0]}, {batch}, ...], got {list(ys.shape)}"
            )
        check_mask("mask", mask, tuple(xs.shape[:2]), boolean=False)
        check_mask("resets", resets, tuple(xs.shape[:2]), boolean=True)


Form = TypeVar("Form", bound=type[Learner])
_FORMS: list[type[Learner]] = []


def form_of(rule: type[Learner]) -> Callable[[Form], Form]:
    """Make a class the form of a rule for its kind of `network`: the rule then makes instances."""

    def register(form: Form) -> Form:
        rule.forms = (*rule.__dict__.get("forms", ()), form)
        _FORMS.append(form)
        return form

    return register


def check_mask(name: str, mask: Any, shape: tuple[int, ...], *, boolean: bool) -> None:
    """Raise unless `mask` is None or has the given shape, and is boolean where it must be."""
    if mask is None:
        return
    if tuple(mask.shape) != shape:
        raise ValueError(f"`{name}` must have shape {list(shape)}, got {list(mask.shape)}")
    if boolean and "bool" not in str(mask.dtype):
        raise TypeError(f"`{name}` must be boolean, got {mask.dtype}")
    if not any(kind in str(mask.dtype) for kind in ("bool", "int", "float")):
        raise TypeError(f"`{name}` must hold real numbers, got {mask.dtype}")


def check_chunk(chunk: Any) -> None:
    """Raise unless `chunk` is "auto" or an integer of at least 1."""
    if not (isinstance(chunk, str) and chunk == "auto"):
        check_integer("chunk", chunk, 1, allowed="'auto' or an integer")
