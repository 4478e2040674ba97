import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreter"
NEEDED = ("torch", "triton")


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="this process runs the folder by itself"
)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason="needs torch and triton",
)
def test_the_interpreter_tests_pass_in_a_process_of_their_own():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", FOLDER],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
