import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")
pytest.importorskip("matplotlib")

from benchmarks import kan
from benchmarks.kan_peers import count_parameters, perceptron, spline_kan


def test_small_run_writes_rows_and_a_plot(tmp_path, capsys):
    kan.main(
        ["--task", "formula3", "--records", "1500", "--epochs", "2", "--results", str(tmp_path)]
    )
    printed = capsys.readouterr().out
    path = next(tmp_path.glob("*/kan-formula3.json"))
    rows = json.loads(path.read_text())["rows"]
    names = {row["variant"] for row in rows}
    assert {"default", "sequential", "compiled sequential", "torch MLP"} <= names
    assert {row["unit"] for row in rows} >= {"records/s", "correlation"}
    assert all(0.3 < row["value"] <= 1 for row in rows if row["unit"] == "correlation")
    assert "| formula3 | default" in printed
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_time_to_a_goal_is_that_of_the_first_epoch_there():
    curve = [(10, 1.0, 0.5), (20, 2.0, 0.96), (30, 3.0, 0.9)]
    assert kan.seconds_to(curve, 0.9) == 2.0
    assert kan.seconds_to(curve, 0.99) is None


@pytest.mark.parametrize("make", [perceptron, spline_kan])
@pytest.mark.parametrize(("inputs", "parameters"), [(16, 5460), (25, 29_400)])
def test_peers_have_as_many_parameters(make, inputs, parameters):
    assert count_parameters(make(inputs, parameters)) == pytest.approx(parameters, rel=0.05)
