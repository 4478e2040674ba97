"""Learners over many devices, each kind in processes of its own (see the workers beside)."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
needs = {
    name: pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
    )
    for name in ("jax", "torch")
}


def run(worker: str, *processes: list[str], devices: int = 1) -> None:
    """Run a worker with each list of arguments at once; fail with the output of those that fail."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path])),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / worker), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in processes
    ]
    try:
        outputs = [process.communicate(timeout=280)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    failed = [o for o, process in zip(outputs, running, strict=True) if process.returncode]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


@needs["jax"]
def test_four_jax_devices(tmp_path: Path) -> None:
    run("sharded_jax_worker.py", [str(tmp_path)], devices=4)


@needs["jax"]
def test_two_jax_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    parts = [[str(tmp_path), str(number), address] for number in range(2)]
    run("sharded_jax_worker.py", *parts, devices=2)


@needs["torch"]
def test_two_torch_processes(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    parts = [[str(number), meeting, str(tmp_path)] for number in range(2)]
    run("sharded_torch_worker.py", *parts)
