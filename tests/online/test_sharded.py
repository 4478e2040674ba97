"""Learners over many devices, each kind in processes of its own (see the workers beside)."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "many-devices.md"
needs = {
    name: pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
    )
    for name in ("jax", "torch")
}


def run(*commands: list[str], devices: int = 1, **variables: str) -> None:
    """Run Python with each list of arguments at once; fail with the output of those that fail."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(len(commands)),
        **variables,
    }
    running = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, arguments in enumerate(commands)
    ]
    try:
        outputs = [process.communicate(timeout=280)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    failed = [o for o, process in zip(outputs, running, strict=True) if process.returncode]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    return port


@needs["jax"]
def test_four_jax_devices(tmp_path: Path) -> None:
    run([str(HERE / "sharded_jax_worker.py"), str(tmp_path)], devices=4)


@needs["jax"]
def test_two_jax_processes(tmp_path: Path) -> None:
    command = [str(HERE / "sharded_jax_worker.py"), str(tmp_path)]
    address = f"localhost:{free_port()}"
    run(*([*command, rank, address] for rank in "01"), devices=2)


@needs["torch"]
def test_two_torch_processes(tmp_path: Path) -> None:
    command = [str(HERE / "sharded_torch_worker.py"), str(tmp_path)]
    run(command, command, MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))


@pytest.mark.parametrize(
    ("library", "processes"),
    [pytest.param("jax", 1, marks=needs["jax"]), pytest.param("torch", 2, marks=needs["torch"])],
)
def test_the_examples_of_the_page_run(library: str, processes: int) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (text for text in examples if f"import {library}\n" in text)
    command = ["-c", example]
    run(*[command] * processes, MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
