"""What an import loads, and what it says where an extra is missing."""

import subprocess
import sys

import pytest

BLOCK = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {blocked!r}:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run(code: str, *blocked: str) -> str:
    """The output of a fresh interpreter in which the `blocked` packages are not installed."""
    command = [sys.executable, "-c", BLOCK.format(blocked=blocked) + code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def loaded_after(code: str) -> set[str]:
    return set(run(code + "\nimport sys; print(*sys.modules)").split())


def test_tritonsnap_loads_no_framework() -> None:
    loaded = loaded_after("import tritonsnap, tritonsnap.cli")
    assert not loaded & {"torch", "jax", "jaxlib", "triton", "matplotlib", "scipy", "ray"}


def test_the_numpy_ops_load_no_framework() -> None:
    loaded = loaded_after("import tritonsnap.numpy")
    assert not loaded & {"torch", "jax", "triton"}


@pytest.mark.parametrize(("one", "other"), [("jax", "torch"), ("torch", "jax")])
def test_the_ops_of_one_framework_do_not_load_the_other(one: str, other: str) -> None:
    pytest.importorskip(one)
    loaded = loaded_after(f"import tritonsnap.{one}")
    assert one in loaded
    assert other not in loaded


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize(
    "code",
    [
        "import tritonsnap.{library}",
        "import tritonsnap as ts; ts.RNN(inputs=1, hidden=2).init(0, like='{library}')",
        "import tritonsnap as ts; ts.SnAp(ts.RNN(inputs=1, hidden=2)).init(1, like='{library}')",
    ],
)
def test_a_missing_extra_names_the_command_that_installs_it(code: str, library: str) -> None:
    code = code.format(library=library)
    printed = run(f"try:\n    {code}\nexcept ImportError as error:\n    print(error)", library)
    assert printed == f"{library} is not installed; run: pip install 'tritonsnap[{library}]'"


def test_numpy_alone_trains() -> None:
    code = """
import numpy as np, tritonsnap as ts
cell, readout = ts.GRU(inputs=2, hidden=4, density=0.5), ts.Readout(3)
learner = ts.SnAp(cell, 2)
assert learner.plan.packing().target.name == "numpy"
xs, ys = np.ones((5, 1, 2), np.float32), np.ones((5, 1), int)
loss, gradients, carry = learner.sequence(
    cell.init(0), learner.init(1), xs, ys, readout, readout=readout.init(4)
)
print(int(carry.step))
"""
    assert run(code, "torch", "jax", "scipy", "matplotlib") == "5"
