"""The pages of the documentation: their code runs, and the reference leaves nothing out."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tritonsnap.ops

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


def test_every_op_has_an_entry_in_the_reference():
    page = (DOCS / "reference" / "ops.md").read_text(encoding="utf-8")
    assert re.findall(r"::: tritonsnap\.ops\.(\w+)\.\1$", page, re.MULTILINE)
    for op in tritonsnap.ops.__all__:
        assert f"::: tritonsnap.ops.{op}.{op}\n" in page
