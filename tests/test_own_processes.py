"""Run the tests that need a process of their own.

Triton decides when it is imported whether it interprets, and a process that interprets cannot
compile.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("folder", ["kernels", "aot", "lowering"])
def test_folder_passes_in_its_own_process(folder: str) -> None:
    if folder == "kernels":
        pytest.importorskip("torch")  # the interpreter takes its tensors
    environment = {name: value for name, value in os.environ.items() if "TRITON" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, str(Path(__file__).parent / folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    print(run.stdout.splitlines()[-1] if run.stdout else run.stderr)
    if run.returncode != 0:
        pytest.fail(run.stdout + run.stderr, pytrace=False)
