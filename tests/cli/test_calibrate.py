import json

import pytest

from tritonsnap.cli import main
from tritonsnap.online import calibrate
from tritonsnap.plan.calibration import CONSTANTS, calibrated_target, costs_path


def test_calibrate_writes_costs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(calibrate, "_SECONDS", 0.0)
    try:
        assert main(["calibrate", "--target", "numpy"]) == 0
        data = json.loads(costs_path().read_text())
        assert set(data["targets"]) == {"numpy"}
        assert set(data["targets"]["numpy"]) == set(CONSTANTS)
        assert all(value > 0 for value in data["targets"]["numpy"].values())
        assert calibrated_target("numpy").element == data["targets"]["numpy"]["element"]
        assert str(costs_path()) in capsys.readouterr().out
    finally:
        calibrated_target.cache_clear()


def test_an_unknown_target_is_an_error(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", "--target", "abacus"])
    assert caught.value.code == 2
    assert "abacus" in capsys.readouterr().err
