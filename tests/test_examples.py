"""The scripts of `examples`, run small: each ends well and draws a picture."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "sparse_jacobian": "--sides 5 10 --dense-limit 5",
    "copy_task": "--steps 60 --hidden 8 --orders 1",
    "online_text": "--seconds 0 --hidden 8 --batch 4",
    "concurrent_kan": "--records 2000 --epochs 1",
}
NEEDS_JAX = ("sparse_jacobian", "copy_task", "online_text")


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_an_example_draws(name, tmp_path):
    if name in NEEDS_JAX:
        pytest.importorskip("jax")
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *SMALL[name].split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith(f"drawn in {name}.png\n")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
