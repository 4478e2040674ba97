"""A linear readout of the state and its loss, with analytic gradients, for all array libraries."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tritonsnap.arrays import Library, device_of, library_of_arguments, namespace, namespace_of
from tritonsnap.checks import check_choice, check_instance, check_integer
from tritonsnap.online.cell import Params, check_dtype, generator_from

Loss = Literal["cross_entropy", "mse"]


@dataclass(frozen=True)
class Readout:
    """``outputs = state @ kernel + bias`` and a loss per row.

    Called with ``(params, state, y)`` it gives losses that JAX and torch differentiate;
    `gradients` gives the same derivatives in closed form, which is what NumPy needs.

    Parameters
    ----------
    outputs
        Number of outputs: classes for ``"cross_entropy"``, numbers for ``"mse"``.
    loss
        ``"cross_entropy"``: y holds class ids ``[...]``, the loss is in nats.
        ``"mse"``: y is ``[..., outputs]``, the loss is the mean of squares over the outputs.

    Raises
    ------
    ValueError
        If `outputs` is not positive or `loss` is unknown.
    """

    outputs: int
    loss: Loss = "cross_entropy"

    def __post_init__(self) -> None:
        check_integer("outputs", self.outputs, 1)
        check_choice("loss", self.loss, get_args(Loss))

    def init(
        self,
        hidden: int,
        rng: Any = 0,
        like: Library = "numpy",
        dtype: str = "float32",
    ) -> Params:
        """Draw parameters: a normal kernel with variance ``1 / hidden``, a zero bias.

        Parameters
        ----------
        hidden
            What it reads: a learner's `num_outputs`.
        rng
            A seed, a NumPy `Generator`, or a JAX key.
        like, dtype
            The array library, and "float32" or "float64".

        Returns
        -------
        dict
            ``kernel`` [hidden, outputs] and ``bias`` [outputs].
        """
        xp = namespace(like)
        check_integer("hidden", hidden, 1, 2**31)
        check_dtype(dtype)
        generator = generator_from(rng)
        kernel = generator.normal(size=(hidden, self.outputs)) / np.sqrt(hidden)
        return {
            "kernel": xp.asarray(kernel.astype(dtype)),
            "bias": xp.asarray(np.zeros(self.outputs, dtype)),
        }

    def outputs_of(self, params: Params, state: Any) -> Any:
        """Outputs (logits for cross-entropy) ``[..., outputs]`` of a state ``[..., hidden]``."""
        self._check(params, state)
        kernel = params["kernel"]
        if state.ndim < 1 or state.shape[-1] != kernel.shape[0]:
            raise ValueError(
                f"`state` must be [..., {kernel.shape[0]}], got shape {tuple(state.shape)}"
            )
        return state @ kernel + params["bias"]

    def __call__(self, params: Params, state: Any, y: Any) -> Any:
        """Losses ``[...]`` of a state ``[..., hidden]``.

        Raises
        ------
        ValueError
            If shapes do not fit or a class id is outside ``[0, outputs)``. Inside ``jax.jit`` and
            ``torch.compile`` ids have no values yet: there a bad id gives a NaN loss.
        """
        outputs = self.outputs_of(params, state)
        losses, _ = self._losses_and_errors(outputs, y, None)
        return losses

    def gradients(
        self, params: Params, state: Any, y: Any, weight: Any = None
    ) -> tuple[Any, Any, Params]:
        """Losses and the gradients of their sum weighted by `weight`.

        Parameters
        ----------
        params
            What `init` returns.
        state
            ``[..., hidden]``.
        y
            Class ids ``[...]`` or values ``[..., outputs]``.
        weight
            ``[...]``, usually a mask of zeros and ones; None for ones. What has weight zero adds
            nothing, even where `y` is NaN or no class id, such as -1: there the loss is NaN.

        Returns
        -------
        losses
            ``[...]``, not weighted.
        state_gradient
            ``[..., hidden]``.
        params_gradient
            Like `params`.

        Raises
        ------
        ValueError
            As a call does; class ids of weight zero are not looked at.
        """
        outputs = self.outputs_of(params, state)
        xp = namespace_of(state)
        if weight is not None:
            library_of_arguments({"state": state, "weight": weight})
            rows = tuple(outputs.shape[:-1])
            if tuple(weight.shape) != rows:
                raise ValueError(f"`weight` must be {list(rows)}, got {list(weight.shape)}")
        losses, error = self._losses_and_errors(outputs, y, weight)
        if weight is not None:
            weight = xp.astype(weight, error.dtype)[..., None]
            error = xp.where(weight != 0, error * weight, xp.zeros_like(error))
        flat_error = xp.reshape(error, (-1, self.outputs))
        flat_state = xp.reshape(state, (-1, state.shape[-1]))
        return (
            losses,
            error @ params["kernel"].T,
            {"kernel": flat_state.T @ flat_error, "bias": xp.sum(flat_error, axis=0)},
        )

    def _check(self, params: Params, state: Any) -> None:
        check_instance("params", params, dict)
        if set(params) != {"kernel", "bias"}:
            raise ValueError(f"`params` must have 'kernel' and 'bias', got {sorted(params)}")
        named = {f"params[{name!r}]": array for name, array in params.items()}
        library_of_arguments({"state": state, **named})
        shapes = tuple(params["kernel"].shape), tuple(params["bias"].shape)
        if len(shapes[0]) != 2 or shapes[0][1:] != (self.outputs,) or shapes[1] != (self.outputs,):
            raise ValueError(
                f"`params` must have a kernel [hidden, {self.outputs}] and a bias "
                f"[{self.outputs}], got {list(shapes[0])} and {list(shapes[1])}"
            )
        for name, array in (("state", state), *named.items()):
            if "float" not in str(array.dtype):
                raise TypeError(f"`{name}` must have a floating-point dtype, got {array.dtype}")

    def _losses_and_errors(self, outputs: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """Losses ``[...]`` and their derivatives by the outputs ``[..., outputs]``, unweighted."""
        library_of_arguments({"state": outputs, "y": y})
        xp = namespace_of(outputs)
        rows = tuple(outputs.shape[:-1])
        expected = rows if self.loss == "cross_entropy" else tuple(outputs.shape)
        if tuple(y.shape) != expected:
            raise ValueError(f"`y` must be {list(expected)}, got {list(y.shape)}")
        if self.loss == "mse":
            difference = outputs - y
            return xp.mean(difference**2, axis=-1), difference * (2 / self.outputs)
        if not xp.isdtype(y.dtype, "integral"):
            raise TypeError(f"`y` must hold integer class ids, got {y.dtype}")
        inside = (y >= 0) & (y < self.outputs)
        bad = ~inside if weight is None else ~inside & (weight != 0)
        if not _is_traced(bad) and bool(xp.any(bad)):
            raise ValueError(
                f"`y` must hold class ids in [0, {self.outputs}), got {int(y[bad][0])}"
            )
        classes = xp.arange(self.outputs, dtype=y.dtype, device=device_of(y))
        chosen = y[..., None] == classes
        shifted = outputs - xp.max(outputs, axis=-1, keepdims=True)
        exponentials = xp.exp(shifted)
        total = xp.sum(exponentials, axis=-1, keepdims=True)
        losses = xp.log(total[..., 0]) - xp.sum(xp.where(chosen, shifted, 0.0), axis=-1)
        error = exponentials / total - xp.astype(chosen, outputs.dtype)
        return xp.where(inside, losses, xp.nan), error


def _is_traced(array: Any) -> bool:
    """Whether an array has no values yet, because a program is made of what is done to it."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        return bool(torch.compiler.is_compiling())
    return jax is not None and isinstance(array, jax.core.Tracer)
