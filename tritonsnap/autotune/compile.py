"""Compile a declared kernel without a GPU, and read off the result what it costs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonsnap.ops.kernel import OPTIONS, Kernel
from tritonsnap.tuning import Config, Device

_WIDE = {
    "load": r"ld\.global[\w.]*\.(v4\.[bfsu]32|v2\.[bfsu]64)|cp\.async[\w.]* [^;]*\b0x10\b"
    r"|(global|buffer)_load_dwordx4",
    "store": r"st\.global[\w.]*\.(v4\.[bfsu]32|v2\.[bfsu]64)|(global|buffer)_store_dwordx4",
}
_TENSOR_CORES = r"\bmma\.sync|\bwgmma\.mma|\btcgen05\.mma|\bv_mfma_"


@dataclass(frozen=True)
class Report:
    """What a compiled kernel costs.

    Parameters
    ----------
    registers : int
        Per thread; on AMD with the accumulation registers.
    spills : int
        On NVIDIA bytes of stack per thread, on AMD spilled registers.
    shared : int
        Bytes of shared memory per program.
    wide_loads, wide_stores, tensor_cores : int
        Instructions in the code that load or store 16 bytes a thread, or multiply matrices.
    ttir : str
        Triton's intermediate code, before it knows a target.
    """

    registers: int
    spills: int
    shared: int
    wide_loads: int
    wide_stores: int
    tensor_cores: int
    ttir: str


def compile_kernel(
    kernel: Kernel, dtype: str, precision: str, config: Config, device: Device
) -> Report:
    """Compile a kernel for a device that need not be there.

    Pointers are taken to be multiples of 16 bytes, as every allocation is; of sizes nothing is
    known.

    Raises
    ------
    RuntimeError
        If triton was imported with ``TRITON_INTERPRET=1``, which leaves nothing to compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not isinstance(kernel.function, triton.JITFunction):
        raise RuntimeError("TRITON_INTERPRET is set: a process that interprets cannot compile")
    constexprs = kernel.constexprs(config, precision, hip=device.is_hip)
    types = {
        name: f"*{kernel.pointer_dtype(name, dtype)}" if kind.startswith("*") else kind
        for name, kind in kernel.signature.items()
    }
    names = kernel.function.arg_names
    source = ASTSource(
        kernel.function,
        {name: types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constexprs.items()},
        {
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in types.items()
            if kind.startswith("*")
        },
    )
    target = (
        GPUTarget("hip", device.arch, 64)
        if device.is_hip
        else GPUTarget("cuda", int(device.arch.removeprefix("sm_")), 32)
    )
    options = {name: value for name, value in config.items() if name in OPTIONS}
    compiled: Any = triton.compile(
        source, target=target, options={"enable_fp_fusion": True, **options}
    )
    code = compiled.asm["amdgcn" if device.is_hip else "ptx"]
    registers, spills = _amd_usage(code) if device.is_hip else _nvidia_usage(compiled.asm["cubin"])
    return Report(
        registers=registers,
        spills=spills,
        shared=compiled.metadata.shared,
        wide_loads=len(re.findall(_WIDE["load"], code)),
        wide_stores=len(re.findall(_WIDE["store"], code)),
        tensor_cores=len(re.findall(_TENSOR_CORES, code)),
        ttir=compiled.asm["ttir"],
    )


def faults_of(report: Report, device: Device) -> list[str]:
    """Why a config must not be used on a device; nothing if it may."""
    found = []
    if report.spills:
        found.append(f"spills {report.spills} {'registers' if device.is_hip else 'bytes'}")
    if report.shared > device.shared_memory:
        found.append(f"needs {report.shared} bytes of shared memory of {device.shared_memory}")
    return found


def _amd_usage(code: str) -> tuple[int, int]:
    values = {
        name: int(value) for name, value in re.findall(r"\.(\w+_(?:spill_)?count): +(\d+)", code)
    }
    return values["vgpr_count"], values["vgpr_spill_count"] + values["sgpr_spill_count"]


def _nvidia_usage(cubin: bytes) -> tuple[int, int]:
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [str(tool), "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump said nothing of registers: {usage!r}")
    return int(found[1]), int(found[2])
