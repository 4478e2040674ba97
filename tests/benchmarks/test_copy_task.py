import json

import pytest

pytest.importorskip("matplotlib")

from benchmarks import copy_task


def test_every_method_trains_on_the_same_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(copy_task, "UPDATE_EVERY", 4)
    original = copy_task.TrainingConfig
    monkeypatch.setattr(copy_task, "TrainingConfig", lambda **k: original(backend="numpy", **k))
    rows = [row for name in copy_task.METHODS for row in copy_task.train(name, 8, 400, seed=0)]
    lengths = {row.variant: row.number for row in rows}
    assert set(lengths) == set(copy_task.METHODS)
    assert all(length >= 1 for length in lengths.values())
    path = copy_task.plot(rows, tmp_path / "curves.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_report_has_a_row_for_each_run(tmp_path, monkeypatch, capsys):
    row = copy_task.Row("copy length", "RTRL", "1", {"seed": 0, "step": 4_000}, value=3)
    monkeypatch.setattr(copy_task, "train", lambda *run: [row])
    assert copy_task.main(["--seeds", "2", "--results", str(tmp_path)]) == 0
    (report,) = tmp_path.glob("*/copy_task.json")
    assert len(json.loads(report.read_text())["rows"]) == 2 * len(copy_task.METHODS)
    assert list(tmp_path.glob("*/copy_task.png"))
    assert "RTRL" in capsys.readouterr().out
