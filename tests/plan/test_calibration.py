import json

import pytest

from tritonsnap.plan import calibration
from tritonsnap.plan.calibration import CONSTANTS, calibrated_target, costs_path, write_costs
from tritonsnap.plan.cost import TARGETS

COSTS = {name: 0.5 + number for number, name in enumerate(CONSTANTS)}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITONSNAP_CONFIG_DIR", str(tmp_path))
    for cached in (calibrated_target, calibration._warn_once):
        cached.cache_clear()
    yield
    for cached in (calibrated_target, calibration._warn_once):
        cached.cache_clear()


def test_without_a_file_the_shipped_costs_hold() -> None:
    assert {name: calibrated_target(name) for name in TARGETS} == TARGETS


def test_what_is_written_is_read() -> None:
    path = write_costs({"numpy": COSTS})
    assert path == costs_path()
    found = calibrated_target("numpy")
    assert {name: getattr(found, name) for name in CONSTANTS} == COSTS
    assert (found.name, found.most_blocks) == ("numpy", TARGETS["numpy"].most_blocks)
    assert calibrated_target("xla") == TARGETS["xla"]


def test_targets_measured_before_are_kept() -> None:
    write_costs({"numpy": COSTS})
    write_costs({"xla": {**COSTS, "gather": 9.0}})
    assert calibrated_target("numpy").gather == COSTS["gather"]
    assert calibrated_target("xla").gather == 9.0


def good() -> dict:
    return json.loads(write_costs({"numpy": COSTS}).read_text())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: "{", "Expecting"),
        (lambda data: [], "schema"),
        (lambda data: {**data, "schema": "other/1"}, "schema"),
        (lambda data: {**data, "device": "another CPU"}, "another CPU"),
        (lambda data: {**data, "targets": {"cobol": COSTS}}, "names of"),
        (lambda data: {**data, "targets": {"numpy": {"element": 1.0}}}, "must have"),
        (lambda data: {**data, "targets": {"numpy": {**COSTS, "block": -1.0}}}, "positive"),
        (lambda data: {**data, "targets": {"numpy": {**COSTS, "block": True}}}, "positive"),
        (lambda data: {**data, "targets": {"numpy": {**COSTS, "block": float("nan")}}}, "positive"),
    ],
)
def test_a_file_that_is_no_good_is_named_once_and_passed_over(spoil, reason: str) -> None:
    spoiled = spoil(good())
    text = spoiled if isinstance(spoiled, str) else json.dumps(spoiled)
    costs_path().write_text(text)
    with pytest.warns(RuntimeWarning, match=reason) as caught:
        found = [calibrated_target(name) for name in ("numpy", "xla")]
    assert found == [TARGETS["numpy"], TARGETS["xla"]]
    assert len(caught) == 1
    assert str(costs_path()) in str(caught[0].message)
    write_costs({"numpy": COSTS})
    assert calibrated_target("numpy").gather == COSTS["gather"]
