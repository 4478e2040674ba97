import json
import math
import time

import pytest

from benchmarks.report import (
    SCHEMA,
    Quantiles,
    Row,
    compare,
    environment,
    markdown_table,
    measure,
    new_figure,
    save_figure,
    write_report,
)


def test_quantiles_interpolate():
    assert Quantiles.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx((2.0, 3.5, 5.0))


def test_measure_interleaves_after_warming_up():
    calls = []
    variants = {name: lambda name=name: calls.append(name) for name in "ABC"}
    measure(variants, repeats=3, shortest=0.0)
    assert "".join(calls) == "AABBCC" + "ABC" * 3


def test_measure_tells_slow_from_fast_and_counts_seconds_per_call():
    times = measure(
        {"slow": lambda: time.sleep(4e-3), "fast": lambda: None}, repeats=5, shortest=2e-3
    )
    assert times["slow"].p20 >= 4e-3
    assert times["fast"].p50 < 1e-4
    assert all(time.p20 <= time.p50 <= time.p80 for time in times.values())


def test_measure_includes_the_wait_for_the_result():
    waited = []

    def wait(result):
        waited.append(result)
        time.sleep(2e-3)

    times = measure({"asynchronous": lambda: 7}, wait=wait, repeats=2, shortest=0.0)
    assert set(waited) == {7}
    assert times["asynchronous"].p20 >= 2e-3


def test_measure_refuses_a_single_sample():
    with pytest.raises(ValueError, match="`repeats`"):
        measure({"A": lambda: None}, repeats=1)


def test_compare_pairs_equal_parameters_only():
    rows = [
        Row("snap1", "ours", "s", {"hidden": 8}, value=1.0),
        Row("snap1", "dense", "s", {"hidden": 8}, value=4.0),
        Row("snap1", "ours", "s", {"hidden": 16}, value=1.0),
        Row("snap1", "ours", "B", {"hidden": 8}, value=1.0),
    ]
    compared = compare(rows, "dense")
    assert [row.ratio for row in compared] == [0.25, 1.0, None, None]
    assert compared[0].baseline == "dense"
    assert compared[2] == rows[2]


@pytest.mark.parametrize("numbers", [{}, {"p50": 1.0}, {"p20": 1, "p50": 1, "p80": 1, "value": 1}])
def test_a_row_has_quantiles_or_a_value(numbers):
    with pytest.raises(ValueError, match="`value` alone"):
        Row("case", "variant", "s", **numbers)


def test_report_file(tmp_path):
    rows = [
        Row.timed("snap1", "ours", Quantiles(1.0, 2.0, 3.0), {"hidden": 8}),
        Row("snap1", "ours", "B", {"hidden": 8}, value=12.0),
    ]
    path = write_report("speed", rows, device="NVIDIA H200 (SXM)", results=tmp_path)
    assert path == tmp_path / "nvidia-h200-sxm" / "speed.json"
    report = json.loads(path.read_text())
    assert report["schema"] == SCHEMA
    assert report["header"]["device"] == "NVIDIA H200 (SXM)"
    assert [row["benchmark"] for row in report["rows"]] == ["speed", "speed"]
    assert report["rows"][0]["p50"] == 2.0
    assert report["rows"][1]["value"] == 12.0


def test_report_refuses_nan_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="nan"):
        write_report("speed", [Row("c", "v", "s", value=math.nan)], device="d", results=tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_environment_names_what_is_compared():
    found = environment()
    assert {"device", "cpu", "cores", "python", "numpy", "scipy", "torch", "jax", "triton"} <= set(
        found
    )
    assert found["device"]
    assert found["tritonsnap"]


def test_markdown_table_leaves_out_empty_columns():
    rows = compare(
        [
            Row("snap1", "ours", "s", {"hidden": 8}, value=0.5),
            Row("snap1", "dense", "s", {"hidden": 8}, value=1.0),
        ],
        "dense",
    )
    assert markdown_table(rows).splitlines() == [
        "| case  | variant | hidden | median or value | ratio       |",
        "| ----- | ------- | ------ | --------------- | ----------- |",
        "| snap1 | ours    | 8      | 0.5 s           | 0.5 x dense |",
        "| snap1 | dense   | 8      | 1 s             | 1 x dense   |",
    ]


def test_figure_is_a_png(tmp_path):
    pytest.importorskip("matplotlib", reason="plots are an optional extra")
    figure, (left, right) = new_figure(columns=2)
    left.plot([1, 2], [3, 4])
    right.plot([1, 2], [4, 3])
    path = save_figure(figure, tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
