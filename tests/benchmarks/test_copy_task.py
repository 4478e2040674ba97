import json

import pytest

pytest.importorskip("matplotlib")

from benchmarks import copy_task
from benchmarks.copy_task import LENGTH, METHODS, SECONDS, Row


@pytest.fixture
def _numpy(monkeypatch):
    monkeypatch.setattr(copy_task, "UPDATE_EVERY", 4)
    original = copy_task.TrainingConfig
    monkeypatch.setattr(copy_task, "TrainingConfig", lambda **k: original(backend="numpy", **k))


@pytest.mark.usefixtures("_numpy")
def test_every_method_trains_on_the_same_budget_of_data(tmp_path):
    rows = [row for name in METHODS for row in copy_task.train(name, 8, 100, 0, tmp_path)]
    for name in METHODS:
        curve = [row for row in rows if (row.variant, row.case) == (name, LENGTH)]
        assert [row.parameters["step"] for row in curve] == [40, 80, 100]
        assert all(row.number >= 1 for row in curve)
    assert [row.variant for row in rows if row.case == SECONDS] == list(METHODS)
    path = copy_task.plot(rows, tmp_path / "curves.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_numpy")
def test_a_run_goes_on_where_it_was(tmp_path):
    whole = copy_task.train("SnAp-2", 8, 100, 1, tmp_path / "whole")
    for steps in (48, 100):
        parts = copy_task.train("SnAp-2", 8, steps, 1, tmp_path / "parts")
    assert curve(parts) == curve(whole)
    shorter = copy_task.train("SnAp-2", 8, 80, 1, tmp_path / "parts")  # which it has already
    assert curve(shorter) == [point for point in curve(whole) if point[0] <= 80]


def curve(rows):
    return [(row.parameters["step"], row.number) for row in rows if row.case == LENGTH]


def length(name, seed, value):
    return Row(LENGTH, name, "1", {"seed": seed, "step": 4_000}, value=value)


def test_seeds_are_told_by_their_median_and_spread():
    rows = [length("RTRL", seed, value) for seed, value in enumerate((3, 9, 4))]
    (row,) = copy_task.over_seeds(rows)
    assert (row.p50, row.parameters) == (4, {"step": 4_000, "seeds": 3})
    assert 3 < row.p20 < 4 < row.p80 < 9
    assert copy_task.over_seeds(rows[:1])[0].value == 3


def test_the_report_has_a_row_for_each_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(copy_task, "train", lambda name, h, s, seed, runs: [length(name, seed, 3)])
    assert copy_task.main(["--seeds", "2", "--results", str(tmp_path)]) == 0
    (report,) = tmp_path.glob("*/copy_task.json")
    assert len(json.loads(report.read_text())["rows"]) == 2 * len(METHODS)
    assert list(tmp_path.glob("*/copy_task.png"))
    assert "RTRL" in capsys.readouterr().out


def test_steps_that_end_within_an_update_are_refused(capsys):
    with pytest.raises(SystemExit):
        copy_task.main(["--steps", "100"])
    assert "--steps must be a positive multiple of 16, got 100" in capsys.readouterr().err
