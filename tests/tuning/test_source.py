"""The source hash changes with the meaning of a kernel and with nothing else."""

import importlib.util
import itertools
from pathlib import Path

import pytest

from tritonsnap.tuning import source_hash

COUNT = itertools.count()


@pytest.fixture
def hash_of(tmp_path: Path):
    def load(source: str) -> str:
        path = tmp_path / f"module{next(COUNT)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return source_hash(module.kernel)

    return load


PLAIN = "def kernel(x, n):\n    return x + n\n"


@pytest.mark.parametrize(
    "same",
    [
        "\n\n# a comment\n" + PLAIN,
        'def kernel(x, n):\n    """Add."""\n    return x + n  # sum\n',
        "def kernel(\n    x,\n    n,\n):\n    return (x + n)\n",
        "def decorated(f):\n    return f\n\n@decorated\n" + PLAIN,
    ],
)
def test_layout_does_not_change_it(hash_of, same: str) -> None:
    assert hash_of(same) == hash_of(PLAIN)


@pytest.mark.parametrize(
    "other",
    ["def kernel(x, n):\n    return x - n\n", "def kernel(x, m):\n    return x + m\n"],
)
def test_meaning_changes_it(hash_of, other: str) -> None:
    assert hash_of(other) != hash_of(PLAIN)


TWO = """
class Jit:
    def __init__(self, fn):
        self.fn, self.arg_names = fn, ()

@Jit
def helper(x):
    return x {} 1

@Jit
def kernel(x):
    return helper(x)
"""


def test_a_function_that_it_calls_changes_it(hash_of) -> None:
    assert hash_of(TWO.format("+")) == hash_of("\n" + TWO.format("+"))
    assert hash_of(TWO.format("+")) != hash_of(TWO.format("-"))
