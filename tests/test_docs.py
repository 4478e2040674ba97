"""The pages of the documentation: their code runs, and the reference leaves nothing out."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tritonsnap

DOCS = Path(__file__).parents[1] / "docs"
CODE = {
    page: "\n".join(blocks)
    for page in sorted(DOCS.rglob("*.md"))
    if (blocks := re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
}
NEEDS = {  # what a page that says so cannot do without
    "torch": r"import torch|tritonsnap\.torch",
    "jax": r"import jax|tritonsnap\.jax",
    "triton": r"\.kernels",
    "matplotlib": r"\.plot\(",
}
# a page is one program, run as a module so that nothing of it waits for a command line
RUN = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': 'page'})"


@pytest.mark.parametrize("page", CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path):
    for name, hint in NEEDS.items():
        if re.search(hint, CODE[page]) and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    run = subprocess.run(
        [sys.executable, "-c", RUN, page.name],
        input=CODE[page],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr


def test_the_reference_has_every_public_name():
    """Each is named itself, or a module is that exports it."""
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    entries = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    modules = [
        importlib.import_module(entry)
        for entry in entries
        if not entry.startswith("tritonsnap.jacobian") and importlib.util.find_spec(entry)
    ]
    missing = [
        name
        for name in tritonsnap.__all__
        if not any(entry.endswith(f".{name}") for entry in entries)
        and not any(getattr(module, name, None) is getattr(tritonsnap, name) for module in modules)
    ]
    assert not missing
