"""Tuning with a GPU that exists in NumPy alone."""

from pathlib import Path

import numpy as np
import pytest
from fakes import KERNEL, FakeRunner

from tritonsnap.autotune.runner import WrongResultError, verify
from tritonsnap.autotune.tune import tune
from tritonsnap.tuning import TARGETS, ConfigFile, find_config, lookup


def every_config(*_: object) -> bool:
    return True


def read(directory: Path) -> ConfigFile:
    return ConfigFile.read(ConfigFile.path(directory, KERNEL.name, TARGETS[1]))


def test_keeps_the_fastest_of_each_size_and_dtype(tmp_path: Path) -> None:
    runner = FakeRunner({32: 3.0, 64: 1.0, 128: 2.0})
    assert tune([KERNEL], runner, tmp_path, every_config) == []
    file = read(tmp_path)
    assert [(entry.dtype, entry.bucket) for entry in file.entries] == [
        ("fp32", {"n": 4}),
        ("fp32", {"n": 10}),
        ("fp64", {"n": 4}),
        ("fp64", {"n": 10}),
    ]
    assert {entry.config["BLOCK"] for entry in file.entries} == {64}
    assert file.source == KERNEL.source
    assert file.versions["triton"]


def test_what_it_writes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune([KERNEL], FakeRunner({32: 3.0, 64: 1.0, 128: 2.0}), tmp_path, every_config)
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path))
    lookup.forget()
    found = find_config(KERNEL, {"n": 100}, "fp32", "ieee", TARGETS[1])
    assert found == {"BLOCK": 64, "num_warps": 4}


def test_compares_before_it_times(tmp_path: Path) -> None:
    runner = FakeRunner({32: 3.0, 64: 1.0, 128: 2.0})
    tune([KERNEL], runner, tmp_path, every_config)
    assert [step[0] for step in runner.log] == ["run", "time"] * (len(runner.log) // 2)
    assert len(runner.log) == 2 * 4 * len(KERNEL.configs)


def test_wrong_config_is_reported_and_never_timed(tmp_path: Path) -> None:
    runner = FakeRunner({32: 3.0, 64: 1.0, 128: 2.0}, wrong=(64,))
    wrong = tune([KERNEL], runner, tmp_path, every_config)
    assert len(wrong) == 4
    assert "double: `y` is off" in wrong[0]
    assert "'BLOCK': 64" in wrong[0]
    assert {entry.config["BLOCK"] for entry in read(tmp_path).entries} == {128}
    assert not [step for step in runner.log if step[0] == "time" and step[3] == 64]


def test_unusable_config_is_not_run(tmp_path: Path) -> None:
    runner = FakeRunner({32: 3.0, 64: 1.0, 128: 2.0})
    tune(
        [KERNEL],
        runner,
        tmp_path,
        lambda _, dtype, precision, config, device: config["BLOCK"] != 64,
    )
    assert {step[3] for step in runner.log} == {32, 128}


def test_interrupt_keeps_finished_entries_and_the_next_run_goes_on(tmp_path: Path) -> None:
    times = {32: 3.0, 64: 1.0, 128: 2.0}
    with pytest.raises(KeyboardInterrupt):
        tune([KERNEL], FakeRunner(times, interrupt_after=13), tmp_path, every_config)
    done = read(tmp_path).entries
    assert len(done) == 2
    runner = FakeRunner(times)
    tune([KERNEL], runner, tmp_path, every_config)
    assert len(read(tmp_path).entries) == 4
    assert len(runner.log) == 2 * 2 * len(KERNEL.configs)


def test_all_configs_wrong_writes_nothing(tmp_path: Path) -> None:
    runner = FakeRunner({}, wrong=(32, 64, 128))
    assert len(tune([KERNEL], runner, tmp_path, every_config)) == 12
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("error", "dtype"), [(1e-4, "fp32"), (1e-10, "fp64"), (0.1, "bf16")])
def test_verify_sees_small_errors(error: float, dtype: str) -> None:
    problem = KERNEL.problem(n=5)
    expected = KERNEL.reference(**problem.arguments)
    runner = FakeRunner({})
    verify(runner, KERNEL, problem, KERNEL.configs[0], dtype, "ieee", expected)
    shifted = {"y": expected["y"] + np.array([0, 0, 0, 0, error * 8])}
    with pytest.raises(WrongResultError, match="off by at most"):
        verify(runner, KERNEL, problem, KERNEL.configs[0], dtype, "ieee", shifted)
