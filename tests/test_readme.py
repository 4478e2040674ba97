import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_networks_learn(library):
    (example,) = (text for text in EXAMPLES if f"import {library}\n" in text)
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    loss = float(run(example).split()[0])
    assert loss < 0.5  # guessing among eight symbols costs 2.08 nats


def test_one_kernel():
    (example,) = (text for text in EXAMPLES if "masked_dsmm" in text)
    run(example)


def test_explain():
    (example,) = (text for text in EXAMPLES if "explain" in text)
    assert "SnAp-3" in run(example)


def run(example):
    return subprocess.run(
        [sys.executable, "-c", example], check=True, capture_output=True, text=True
    ).stdout
