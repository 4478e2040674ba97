import json
import re

import numpy as np
import pytest

from tritonsnap.cli import main
from tritonsnap.kan import KAN, Trainer
from tritonsnap.kan.tasks import read_csv

SMALL = ["--task", "formula3", "--records", "2000", "--addends", "5", "--epochs", "2"]


def kan(*arguments):
    return main(["kan", *map(str, arguments)])


@pytest.fixture
def failing(capsys):
    """Run a command that must end with exit code 2 and one line; returns the line."""

    def run(*arguments):
        try:
            code = kan(*arguments)
        except SystemExit as end:
            code = end.code
        message = capsys.readouterr().err.splitlines()[-1]
        assert code == 2
        assert message.startswith("tritonsnap kan: error: ")
        return message

    return run


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (500, 2))
    lines = [f"{a:.6f},{a * b:.6f},{b:.6f}" for a, b in x]
    lines[7] = "0.5,,0.5"
    path = tmp_path / "table.csv"
    path.write_text("width, area ,height\n" + "\n".join(lines) + "\n\n")
    return path


def test_a_task_ends_with_its_accuracy(tmp_path, capsys):
    files = ["--save", tmp_path / "m.npz", "--plot", tmp_path / "m.png"]
    assert kan(*SMALL, *files) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 1: ")
    assert lines[-2].startswith("held-out correlation: ")
    assert 0.8 < float(lines[-2].split()[-1]) < 1
    assert lines[-1].startswith("held-out RMSE: ")
    assert KAN.load(tmp_path / "m.npz").addends == 5
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_a_table_with_any_target_column(table, tmp_path, capsys):
    assert kan("--task", "csv", table, "--target", "area", "--save", tmp_path / "m.json") == 0
    out = capsys.readouterr().out
    assert float(out.splitlines()[-2].split()[-1]) > 0.98
    assert ", 1 rejected" in out or ", 0 rejected" in out  # the bad record may be held out
    assert KAN.from_json((tmp_path / "m.json").read_text()).inputs == 2


def test_going_on_with_a_checkpoint(tmp_path, capsys):
    path = tmp_path / "state.npz"
    settings = ["--clients", 1, "--checkpoint", path]
    assert kan(*SMALL, *settings) == 0
    assert kan(*SMALL, "--checkpoint", path, "--resume") == 0
    resumed = capsys.readouterr().out.splitlines()[-1]
    assert kan(*SMALL[:-1], 4, "--clients", 1) == 0
    assert capsys.readouterr().out.splitlines()[-1] == resumed


def test_mistakes_are_told_in_one_line(failing, table, tmp_path):
    assert "--task" in failing()
    assert "--task must be one of det4" in failing("--task", "det6")
    assert "needs one FILE" in failing("--task", "csv")
    assert "takes no FILE" in failing("--task", "det4", table)
    assert "none.csv" in failing("--task", "csv", tmp_path / "none.csv")
    assert "--target must be one of width, area, height" in failing(
        "--task", "csv", table, "--target", "depth"
    )
    assert "--records must be at least 1" in failing("--task", "det4", "--records", 0)
    assert "--epochs must be at least 1" in failing(*SMALL[:-1], 0)
    assert "--select must lie in (0, 1]" in failing(*SMALL, "--select", 2)
    assert "--resume needs --checkpoint" in failing(*SMALL, "--resume")
    assert "--clients cannot be changed" in failing(
        *SMALL, "--resume", "--checkpoint", "x", "--clients", 2
    )
    assert "diverged" in failing(*SMALL, "--solver", "kaczmarz", "--step", 1e6, "--clip", "inf")


@pytest.mark.parametrize("option", ["--save", "--plot", "--checkpoint"])
def test_a_file_that_cannot_be_written_is_refused_before_training(option, failing, tmp_path):
    (tmp_path / "file").touch()
    assert f"{option}: cannot write to" in failing(*SMALL, option, tmp_path / "file" / "m.npz")
    assert f"{option}: cannot write to" in failing(*SMALL, option, tmp_path)


def test_a_plot_needs_matplotlib_before_training(failing, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "--plot: matplotlib is not installed" in failing(*SMALL, "--plot", "m.png")


def test_an_interrupted_training_keeps_its_epochs(tmp_path, capsys, monkeypatch):
    def train_two_epochs(self, blocks, *arguments):
        if self.model.epochs == 2:
            raise KeyboardInterrupt
        return one_round(self, blocks, *arguments)

    one_round = Trainer._round
    monkeypatch.setattr(Trainer, "_round", train_two_epochs)
    model, state = tmp_path / "new" / "m.npz", tmp_path / "state.npz"
    assert kan(*SMALL[:-1], 4, "--save", model, "--checkpoint", state) == 130
    told = capsys.readouterr().err
    assert "interrupted after epoch 2; " in told
    assert f"--task formula3 --resume --checkpoint {state}" in told
    assert KAN.load(model).epochs == Trainer.load(state).model.epochs == 2


def test_a_bad_table_names_its_line(table):
    table.write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match="line 3: 1 fields, expected 2"):
        read_csv(table)
    table.write_text("a,b\n1,x\n")
    with pytest.raises(ValueError, match="line 2: could not convert"):
        read_csv(table)
    table.write_text("a,b\n")
    with pytest.raises(ValueError, match="holds no records"):
        read_csv(table)
    table.write_text("a\n1\n")
    with pytest.raises(ValueError, match="two columns"):
        read_csv(table)
    table.write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match="line 1: it must have a header"):
        read_csv(table)
    for content in (b"a,b\n\xff,1\n", b"a,b\n\x001,2\n"):
        table.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(table))):
            read_csv(table)


def test_the_saved_text_is_json(tmp_path):
    path = tmp_path / "m.json"
    assert kan(*SMALL, "--save", path) == 0
    assert json.loads(path.read_text())["format"] == "tritonsnap.KAN/1"
