"""The page of code in the documentation, run as a program of its own."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tritonsnap.kan import KAN, Trainer

PAGE = Path(__file__).parents[2] / "docs" / "kan-model-format.md"


@pytest.mark.parametrize("convention", ["mean", "sum"])
def test_the_documented_code_runs_a_saved_model(records, tmp_path, convention):
    x, y = records
    model = KAN(3, 5, 4, 7, targets=2, convention=convention, dtype="float64")
    Trainer(model, block=64).fit(x, y, epochs=2, progress=False)
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    (tmp_path / "run.py").write_text(code)
    (tmp_path / "model.json").write_text(model.to_json())
    asked = 1.5 * x[:40]  # partly outside of the domains
    run = subprocess.run(
        [sys.executable, "-I", tmp_path / "run.py", tmp_path / "model.json"],
        input="\n".join(" ".join(map(repr, map(float, row))) for row in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    found = [[float(text) for text in line.split()] for line in run.stdout.splitlines()]
    np.testing.assert_allclose(found, model.predict(asked), rtol=1e-12, atol=1e-12)


def test_the_documented_names_are_those_of_the_file(records, tmp_path):
    model = KAN(3, 5, 4, 7, targets=2)
    model.initialize(*records)
    model.save(tmp_path / "model.npz")
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table))
    with np.load(tmp_path / "model.npz") as saved:
        assert sorted(named) == sorted(saved.files)
