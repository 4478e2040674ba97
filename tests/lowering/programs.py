"""What a lowered program consists of."""

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxlib.mlir import ir

from tritonsnap.jax import lower_for
from tritonsnap.tuning import TARGETS

H200 = TARGETS[1]
CALLS = ("triton_kernel_call", "triton_kernel_call_ffi")
"""What jax-triton 0.3 and 0.4 name the call of a kernel."""


def lower(function: Callable[..., Any], *args: Any, platforms: tuple[str, ...] = ("cuda",)) -> Any:
    """The MLIR module of a function, lowered for an H200."""
    with lower_for(H200):
        traced = jax.jit(function).trace(*args)
        return traced.lower(lowering_platforms=platforms).compiler_ir()


def operations(module: Any) -> Iterator[Any]:
    """All operations of a module, from outside to inside."""
    stack = [module.operation]
    while stack:
        operation = stack.pop()
        yield operation
        stack += [
            inner.operation
            for region in operation.regions
            for block in region.blocks
            for inner in block.operations
        ]


def payloads(module: Any) -> list[bytes]:
    """What each call of a Triton kernel carries: its code and its arguments."""
    found = []
    for operation in operations(module):
        attributes = operation.attributes
        if operation.name == "stablehlo.custom_call" and (
            ir.StringAttr(attributes["call_target_name"]).value in CALLS
        ):
            both = "mhlo.backend_config", "backend_config"  # jax-triton 0.4 and 0.3
            config = attributes[next(name for name in both if name in attributes)]
            text = config["opaque"] if isinstance(config, ir.DictAttr) else config
            found.append(zlib.decompress(text.value_bytes))
    return found


def kernels(module: Any) -> list[str]:
    """The kernels in a program's PTX, sorted."""
    names = []
    for payload in payloads(module):
        assert b".target sm_90a" in payload
        (name,) = re.findall(rb"\.visible \.entry (\w+)\(", payload)
        names.append(name.decode())
    return sorted(names)


def size(module: Any) -> int:
    """Characters of a program but for the kernels that it calls."""
    text = str(module)
    return len(re.sub(r'(opaque|backend_config) = "[^"]*"', "", text))
