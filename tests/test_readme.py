"""The README: its code runs, and its tables are those of the committed results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import readme

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in TEXT.split("\n## ")
}
LEARNING = "Online training"
PRINTED = {"One kernel": "", "A KAN": "correlation", "Which method when": "SnAp-3"}
"""Sections, whose blocks belong together, and what their code prints."""


def test_all_code_is_run():
    assert {name for name, blocks in SECTIONS.items() if blocks} == {LEARNING, *PRINTED}


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_networks_learn(library):
    (example,) = (text for text in SECTIONS[LEARNING] if f"import {library}\n" in text)
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    loss = float(run(example).split()[0])
    assert loss < 0.5  # guessing among eight symbols costs 2.08 nats


@pytest.mark.parametrize("section", PRINTED)
def test_the_code_of_a_section_runs(section):
    for library in re.findall(r"^import (jax|torch)$", "\n".join(SECTIONS[section]), re.MULTILINE):
        pytest.importorskip(library)
    assert PRINTED[section] in run("\n".join(SECTIONS[section]))


def test_the_tables_are_those_of_the_results():
    assert readme.filled(TEXT) == TEXT, "run: python -m benchmarks readme"
    assert set(readme.TABLES) == set(re.findall(r"<!-- results: (\S+) -->", TEXT))


def run(example):
    return subprocess.run(
        [sys.executable, "-c", example], check=True, capture_output=True, text=True
    ).stdout
