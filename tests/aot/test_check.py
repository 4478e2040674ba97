"""`python -m autotune check`: what it rejects."""

from pathlib import Path

import pytest

from tritonsnap.autotune.command import main
from tritonsnap.autotune.tune import usable
from tritonsnap.ops.coo_to_csr.kernels import CSR_COUNT
from tritonsnap.tuning import TARGETS, ConfigFile, Entry, Milliseconds

MI300X = TARGETS[3]
SPILLS = {"BLOCK": 1024, "BINS": 1024, "num_warps": 4}


def run(directory: Path) -> int:
    return main(["check", "--kernels", "csr_count", "--directory", str(directory)])


def write(directory: Path, **config: int) -> None:
    bucket = {"nnz": 14, "num_rows": 10}
    entry = Entry(bucket, "i32", "ieee", config, Milliseconds(1.0, 1.0, 1.0))
    ConfigFile("csr_count", CSR_COUNT.source, MI300X, {}, (entry,)).write(directory)


def test_defaults_pass(tmp_path: Path) -> None:
    assert run(tmp_path) == 0


def test_tuned_config_that_spills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, **SPILLS)
    assert run(tmp_path) == 1
    assert "csr_count i32 ieee" in (error := capsys.readouterr().err)
    assert "on gfx942: spills" in error


def test_tuned_config_that_does_not_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, BLOCK=1000, BINS=1024, num_warps=4)
    assert run(tmp_path) == 1
    assert "does not compile" in capsys.readouterr().err


def test_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "csr_count.json").write_text("{")
    assert run(tmp_path) == 1
    assert "csr_count.json" in capsys.readouterr().err


def test_the_tuner_does_not_run_it_either() -> None:
    assert not usable(CSR_COUNT, "i32", "ieee", SPILLS, MI300X)
    assert usable(CSR_COUNT, "i32", "ieee", SPILLS, TARGETS[1])
