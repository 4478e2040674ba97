"""`python -m benchmarks`: what it runs, with which options, and how it ends."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.__main__ as command
from benchmarks.report import QUICK_RESULTS, RESULTS, Parser

FOLDER = Path(command.__file__).parent


def parser():
    made = Parser("toy", "A toy.", size=2)
    made.add_argument("--size", type=int, default=10)
    return made


def test_quick_is_small_and_leaves_the_results_alone():
    assert vars(parser().parse_args([])) == {"size": 10, "quick": False, "results": RESULTS}
    quick = {"size": 2, "quick": True, "results": QUICK_RESULTS}
    assert vars(parser().parse_args(["--quick"])) == quick
    given = ["--size", "3", "--results", "here", "--quick"]
    assert vars(parser().parse_args(given)) == {"size": 3, "quick": True, "results": Path("here")}


def test_results_that_cannot_be_written_are_refused_before_measuring(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        parser().parse_args(["--results", str(tmp_path / "file" / "results")])
    assert "--results: cannot write to" in capsys.readouterr().err


def test_every_benchmark_is_listed():
    runnable = {
        path.parent.name if path.stem == "__main__" else path.stem
        for path in [*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py")]
        if re.search(r"\bParser\(", path.read_text("utf-8"))
        and path.parent / path.stem != FOLDER / "__main__"
    }
    assert set(command.BENCHMARKS) == runnable - {"report"}
    assert all(importlib.util.find_spec(f"benchmarks.{name}") for name in command.BENCHMARKS)


def test_one_benchmark_runs_in_its_own_process(tmp_path):
    pytest.importorskip("matplotlib")
    asked = [sys.executable, "-m", "benchmarks", "devices", "--quick", "--results", tmp_path]
    run = subprocess.run(asked, capture_output=True, text=True, cwd=FOLDER.parent)
    assert run.returncode == 0, run.stderr
    (report,) = tmp_path.glob("*/devices.json")
    assert json.loads(report.read_text())["rows"]


def test_all_go_on_after_one_that_fails(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(command, "run", lambda name, options: ran.append((name, options)))
    assert command.main(["all", "--quick"]) == 0
    assert ran == [(name, ["--quick"]) for name in command.BENCHMARKS]
    assert capsys.readouterr().out.endswith("all went well\n")

    monkeypatch.setattr(command, "run", lambda name, options: int(name in ("step", "kan")))
    assert command.main(["all"]) == 1
    assert capsys.readouterr().out.endswith("failed: step, kan\n")


def test_what_is_missing_is_said_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert command.main(["kan", "--quick"]) == 1
    told = capsys.readouterr().err
    assert told == "kan needs matplotlib, numba, torch; run: pip install -e '.[all,test]'\n"


def test_ctrl_c_ends_all(monkeypatch):
    ran = []
    monkeypatch.setattr(command, "run", lambda name, options: ran.append(name) or 130)
    assert command.main(["all"]) == 130
    assert len(ran) == 1


@pytest.mark.parametrize("asked", [["steep"], ["all", "--quik"], []])
def test_what_is_unknown_is_refused(asked, capsys):
    with pytest.raises(SystemExit) as refused:
        command.main(asked)
    assert refused.value.code == 2
    assert "usage: python -m benchmarks" in capsys.readouterr().err
