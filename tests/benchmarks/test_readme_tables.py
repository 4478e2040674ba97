"""The README's tables: from whatever results there are."""

from benchmarks import readme
from benchmarks.report import Row, write_report

TEXT = "before\n<!-- results: memory -->\nold\n<!-- end -->\nafter\n"


def peak(variant, steps, megabytes):
    return Row("memory", variant, "B", {"steps": steps}, value=1e6 * megabytes)


def test_every_device_has_its_table(tmp_path):
    write_report("sequence", [peak("BPTT", 64, 8)], device="One", results=tmp_path)
    rows = [peak("BPTT", 64, 16), peak("SnAp-1", 2048, 1234.5), Row("RNN", "new", "s", value=1)]
    write_report("sequence", rows, device="Two", results=tmp_path)
    text = readme.filled(TEXT, tmp_path)
    assert "old" not in text
    assert text.index("<sub>One, ") < text.index("<sub>Two, ")
    lines = [line.split("|")[1:-1] for line in text.splitlines() if "SnAp-1" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [["SnAp-1", "", "1,230"]]
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert readme.filled(text, tmp_path) == text


def test_missing_results_are_said_to_be_missing(tmp_path):
    assert "(no results yet)" in readme.filled(TEXT, tmp_path)


def test_what_a_table_does_not_know_is_left_out():
    for _, table in readme.TABLES.values():
        parameters = {"batch": 1, "quantity": "L2", "density": 1}
        rows = [Row("new", "new", "1", {**parameters, "new": 1}, value=1)]
        assert table(rows).count("\n") == 1  # the heading alone
