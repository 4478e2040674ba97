"""Folders that several processes write to, that cannot be written to, and disks that are full."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritonsnap as ts
from tritonsnap.cli import main
from tritonsnap.files import read_arrays, write_arrays, write_atomically
from tritonsnap.plan import calibration
from tritonsnap.plan.calibration import CONSTANTS, calibrated_target, costs_path, write_costs
from tritonsnap.plan.cost import TARGETS

MEASURE = """
import sys
from tritonsnap.plan.calibration import CONSTANTS, calibrated_target, write_costs

target, other = sys.argv[1:]
for number in range(1, 41):
    write_costs({target: dict.fromkeys(CONSTANTS, float(number))})
    calibrated_target(other)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of tuned configs and costs."""
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path / "configs"))
    for cached in (calibrated_target, calibration._warn_once):
        cached.cache_clear()
    yield tmp_path / "configs"
    for cached in (calibrated_target, calibration._warn_once):
        cached.cache_clear()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file takes more than 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_two_processes_that_measure_costs_lose_none(folder: Path) -> None:
    pairs = (("numpy", "xla"), ("xla", "numpy"))
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", MEASURE, *pair]) for pair in pairs
    ]
    assert [process.wait() for process in processes] == [0, 0]
    found = json.loads(costs_path().read_text())["targets"]
    assert found == {name: dict.fromkeys(CONSTANTS, 40.0) for name in ("numpy", "xla")}
    assert [path.name for path in costs_path().parent.iterdir()] == [costs_path().name]


def test_a_folder_that_cannot_be_made_stops_only_what_writes(folder: Path, capsys) -> None:
    folder.write_text("a file in place of the folder")
    with pytest.warns(RuntimeWarning, match="costs passed over"):
        assert calibrated_target("numpy") == TARGETS["numpy"]
    with pytest.raises(OSError, match=str(folder)):
        write_costs({})
    assert main(["train", "--out", str(folder / "run"), "--steps", "1"]) == 2
    assert capsys.readouterr().err.startswith("tritonsnap train: error: ")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(OSError, match="File too large"):
        write_atomically(path, "new" * 1000)
    with pytest.raises(OSError, match="File too large"):
        write_arrays(path, "test", {"a": np.ones(1000)})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("full_disk")
def test_what_saves_says_that_the_disk_is_full(tmp_path: Path) -> None:
    pattern = ts.SparsityPattern.random((40, 40), 0.5)
    for save in (pattern.save, ts.DsmmPlan(pattern, pattern).save):
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path / "file.npz")
    assert not list(tmp_path.iterdir())


def test_what_cannot_take_the_place_of_the_old_goes(tmp_path: Path) -> None:
    (tmp_path / "folder" / "with a file").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_arrays(tmp_path / "file.npz", "test", {"a": np.ones(3)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.npz").stat().st_mode) == 0o644
    assert read_arrays(tmp_path / "file.npz", "test")["a"].tolist() == [1, 1, 1]
