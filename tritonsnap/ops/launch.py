"""Launch a declared kernel on torch tensors, with a config found in Python."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from tritonsnap.ops.kernel import DTYPES, OPTIONS, Arguments, Kernel, KernelLaunch
from tritonsnap.tuning import Config, Sizes, torch_device

_NAMES = {getattr(torch, library): name for name, library in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Triton's name of a torch dtype.

    Raises
    ------
    TypeError
        If no kernel works on it.
    """
    if dtype not in _NAMES:
        raise TypeError(f"expected one of {sorted(map(str, _NAMES))}, got {dtype}")
    return _NAMES[dtype]


def run(one: KernelLaunch, dtype: torch.dtype, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Launch with new outputs beside `like`, which are returned by name."""
    outputs = {}
    for name, shape in one.outputs.items():
        kind = one.kernel.pointer_dtype(name, dtype_name(dtype))
        assert kind is not None
        outputs[name] = like.new_empty(shape, dtype=getattr(torch, DTYPES[kind]))
    launch(one.kernel, one.arguments | outputs, one.sizes, dtype, one.precision)
    return outputs


def launch(
    kernel: Kernel, arguments: Arguments, sizes: Sizes, dtype: torch.dtype, precision: str = "ieee"
) -> None:
    """Run a kernel on the device and the current stream of its tensors.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    arguments : dict
        Its run-time arguments by name: tensors of one device, which is the CPU only in Triton's
        interpreter, and numbers.
    sizes : dict of str to int
        What the config is looked up by.
    dtype : torch.dtype
        T of the kernel's signature.
    precision : str
        Of `tl.dot`: ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.
    """
    device = torch_device(_device_of(arguments))
    launch_with(
        kernel, arguments, kernel.config(sizes, dtype_name(dtype), precision, device), precision
    )


def launch_with(
    kernel: Kernel, arguments: Arguments, config: Config, precision: str = "ieee"
) -> None:
    """Run a kernel with a config of the caller's choice; see `launch`."""
    grid = kernel.programs({**arguments, **config})
    if 0 in grid:
        return
    constexprs = kernel.constexprs(config, precision, hip=torch.version.hip is not None)
    options = {name: value for name, value in config.items() if name in OPTIONS}
    device = _device_of(arguments)
    # Triton launches on the current device, whatever the tensors' is
    guard = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with guard:
        kernel.function[grid](**arguments, **constexprs, **options, enable_fp_fusion=True)


def _device_of(arguments: Arguments) -> torch.device:
    return next(value.device for value in arguments.values() if isinstance(value, torch.Tensor))
