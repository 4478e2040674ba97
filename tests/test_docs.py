"""The pages of the documentation: their code runs, and the reference leaves nothing out."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from tritonsnap.cli import SUBCOMMANDS, make_parser

DOCS = Path(__file__).parents[1] / "docs"
PACKAGE = DOCS.parent / "tritonsnap"
ELSEWHERE = {
    "kan-model-format": "kan/test_format_page.py",
    "many-devices": "online/test_sharded.py",
    "own-cell": "online/test_own_cell.py",
}
"""Pages whose code another test runs: on a saved model, in several processes, against an oracle."""

CODE = {
    page: "\n".join(blocks)
    for page in sorted(DOCS.rglob("*.md"))
    if page.stem not in ELSEWHERE
    and (blocks := re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
}
NEEDS = {  # what a page that says so cannot do without
    "torch": r"import torch|tritonsnap\.torch",
    "jax": r"import jax|tritonsnap\.jax",
    "triton": r"\.kernels",
    "matplotlib": r"\.plot\(",
}


@pytest.mark.parametrize("page", CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    for name, hint in NEEDS.items():
        if re.search(hint, CODE[page]) and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    run = subprocess.run(
        [sys.executable, "-c", CODE[page]], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr


def test_the_other_pages_are_read_by_their_tests():
    for page, test in ELSEWHERE.items():
        assert f'"{page}.md"' in (Path(__file__).parent / test).read_text(encoding="utf-8")


TEXTS = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def commands(program):
    """What the pages say to call a program with, in blocks and in lines."""
    for page in TEXTS:
        text = page.read_text(encoding="utf-8")
        for found in re.findall(rf"(?:^|`|&& |/){program} ([^`#|&\n]*)", text, re.MULTILINE):
            yield page.name, found.strip()


def is_taken(given):
    try:
        make_parser().parse_args(shlex.split(given))
    except SystemExit as end:
        return not end.code
    return True


def test_every_command_takes_what_the_pages_give_it():
    told = [(page, given) for page, given in commands("tritonsnap") if given]
    assert {given.split()[0] for _, given in told} == set(SUBCOMMANDS)
    with_options = {given for _, given in told if " " in given}
    assert not [given for given in with_options if not is_taken(given)]


def test_every_module_that_the_pages_run_is_there():
    told = {(page, given.split()[0]) for page, given in commands(r"python -m benchmarks")}
    assert told
    assert not [one for one in told if one[1] not in {"all", "readme", "NAME", *BENCHMARKS}]
    told = {given.split()[0] for _, given in commands(r"python -m autotune")}
    assert told == {"tune", "check", "list", "merge", "prune"}


def source_of(module):
    """The source file of a module; None if it is none."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path if path.exists() else None


def exported(path):
    """The names in `__all__`."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def shown(entry):
    """The names that an entry of the reference shows: its own, or those of its module."""
    path = source_of(entry)
    if path is None:
        return {entry.split(".")[-1]}
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = {node.name for node in ast.parse(path.read_text("utf-8")).body if type(node) in kinds}
    # a submodule of the same name hides what is exported
    visible = {name for name in exported(path) if not (path.parent / f"{name}.py").exists()}
    return defined | (visible if path.stem == "__init__" else set())


@pytest.mark.parametrize(
    "module", ["", ".jax", ".torch", ".numpy", ".kan", ".sparsity", ".plan", ".tuning"]
)
def test_the_reference_has_every_public_name(module):
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    entries = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    names = exported(source_of(f"tritonsnap{module}"))
    assert names
    assert not names - set().union(*map(shown, entries))
