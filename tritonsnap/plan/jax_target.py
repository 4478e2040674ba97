"""For which device JAX programs are traced and lowered: it decides how plans pack their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.tuning import Device, jax_device

_GPUS = ("gpu", "cuda", "rocm")
# One device, or one None: then no kernels are called. JAX keeps no program from one to another.
_chosen = jax.make_user_context(default_value=None)  # type: ignore[no-untyped-call]


@contextmanager
def lower_for(device: Device | None) -> Iterator[None]:
    """Trace and lower for a GPU that this process need not have, or without kernels.

    Without it, plans pack their values for JAX's default device: in canonical order on a GPU, in
    blocks for XLA on the CPU. Flat values are the same everywhere. What a program is traced for
    decides its layout, and it may be lowered for several platforms: for a GPU to Triton kernels,
    for any other to array operations. Both tracing and lowering belong inside the context.

    Parameters
    ----------
    device
        One of `tritonsnap.tuning.TARGETS`, or any other. None for array operations everywhere, on a
        GPU too: what to do where jax-triton cannot compile kernels, as it could not for AMD GPUs
        with Triton 3.9.

    Examples
    --------
    ::

        with lower_for(tritonsnap.tuning.TARGETS[1]):  # an H200
            exported = jax.export.export(jax.jit(step), platforms=["cpu", "cuda"])(plan, d, j)
    """
    with _chosen((device,)):
        yield


def device_to_lower_for(platform: str) -> Device:
    """The device that kernels are compiled for when a program is lowered for "cuda" or "rocm".

    Raises
    ------
    RuntimeError
        If there is no such device here and `lower_for` names none.
    """
    device: Device | None = None if _chosen.value is None else _chosen.value[0]
    if device is not None and device.is_hip == (platform == "rocm"):
        return device
    try:
        return jax_device(jax.devices(platform)[0])
    except RuntimeError as error:
        raise RuntimeError(
            f"there is no device for {platform!r} here: "
            "name one by `with tritonsnap.jax.lower_for(device):`"
        ) from error


def calls_kernels() -> bool:
    """Whether programs lowered for a GPU call kernels: always but for ``lower_for(None)``."""
    return bool(_chosen.value != (None,))


def default_target() -> str:
    """The target of plans on the device that JAX runs on, or that `lower_for` names."""
    chosen = _chosen.value
    if chosen is not None:
        return "xla" if chosen[0] is None else "triton"
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = getattr(device, "platform", device) or jax.default_backend()
    return "triton" if platform in _GPUS else "xla"


def target_of(plan: DsmmPlan) -> str:
    """The target for which JAX packs a plan's values; inside of a program it does not change."""
    target: str = plan.__dict__.get("_jax_target") or default_target()
    return target


def jax_packing(plan: DsmmPlan) -> Packing:
    """The packing of a plan's values in JAX."""
    return plan.packing(target_of(plan))
