"""What a launch config depends on in a device."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

# bytes that one program may use, by architecture
_SHARED_MEMORY = {
    "sm_80": 166_912,
    "sm_86": 101_376,
    "sm_87": 166_912,
    "sm_89": 101_376,
    "sm_90": 232_448,
    "sm_100": 232_448,
    "sm_103": 232_448,
    "sm_120": 101_376,
    "gfx90a": 65_536,
    "gfx942": 65_536,
    "gfx950": 163_840,
}
_LEAST_SHARED_MEMORY = 49_152


@dataclass(frozen=True)
class Device:
    """A GPU model.

    Parameters
    ----------
    name : str
        As its driver reports it, for example ``"NVIDIA H200"``.
    arch : str
        ``"sm_90"`` or ``"gfx942"``.
    units : int
        Streaming multiprocessors or compute units.
    """

    name: str
    arch: str
    units: int

    @property
    def slug(self) -> str:
        """The name as a folder: lower case, words joined by hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one program may use; of an unknown GPU, what all have."""
        return _SHARED_MEMORY.get(self.arch, _LEAST_SHARED_MEMORY)

    @property
    def is_hip(self) -> bool:
        """Whether it is an AMD GPU."""
        return self.arch.startswith("gfx")


TARGETS: tuple[Device, ...] = (
    Device("NVIDIA A100-SXM4-80GB", "sm_80", 108),
    Device("NVIDIA H200", "sm_90", 132),
    Device("NVIDIA B200", "sm_100", 148),
    Device("AMD Instinct MI300X", "gfx942", 304),
)
"""The devices that every kernel is compiled for ahead of time."""


@functools.cache
def torch_device(device: Any) -> Device:
    """Describe a device as torch sees it.

    Parameters
    ----------
    device : torch.device
        A GPU, with its index. On the CPU only Triton's interpreter runs kernels, as the device
        ``"interpreter"``.
    """
    import torch

    if device.type == "cpu":
        return Device("interpreter", "interpreter", 1)
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = str(properties.gcnArchName).split(":")[0]
    else:
        arch = f"sm_{properties.major}{properties.minor}"
    return Device(str(properties.name), arch, int(properties.multi_processor_count))


@functools.cache
def jax_device(device: Any) -> Device:
    """Describe a GPU as JAX sees it.

    Parameters
    ----------
    device : jax.Device
        A GPU.
    """
    capability = str(device.compute_capability)
    is_hip = capability.startswith("gfx")
    arch = capability.split(":")[0] if is_hip else f"sm_{capability.replace('.', '')}"
    return Device(str(device.device_kind), arch, int(device.core_count))
