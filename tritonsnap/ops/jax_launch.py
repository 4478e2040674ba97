"""Launch a declared kernel in a JAX program, with a config found in Python.

`jax_triton.triton_call` has neither batching nor derivatives, and imports only where there is a
GPU plugin: so it is called, and imported, while a primitive is lowered.

An output is laid over an input only where the caller says so: XLA first copies an input that is
needed later. jax-triton 0.3 then gives the kernel both pointers, 0.4 only that of the input, which
therefore comes in the output's place: given twice, XLA would copy it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tritonsnap.ops.kernel import DTYPES, OPTIONS, Arguments, Kernel, KernelLaunch
from tritonsnap.plan.jax_target import device_to_lower_for
from tritonsnap.tuning import Device, Sizes

Array = jax.Array
_NAMES = {library: name for name, library in DTYPES.items()}


class Launch(Protocol):
    """What runs a kernel for the functions that know its arguments."""

    def __call__(
        self,
        kernel: Kernel,
        arguments: Arguments,
        outputs: Mapping[str, tuple[int, ...]],
        sizes: Sizes,
        dtype: Any,
        precision: str = "ieee",
        over: bool = False,
    ) -> tuple[Array, ...]:
        """Run a kernel.

        Parameters
        ----------
        kernel
            What to run.
        arguments : dict
            Its arguments but for outputs by name, in order: arrays and numbers.
        outputs : dict
            The shape of each output by name, in order; its dtype is that of the signature.
        sizes
            What the config is looked up by.
        dtype
            T of the kernel's signature.
        precision
            Of `tl.dot`.
        over
            Whether to lay `out` over `x`.
        """
        ...


def run(launch: Launch, one: KernelLaunch, dtype: Any, over: bool = False) -> dict[str, Array]:
    """The outputs of a launch by name; `out` laid over `x` if `over`."""
    if over and not one.in_place:
        raise ValueError(f"`{one.kernel.name}` needs the memory of `x` and of `out`")
    arguments = (one.kernel, one.arguments, one.outputs, one.sizes, dtype, one.precision)
    found = launch(*arguments, over=over)
    return dict(zip(one.outputs, found, strict=True))


class KernelCall(NamedTuple):
    """One launch as `jax_triton.triton_call` takes it.

    Attributes
    ----------
    inputs
        Positional arguments; the kernel's outputs follow them.
    outputs
        Shapes and dtypes.
    grid, constexprs, options
        How many programs, and the kernel's constexprs and launch options.
    over
        The input that an output is laid over, and that output, or None.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    grid: tuple[int, ...]
    constexprs: Mapping[str, Any]
    options: Mapping[str, int]
    over: tuple[int, int] | None = None


def kernel_call(
    device: Device,
    kernel: Kernel,
    arguments: Arguments,
    outputs: Mapping[str, tuple[int, ...]],
    sizes: Sizes,
    dtype: Any,
    precision: str = "ieee",
    over: bool = False,
) -> KernelCall:
    """Look up the config of a launch on `device` and put its arguments in order."""
    kind = _NAMES[str(jnp.dtype(dtype))]
    config = kernel.config(sizes, kind, precision, device)
    pointed = {name: DTYPES[kernel.pointer_dtype(name, kind) or kind] for name in outputs}
    order = [name for name in kernel.signature if name not in outputs]
    return KernelCall(
        inputs=tuple(arguments[name] for name in order),
        outputs=tuple(
            jax.ShapeDtypeStruct(shape, pointed[name]) for name, shape in outputs.items()
        ),
        grid=kernel.programs({**arguments, **config}),
        constexprs=kernel.constexprs(config, precision, hip=device.is_hip),
        options={name: value for name, value in config.items() if name in OPTIONS},
        over=(order.index("x"), list(outputs).index("out")) if over else None,
    )


def launch_for(platform: str) -> Launch:
    """A `Launch` for programs that are lowered for "cuda" or "rocm"."""

    def launch(kernel: Kernel, *arguments: Any, **more: Any) -> tuple[Array, ...]:
        device = device_to_lower_for(platform)
        call = kernel_call(device, kernel, *arguments, **more)
        if 0 in call.grid:
            return tuple(jnp.zeros(one.shape, one.dtype) for one in call.outputs)
        return _triton_call(device, kernel, call)

    return launch


@contextmanager
def explained(platform: str) -> Iterator[None]:
    """Say what to do where jax-triton fails to compile kernels for an AMD GPU.

    With Triton 3.9 its releases 0.3.1 and 0.4.1 do: they hand the compiler no ``num_ctas``.
    """
    try:
        yield
    except (KeyError, RuntimeError) as error:
        if platform != "rocm":
            raise
        versions = " and ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("jax-triton", "triton")
        )
        raise RuntimeError(
            f"{versions} cannot compile this program's kernels for the AMD GPU ({error!r}): trace "
            "and run it inside of `with tritonsnap.jax.lower_for(None):`, which leaves all to XLA, "
            "or use `tritonsnap.torch`, whose kernels need no jax-triton"
        ) from error


def _triton_call(device: Device, kernel: Kernel, call: KernelCall) -> tuple[Array, ...]:
    library = _jax_triton()
    options: dict[str, Any] = {**call.options, **call.constexprs}
    inputs = list(call.inputs)
    if "out_type" in inspect.signature(library.triton_call).parameters:
        options |= {
            "out_type": call.outputs,
            "backend_options": {"enable_fp_fusion": True},
        }
        if call.over is not None:
            source, output = call.over
            inputs[source] = inputs[list(kernel.signature).index("d")]  # not read
            options |= {
                "out": call.inputs[source],
                "IN_PLACE": True,
                "input_output_aliases": {len(inputs): output},
            }
    else:
        options |= {"out_shape": call.outputs, "enable_fp_fusion": True}
        if call.over is not None:
            source, output = call.over
            arrays = sum(hasattr(one, "shape") for one in inputs[:source])
            options["input_output_aliases"] = {arrays: output}
    if not device.is_hip:
        options["compute_capability"] = int(device.arch.removeprefix("sm_"))
    with warnings.catch_warnings():
        # what 0.4 has instead of aliases mutates a `jax.Ref`, which a lowering has no place for
        warnings.filterwarnings("ignore", "input_output_aliases", DeprecationWarning)
        found = library.triton_call(
            *inputs, kernel=kernel.function, grid=call.grid, name=kernel.name, **options
        )
    return tuple(found)


@functools.cache
def _jax_triton() -> ModuleType:
    """The library, which empties or deletes a user's TRITON_CACHE_DIR when it is imported."""
    kept = os.environ.get("TRITON_CACHE_DIR")
    try:
        import jax_triton
    finally:
        if kept is not None:
            os.environ["TRITON_CACHE_DIR"] = kept
        else:
            os.environ.pop("TRITON_CACHE_DIR", None)
    return jax_triton
