"""Say what is installed, what works, which launch configs are used, and what to do."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import tritonsnap as ts
from tritonsnap.arrays import LIBRARIES, Library, device_of, namespace, to_numpy
from tritonsnap.tuning import (
    Device,
    jax_device,
    locate_config,
    shipped_directory,
    torch_device,
    user_directory,
)

PACKAGES = (
    ("numpy", "everything", "numpy"),
    ("scipy", "faster sparse products and KANs on the CPU", "scipy"),
    ("threadpoolctl", "KANs on a CPU that does other work too", "tritonsnap[kan]"),
    ("torch", "PyTorch tensors", "tritonsnap[torch]"),
    ("triton", "kernels on a GPU", "tritonsnap[torch]"),
    ("jax", "JAX arrays", "tritonsnap[jax]"),
    ("jax-triton", "kernels on a GPU in JAX", "tritonsnap[jax]"),
    ("matplotlib", "plots", "tritonsnap[plots]"),
    ("ray", "KANs on many machines", "tritonsnap[distributed]"),
    ("asdex", "detecting patterns of Jacobians in JAX", "tritonsnap[detect]"),
)
"""Distributions, what each is for, and what to install for that."""

_DRIVERS = {"NVIDIA": "/dev/nvidiactl", "AMD": "/dev/kfd"}
"""Where the kernel of the operating system shows that it drives a GPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; the exit code is 1 if something that is installed does not work."""
    advice = []
    print(f"tritonsnap {ts.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print("\npackages")
    for name, purpose, requirement in PACKAGES:
        version = version_of(name)
        print(f"  {name:<14}{version or 'not installed'}")
        if version is None:
            advice.append(f"for {purpose}: pip install '{requirement}'")
    print("\nbackends")
    failed = False
    devices: dict[Library, Any] = {}
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            continue
        try:
            devices[library] = compute_somewhere(library)
            print(f"  {library:<14}works on {devices[library]}")
        except Exception as error:  # whatever is wrong with what others installed
            failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"  {library:<14}does not work: {reason}")
            advice.append(f"repair or reinstall {library}, which fails with: {reason}")
    advice.extend(advice_on_gpus(devices))
    print("\nlaunch configs")
    gpu = gpu_at_hand(devices)
    if gpu is None:
        print("  none are used: there is no GPU that Triton could compile for")
    else:
        with warnings.catch_warnings(record=True) as passed_over:
            warnings.simplefilter("always")
            for line in describe_configs(gpu):
                print(f"  {line}")
        advice.extend(str(warning.message) for warning in passed_over)
        if not user_directory().is_dir() and not any(shipped_directory().glob("*/*.json")):
            advice.append(f"to find the best configs of {gpu.name}: tritonsnap tune")
    print("\nwhat to do")
    for line in advice or ["nothing, all is there"]:
        print(f"  {line}")
    return int(failed)


def version_of(distribution: str) -> str | None:
    """The version of what is installed under a name."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def compute_somewhere(library: Library) -> Any:
    """Multiply two small sparse matrices with a library's arrays, and return the device.

    Raises
    ------
    ArithmeticError
        If the result is wrong.
    Exception
        Whatever the library raises.
    """
    pattern = ts.SparsityPattern.from_dense(np.tri(4))
    plan = ts.DsmmPlan(pattern, pattern)
    random = np.random.default_rng(0)
    d, x = (random.normal(size=shape).astype(np.float32) for shape in ((4, 4), (pattern.nnz,)))
    expected = pattern.values_of(d @ pattern.to_dense(x))
    xp = namespace(library)
    device = None
    if library == "torch" and xp.cuda.is_available():
        device = "cuda"
    d_there, x_there = (xp.asarray(array, device=device) for array in (d, x))
    found = ts.masked_dsmm(d_there, x_there, plan)
    if not np.allclose(to_numpy(found), expected, rtol=1e-4, atol=1e-5):
        raise ArithmeticError("a sparse product has wrong values")
    return device_of(found)


def gpu_at_hand(devices: dict[Library, Any]) -> Device | None:
    """The GPU that Triton compiles for, as torch sees it or else JAX.

    Parameters
    ----------
    devices
        Where each working library computes.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    if getattr(devices.get("torch"), "type", None) == "cuda":
        return torch_device(devices["torch"])
    if getattr(devices.get("jax"), "platform", None) == "gpu":
        return jax_device(devices["jax"])
    return None


def advice_on_gpus(devices: dict[Library, Any]) -> Iterator[str]:
    """What to do where there is a GPU that a working library does not see.

    Parameters
    ----------
    devices
        Where each working library computes.
    """
    for maker, path in _DRIVERS.items():
        if not os.path.exists(path):
            continue
        extra = "cuda13" if maker == "NVIDIA" else "rocm7-local"
        remedies: dict[Library, str] = {
            "torch": "install the build for it from https://pytorch.org/get-started/locally",
            "jax": f"pip install 'jax[{extra}]'",
        }
        for library, remedy in remedies.items():
            if "cpu" in str(devices.get(library, "")).lower():
                yield f"{library} does not see the {maker} GPU: {remedy}"


def describe_configs(device: Device) -> Iterator[str]:
    """A line for each kernel: the config for a large problem on a device, and where it is from."""
    from tritonsnap.ops.kernel import declared_kernels

    yield f"of {device.name} ({device.arch}), from {user_directory()} and the package"
    for kernel in declared_kernels():
        dtype = "fp32" if "fp32" in kernel.dtypes else kernel.dtypes[0]
        found = locate_config(kernel, kernel.large[0], dtype, kernel.precisions[0], device)
        config = ", ".join(f"{name} {value}" for name, value in found.config.items())
        origin = "default" if found.path is None else f"tuned, {found.path}"
        yield f"{kernel.name} {dtype}: {config} ({origin})"
