"""The parts of the sequence benchmark: kept rows, and what is left out."""

import pytest

pytest.importorskip("jax")

from benchmarks import sequence
from benchmarks.report import Row
from tritonsnap import RNN


def test_an_interrupted_run_keeps_what_it_has(tmp_path) -> None:
    path, options = tmp_path / "partial.json", {"units": [4]}
    row = Row("RNN", "BPTT", "s", {"units": 4}, value=1.0)

    def fail() -> list[Row]:
        raise AssertionError

    assert sequence.Progress(path, options).rows("one", lambda: [row]) == [row]
    again = sequence.Progress(path, options)
    assert again.has("one")
    assert again.rows("one", fail) == [row]
    assert not sequence.Progress(path, {"units": [5]}).has("one")


def test_what_passes_the_budget_has_a_row_that_says_so(monkeypatch) -> None:
    monkeypatch.setattr(sequence, "INPUTS", 2)
    monkeypatch.setattr(sequence, "STEPS", 2)
    monkeypatch.setattr(sequence, "ORDERS", (1,))
    rows = sequence.one_network(RNN, 4, 1.0, repeats=2, budget=0.0)
    left_out = {row.variant for row in rows if "note" in row.parameters}
    assert left_out == {sequence.MASKED, *("SnAp-1, " + label for label in sequence.CHUNKS)}
    assert {row.variant for row in rows} - left_out == {"BPTT", "BPTT by jax.grad"}


def test_a_wrong_choice_is_found() -> None:
    def timed(label: str, seconds: float) -> Row:
        return Row("RNN", f"SnAp-1, {label}", "s", {"units": 4}, seconds, seconds, seconds)

    fast = [timed("step", 2.0), timed("chunk 64", 1.0)]
    assert sequence.off_the_best([*fast, timed("auto", 1.4)]) == []
    (found,) = sequence.off_the_best([*fast, timed("auto", 1.6)])
    assert "SnAp-1" in found
