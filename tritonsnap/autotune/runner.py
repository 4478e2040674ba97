"""Run a declared kernel on a problem, compare it with its reference, and time it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.kernel import DTYPES, Kernel, Problem
from tritonsnap.tuning import Config, Device, Milliseconds, torch_device

Outputs = Mapping[str, NDArray[Any]]

_TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}
_TF32_TOLERANCE = 2e-3


class WrongResultError(ArithmeticError):
    """A kernel's output differs from its reference's."""


class Runner(Protocol):
    """What runs kernels: a GPU by way of torch, or a stand-in."""

    @property
    def device(self) -> Device: ...  # noqa: D102

    def run(
        self, kernel: Kernel, problem: Problem, config: Config, dtype: str, precision: str
    ) -> Outputs:
        """The outputs of one launch on poisoned memory."""
        ...

    def time(
        self, kernel: Kernel, problem: Problem, config: Config, dtype: str, precision: str
    ) -> Milliseconds:
        """How long a launch takes."""
        ...

    def expected(self, kernel: Kernel, problem: Problem, dtype: str) -> Outputs:
        """The reference's outputs for the arguments as the kernel reads them."""
        ...


class TorchRunner:
    """Runs kernels on a torch device: a GPU, or the CPU in Triton's interpreter.

    Parameters
    ----------
    device : str
        ``"cuda"``, ``"cuda:1"`` or ``"cpu"``.
    """

    def __init__(self, device: str) -> None:
        import torch

        index = torch.cuda.current_device() if device == "cuda" else None
        self._torch_device = torch.device(device) if index is None else torch.device(device, index)

    @property
    def device(self) -> Device:
        """The GPU model."""
        return torch_device(self._torch_device)

    def run(
        self, kernel: Kernel, problem: Problem, config: Config, dtype: str, precision: str
    ) -> Outputs:
        """The outputs of one launch; before it they hold NaN, or the largest integer."""
        import torch

        from tritonsnap.ops.launch import launch_with

        arguments = self.arguments(kernel, problem, dtype)
        launch_with(kernel, arguments, config, precision)
        results = {}
        for name in problem.outputs:
            tensor = arguments[name].cpu()
            results[name] = (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()
        if self._torch_device.type == "cuda":
            torch.cuda.synchronize(self._torch_device)
        return results

    def time(
        self, kernel: Kernel, problem: Problem, config: Config, dtype: str, precision: str
    ) -> Milliseconds:
        """Quantiles over launches with a cold L2 cache."""
        from triton.testing import do_bench

        from tritonsnap.ops.launch import launch_with

        arguments = self.arguments(kernel, problem, dtype)
        quantiles = do_bench(
            lambda: launch_with(kernel, arguments, config, precision), quantiles=(0.2, 0.5, 0.8)
        )
        return Milliseconds(*quantiles)

    def expected(self, kernel: Kernel, problem: Problem, dtype: str) -> Outputs:
        """The reference's outputs for arguments rounded to `dtype` and back to float64."""
        import torch

        rounded = dict(problem.arguments)
        for name, value in problem.arguments.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                kind = getattr(torch, DTYPES[kernel.pointer_dtype(name, dtype) or dtype])
                rounded[name] = torch.from_numpy(value).to(kind).double().numpy()
        return kernel.reference(**rounded)

    def arguments(self, kernel: Kernel, problem: Problem, dtype: str) -> dict[str, Any]:
        """Fresh tensors and numbers for `launch_with`; outputs are poisoned."""
        import torch

        arguments: dict[str, Any] = {}
        for name in kernel.signature:
            value = problem.arguments.get(name)
            pointed = kernel.pointer_dtype(name, dtype)
            if pointed is None:
                arguments[name] = value
                continue
            kind = getattr(torch, DTYPES[pointed])
            if value is None:
                poison = torch.nan if kind.is_floating_point else torch.iinfo(kind).max
                tensor = torch.full(problem.outputs[name], poison, dtype=kind)
            else:
                tensor = torch.from_numpy(value).to(kind, copy=True)
            arguments[name] = tensor.to(self._torch_device)
        return arguments


def verify(
    runner: Runner,
    kernel: Kernel,
    problem: Problem,
    config: Config,
    dtype: str,
    precision: str,
    expected: Outputs,
) -> None:
    """Compare a launch with what is expected of it.

    Integers must be equal. Real outputs may differ by a part of the largest magnitude that is
    expected: 1e-12 for fp64, 1e-5 for fp32.

    Raises
    ------
    WrongResultError
        If they differ, with the largest and the root mean square error.
    """
    found = runner.run(kernel, problem, config, dtype, precision)
    for name, right in expected.items():
        error = np.abs(found[name].astype(np.float64) - right)
        tolerance = 0.0
        if right.dtype.kind == "f":
            relative = _TF32_TOLERANCE if precision == "tf32" else _TOLERANCE[dtype]
            tolerance = relative * float(np.max(np.abs(right), initial=0.0))
        if not bool(np.all(error <= tolerance)):
            rms = float(np.sqrt(np.mean(error**2)))
            raise WrongResultError(
                f"{kernel.name}: `{name}` is off by at most {error.max()}, in the root mean "
                f"square by {rms}; allowed is {tolerance} ({dtype}, {precision}, {dict(config)}, "
                f"{dict(problem.sizes)})"
            )
